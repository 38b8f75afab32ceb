// verify: runs the same few training steps on one rank and under every legal layout. Losses,
// gradients and parameters are compared by L2(a - b) / max(L2(b), 1e-4 L2(all b)), not element by
// element.
#include <cmath>

#include "base/fail.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/say.h"
#include "cli/watchdog.h"
#include "tessera/explain.h"

namespace tessera::cli {

void feed_examples(Session& session, const nn::Model& model, int64_t step) {
  for (const Tensor& input : model.inputs) {
    std::vector<int64_t> sizes;
    for (const Dim& d : input.shape()) sizes.push_back(d.size);
    Array array(input.dtype(), input.shape().names(), sizes);
    const bool scores = !model.logits.empty() && model.logits.shape().rank() > 0;
    const int64_t classes = scores ? model.logits.shape().dims().back().size : 2;
    for (int64_t i = 0; i < array.elements(); ++i) {
      uint64_t h = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull +
                   static_cast<uint64_t>(step) * 0xD1B54A32D192ED03ull;
      h ^= h >> 29;
      h *= 0xBF58476D1CE4E5B9ull;
      h ^= h >> 32;
      if (input.dtype() == DType::int32)
        array.data<int32_t>()[i] = static_cast<int32_t>(h % static_cast<uint64_t>(classes));
      if (input.dtype() == DType::float32)
        array.data<float>()[i] = static_cast<float>(h % 1000) / 1000.0f;
      if (input.dtype() == DType::float64)
        array.data<double>()[i] = static_cast<double>(h % 1000) / 1000.0;
    }
    session.feed(input.name(), array);
  }
}

namespace {

/// The results of one run.
struct Outcome {
  std::vector<double> losses;
  std::vector<Array> gradients, parameters;  ///< gradients of the last step
};

Outcome run(const Job& job, const Mesh& mesh, const Layout& layout, int64_t steps,
            const std::string& device, Cluster& cluster) {
  Trainer t;
  build_trainer(job, t, true);
  CompileOptions options{mesh, layout, t.functions,
                         static_cast<uint64_t>(job.config.integer("train.seed")), threads_of(job)};
  options.device = device;
  Session session(t.graph, cluster, options);
  start_parameters(job, session);
  Outcome outcome;
  for (int64_t step = 0; step < steps; ++step) {
    session.set_step(step);
    feed_examples(session, t.model, step);
    feed_scalar(session, t.lr, learning_rate(job, step));
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar(t.model.loss.name()));
  }
  for (const Tensor& g : t.minimized.gradients)
    outcome.gradients.push_back(session.fetch(g.name()));
  for (const Tensor& p : t.graph.parameters())
    outcome.parameters.push_back(session.fetch(p.name()));
  return outcome;
}

double norm(const std::vector<Array>& arrays) {
  double sum = 0;
  for (const Array& a : arrays) {
    for (int64_t i = 0; i < a.elements(); ++i) sum += a.at(i) * a.at(i);
  }
  return std::sqrt(sum);
}

double worst(const std::vector<Array>& a, const std::vector<Array>& b) {
  const double floor = 1e-4 * norm(b);
  double result = 0;
  for (size_t k = 0; k < b.size(); ++k) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < b[k].elements(); ++i) {
      difference += (a[k].at(i) - b[k].at(i)) * (a[k].at(i) - b[k].at(i));
      size += b[k].at(i) * b[k].at(i);
    }
    const double relative = std::sqrt(difference) / std::max(std::sqrt(size), floor);
    result = std::max(result, std::isnan(relative) ? INFINITY : relative);
  }
  return result;
}

double worst_loss(const std::vector<double>& a, const std::vector<double>& b) {
  double result = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double relative = std::abs(a[i] - b[i]) / std::abs(b[i]);
    result = std::max(result, std::isnan(relative) ? INFINITY : relative);
  }
  return result;
}

struct Worst {
  double value = 0;
  std::string layout = "";
  void see(double v, const std::string& l) {
    if (v > value || layout.empty()) value = v, layout = l;
  }
};

/// If --layout is given, only that.
std::vector<Layout> layouts_of(const Arguments& args, const Job& job) {
  if (args.layouts == "all" && !args.layout.empty()) return {job.layout};
  if (args.layouts == "all") {
    Trainer t;
    build_trainer(job, t, true);
    return legal_layouts(t.graph, job.mesh, t.functions);
  }
  std::vector<Layout> result;
  for (const std::string& line : layouts_in(args.layouts)) result.push_back(Layout::parse(line));
  return result;
}

/// The job for the reference on one rank: for a planned layout, without the planner's choices.
Job reference_of(const Arguments& args, const std::vector<ModelSpec>& models, const Job& job) {
  Job asked = resolve_without_plan(args, models, true);
  if (!is_automatic(asked.layout)) return job;
  for (const auto& [key, plain] : {std::pair{"train.recompute", "none"},
                                   {"train.reshard_after_forward", "none"},
                                   {"train.microbatches", "1"}}) {
    if (asked.config.text(key) == "auto") asked.config.set(key, plain);
  }
  return asked;
}

/// For 16-bit types 16 units of rounding: docs/explanation/precision.md.
double default_tolerance(const std::string& dtype) {
  if (dtype == "float64") return 1e-10;
  if (dtype == "float32") return 1e-5;
  return dtype == "float16" ? 16.0 / 2048 : 16.0 / 256;
}

}  // namespace

int verify(const Arguments& args, const std::vector<ModelSpec>& models) {
  require_place_for(args.json);
  const Job job = resolve(args, models, true);
  const int64_t steps = args.steps > 0 ? args.steps : 3;
  const std::string& dtype = job.config.text("train.dtype");
  const bool wide = dtype == "float64";
  const double tolerance = args.tolerance >= 0 ? args.tolerance : default_tolerance(dtype);
  const std::vector<Layout> layouts = layouts_of(args, job);
  Cluster single = Cluster::threads(1);
  const Outcome reference =
      run(reference_of(args, models, job), Mesh::parse("one:1"), Layout(), steps, "cpu", single);
  Cluster cluster = make_cluster(job, args);
  const Watchdog watchdog(cluster, args.timeout);
  Worst loss, gradient, parameter;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Outcome outcome = run(job, job.mesh, layouts[i], steps, job.device, cluster);
    const std::string text = layouts[i].to_string();
    loss.see(worst_loss(outcome.losses, reference.losses), text);
    gradient.see(worst(outcome.gradients, reference.gradients), text);
    parameter.see(worst(outcome.parameters, reference.parameters), text);
  }
  // Several steps of Adam amplify a parameter's own rounding, so float32 parameters get ten times
  // the tolerance.
  const bool ok = loss.value <= tolerance && gradient.value <= tolerance &&
                  parameter.value <= (wide ? 1 : 10) * tolerance;
  if (cluster.is_root()) {
    say("{} layouts of mesh {}, {} steps, {}\n", layouts.size(), job.mesh.to_string(), steps,
        job.config.text("train.dtype"));
    say("largest relative difference from one rank on the CPU:\n  loss      {:.3e}  ({})\n  "
        "gradient  {:.3e}  "
        "({})\n"
        "  parameter {:.3e}  ({})\n{} (tolerance {:g})\n",
        loss.value, loss.layout, gradient.value, gradient.layout, parameter.value, parameter.layout,
        ok ? "equal" : "NOT EQUAL", tolerance);
  }
  if (cluster.is_root()) {
    const nlohmann::json report = {{"layouts", layouts.size()},
                                   {"steps", steps},
                                   {"max_rel_loss", json_number(loss.value)},
                                   {"worst_loss", loss.layout},
                                   {"max_rel_grad", json_number(gradient.value)},
                                   {"worst_grad", gradient.layout},
                                   {"max_rel_param", json_number(parameter.value)},
                                   {"worst_param", parameter.layout},
                                   {"equal", ok}};
    write_report(args.json, report);
  }
  return ok ? 0 : 1;
}

}  // namespace tessera::cli
