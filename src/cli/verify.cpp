// verify: runs the same few training steps on one rank and under every legal layout, and those that
// the model's documentation names. Losses, gradients and parameters are compared by
// L2(a - b) / max(L2(b), share * L2(all b)), not element by element. The share is 1e-4, or more
// where the tolerance would ask for less than one unit of rounding of L2(all b).
//
// Where exact arithmetic gives a gradient of 0, as to the queries of a single position, what is
// left is rounding. An optimizer that scales by a gradient's size makes whole steps of it, so such
// a parameter is not compared.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "cli/choices.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/watchdog.h"
#include "pages/page.h"
#include "tessera/explain.h"

namespace tessera::cli {

void feed_examples(Session& session, const nn::Model& model, int64_t step) {
  for (const Tensor& input : model.inputs) {
    std::vector<int64_t> sizes;
    for (const Dim& d : input.shape()) sizes.push_back(d.size);
    Array array(input.dtype(), input.shape().names(), sizes);
    const bool scores = !model.logits.empty() && model.logits.shape().rank() > 0;
    const int64_t classes = scores ? model.logits.shape().dims().back().size : 2;
    const int64_t length = sizes.empty() ? 1 : sizes.back();
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
    // Of packed windows, which have two texts.
    for (int64_t i = 0; input.name() == "segments" && i < array.elements(); ++i)
      array.data<int32_t>()[i] = static_cast<int32_t>(1 + i % length * 2 / length);
    for (int64_t i = 0; input.name() == "positions" && i < array.elements(); ++i)
      array.data<int32_t>()[i] = static_cast<int32_t>(i % length);
    session.feed(input.name(), array);
  }
}

namespace {

struct VerifyFlags : ModelFlags, ReportFlags {
  std::string layouts = "all";
  int64_t steps = 3;
  double tolerance = -1;
  void declare(FlagTable& table) {
    ModelFlags::declare(table);
    table.add({batch_flag(sets),
               recompute_flag(sets),
               {"--layouts all|documented|FILE", &layouts, kAgree,
                "Layouts to verify: all (the legal ones, and those that the model's documentation "
                "names), documented (only the latter), or a file with one layout a line."},
               {"--steps", &steps, kAgree, "Number of training steps (3).", whole_number(1)},
               {"--tolerance", &tolerance, kAgree,
                "Largest relative difference (1e-10 in float64, 1e-5 in float32, 16 units of "
                "rounding in 16 bits, 0.25 in float8).",
                finite_number(0)},
               dtype_flag(sets),
               init_flag(keys)});
    ReportFlags::declare(table);
  }
};

/// The results of one run.
struct Outcome {
  std::vector<double> losses;
  std::vector<Array> first_gradients, gradients, parameters;  ///< of the first and last step
  std::vector<int> gradient_of;                               ///< by parameter; -1: not trained
  std::vector<std::vector<Chosen>> choices;                   ///< of each step; 16-bit types only
  bool hidden_choices = false;                                ///< a loop chooses; 16-bit types only
};

Outcome run(const Job& job, const Mesh& mesh, const Layout& layout, int64_t steps,
            const std::string& device, Cluster& cluster) {
  Trainer t;
  build_trainer(job, t, true);
  std::vector<ChoiceNode> nodes;
  const bool narrow = is_narrow(job.config);
  if (narrow) nodes = choices_in(t.graph);
  for (const ChoiceNode& node : nodes) {
    for (const Tensor& x : {node.scores, node.indices}) t.functions[0].outputs.push_back(x);
  }
  CompileOptions options{mesh, layout, t.functions,
                         static_cast<uint64_t>(job.config.integer("train.seed")), threads_of(job)};
  options.device = device;
  options.pipeline_schedule = options_of(job, t).pipeline_schedule;
  Session session(t.graph, cluster, options);
  start_parameters(job, session);
  Outcome outcome;
  outcome.hidden_choices = narrow && has_choices_in_loops(t.graph);
  for (int64_t step = 0; step < steps; ++step) {
    session.set_step(step);
    feed_examples(session, t.model, step);
    feed_scalar(session, t.lr, learning_rate(job, step));
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar(t.model.loss.name()));
    for (const Tensor& g : t.minimized.gradients) {
      if (step == 0) outcome.first_gradients.push_back(session.fetch(g.name()));
      if (step == steps - 1) outcome.gradients.push_back(session.fetch(g.name()));
    }
    std::vector<Chosen>& chosen = outcome.choices.emplace_back();
    for (const ChoiceNode& node : nodes)
      chosen.push_back({node.indices.name(), node.dim, session.fetch(node.scores.name()),
                        session.fetch(node.indices.name())});
  }
  for (const Tensor& p : t.graph.parameters()) {
    outcome.parameters.push_back(session.fetch(p.name()));
    const std::vector<Tensor>& gradients = t.minimized.gradients;
    const auto own = std::find_if(gradients.begin(), gradients.end(),
                                  [&](const Tensor& g) { return g.name() == p.name() + ".grad"; });
    outcome.gradient_of.push_back(
        own == gradients.end() ? -1 : static_cast<int>(own - gradients.begin()));
  }
  return outcome;
}

double norm(const std::vector<Array>& arrays) {
  double sum = 0;
  for (const Array& a : arrays) {
    for (int64_t i = 0; i < a.elements(); ++i) sum += a.at(i) * a.at(i);
  }
  return std::sqrt(sum);
}

/// One unit of rounding of a type that tolerances of less than 1e-4 are for.
double rounding_of(DType dtype) {
  return dtype == DType::float64 ? 0x1p-52 : dtype == DType::float32 ? 0x1p-23 : 0;
}

/// counts: of each array, whether it is compared; empty: all are.
double worst(const std::vector<Array>& a, const std::vector<Array>& b, double tolerance,
             const std::vector<bool>& counts = {}) {
  if (b.empty()) return 0;
  const double rounding = tolerance > 0 ? rounding_of(b[0].dtype) / tolerance : 0,
               floor = std::clamp(rounding, 1e-4, 5e-2) * norm(b);
  double result = 0;
  for (size_t k = 0; k < b.size(); ++k) {
    if (!counts.empty() && !counts[k]) continue;
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

/// By parameter: false where all of the gradient is within a unit of rounding of all gradients.
std::vector<bool> determined(const Outcome& reference) {
  const auto is_rounding = [](const std::vector<Array>& gradients, size_t k) {
    return norm({gradients[k]}) <= rounding_of(gradients[k].dtype) * norm(gradients);
  };
  std::vector<bool> result;
  for (const int gradient : reference.gradient_of) {
    const auto k = static_cast<size_t>(gradient);
    result.push_back(gradient < 0 || !is_rounding(reference.first_gradients, k) ||
                     !is_rounding(reference.gradients, k));
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
    if (v > value || layout.empty()) value = std::max(v, value), layout = l;
  }
};

/// Choices that fell otherwise than on one rank, over all layouts.
struct Flipped {
  int64_t layouts = 0;
  int64_t step = 0;  ///< the earliest, from 0
  double margin = 0;
  std::string name = "", layout = "";  ///< of the largest margin
};

/// The largest differences of any layout from one rank.
struct Agreement {
  Worst loss, first_gradient, gradient, parameter;
  Flipped flips;

  void see(const Agreement& other, const std::string& layout) {
    loss.see(other.loss.value, layout);
    first_gradient.see(other.first_gradient.value, layout);
    gradient.see(other.gradient.value, layout);
    parameter.see(other.parameter.value, layout);
    if (other.flips.layouts == 0) return;
    flips.step = flips.layouts == 0 ? other.flips.step : std::min(flips.step, other.flips.step);
    if (flips.layouts++ > 0 && other.flips.margin <= flips.margin) return;
    flips.margin = other.flips.margin;
    flips.name = other.flips.name;
    flips.layout = layout;
  }

  /// Adam amplifies a gradient's own rounding. So parameters and the gradients of later steps get
  /// ten times the tolerance, but for those of float64.
  bool is_equal(double tolerance, const Config& config) const {
    const double updated = (config.text("train.dtype") == "float64" ? 1 : 10) * tolerance;
    return loss.value <= tolerance && first_gradient.value <= tolerance &&
           gradient.value <= updated && parameter.value <= updated && flips.margin <= tolerance;
  }
};

/// From a step on in which choices fell otherwise only the loss of that step is compared, and may
/// differ by the share of the choices besides.
Agreement compare(const Outcome& outcome, const Outcome& reference, double tolerance) {
  Agreement found;
  std::vector<double> a, b;
  for (size_t step = 0; step < reference.losses.size(); ++step) {
    const Flips flip = flips_of(reference.choices[step], outcome.choices[step]);
    if (!flip.name.empty()) {
      const double share = static_cast<double>(flip.count) / static_cast<double>(flip.of),
                   difference = worst_loss({outcome.losses[step]}, {reference.losses[step]});
      found.loss.see(std::max(worst_loss(a, b), difference * tolerance / (tolerance + share)), "");
      found.flips = {1, static_cast<int64_t>(step), flip.margin, flip.name};
      return found;
    }
    a.push_back(outcome.losses[step]);
    b.push_back(reference.losses[step]);
    if (step == 0)
      found.first_gradient.see(worst(outcome.first_gradients, reference.first_gradients, tolerance),
                               "");
  }
  found.loss.see(worst_loss(a, b), "");
  found.gradient.see(worst(outcome.gradients, reference.gradients, tolerance), "");
  found.parameter.see(
      worst(outcome.parameters, reference.parameters, tolerance, determined(reference)), "");
  return found;
}

std::string flips_text(const Flipped& flips, size_t layouts, double tolerance) {
  const std::string which =
      fmt::format("{} of {} layouts chose otherwise than one rank, from step {} on", flips.layouts,
                  layouts, flips.step + 1);
  const std::string margin = fmt::format("the scores of '{}' differ by {:.3e} ({})", flips.name,
                                         flips.margin, flips.layout);
  return flips.margin <= tolerance
             ? fmt::format("{}, near a tie: {} at most; they are compared up to there", which,
                           margin)
             : fmt::format("{}, and not near a tie: {}", which, margin);
}

/// A layout as it was written.
struct Written {
  std::string text;
  Layout layout;
};

/// Those of the model's documentation whose axes the mesh has.
std::vector<Written> documented_layouts(const Job& job) {
  std::vector<Written> result;
  for (const std::string& text : job.spec->documented) {
    Layout layout = Layout::parse(text);
    const auto& rules = layout.rules();
    const bool fits = std::all_of(rules.begin(), rules.end(), [&](const LayoutRule& rule) {
      return std::all_of(rule.axes.begin(), rule.axes.end(),
                         [&](const std::string& axis) { return job.mesh.find(axis) >= 0; });
    });
    if (fits) result.push_back({text, std::move(layout)});
  }
  return result;
}

/// The legal ones and those of the documentation.
std::vector<Written> all_layouts(const Job& job) {
  Trainer t;
  build_trainer(job, t, true);
  std::vector<Written> result;
  std::set<std::string> known;
  for (Layout& layout : legal_layouts(t.graph, job.mesh, t.functions)) {
    const std::string text = layout.to_string();
    known.insert(text);
    result.push_back({text, std::move(layout)});
  }
  for (Written& written : documented_layouts(job)) {
    if (known.insert(written.layout.to_string()).second) result.push_back(std::move(written));
  }
  return result;
}

/// If --layout is given, only that.
std::vector<Written> layouts_of(const VerifyFlags& args, const Job& job) {
  if (args.layouts == "all" && !args.layout.empty()) return {{job.layout.to_string(), job.layout}};
  if (args.layouts == "all") return all_layouts(job);
  std::vector<Written> result;
  if (args.layouts == "documented") {
    result = documented_layouts(job);
    const auto& documented = job.spec->documented;
    TESSERA_REQUIRE(
        !result.empty(), "the documentation of {} names no layout for the axes of mesh '{}'{}",
        job.spec->name, job.mesh.to_string(),
        documented.empty() ? ""
                           : fmt::format("; it names '{}', so name the axes of --mesh so",
                                         fmt::join(documented, "', '")));
    return result;
  }
  for (const std::string& line : layouts_in(args.layouts))
    result.push_back({line, Layout::parse(line)});
  return result;
}

/// The job for the reference on one rank: for a planned layout, without the planner's choices.
Job reference_of(const VerifyFlags& args, const std::vector<ModelSpec>& models, const Job& job) {
  Job asked = resolve_without_plan(args, models, true);
  if (!is_automatic(asked.layout)) return job;
  for (const auto& [key, plain] : {std::pair{"train.recompute", "none"},
                                   {"train.reshard_after_forward", "none"},
                                   {"train.microbatches", "1"}}) {
    if (asked.config.text(key) == "auto") asked.config.set(key, plain);
  }
  return asked;
}

/// For 16-bit types 16 units of rounding: docs/explanation/precision.md. For float8 two of e5m2.
double tolerance_of(const std::string& dtype) {
  if (dtype == "float64") return 1e-10;
  if (dtype == "float32") return 1e-5;
  if (dtype == "float8") return 2.0 / 8;
  return dtype == "float16" ? 16.0 / 2048 : 16.0 / 256;
}

/// That of the type which values are computed in, or of 16 bits that parameters are rounded to.
double default_tolerance(const Config& config) {
  const double computed = tolerance_of(config.text("train.dtype"));
  if (!is_narrow(config)) return computed;
  return std::max(computed, tolerance_of(config.text("train.parameters")));
}

/// A loss scale under which one rank overflows leaves nothing to compare.
void require_gradients(const Outcome& reference, const Job& job) {
  for (const Array& g : reference.first_gradients) {
    for (int64_t i = 0; i < g.elements(); ++i)
      TESSERA_REQUIRE(
          std::isfinite(g.at(i)),
          "the gradients of the first step overflow on one rank (train.dtype {}, "
          "train.loss_scale {}): there is nothing to compare; give a smaller scale, as --set "
          "loss_scale=1024",
          job.config.text("train.dtype"), job.config.text("train.loss_scale"));
  }
}

std::string page_of(const Job& job, const nlohmann::json& report, double tolerance) {
  pages::Page page(fmt::format("{}: layouts against one rank", job.spec->name),
                   fmt::format("{} layouts of mesh {}, {} step{}, {}, tolerance {:g}",
                               report["layouts"].get<int64_t>(), job.mesh.to_string(),
                               report["steps"].get<int64_t>(), report["steps"] == 1 ? "" : "s",
                               job.config.text("train.dtype"), tolerance));
  nlohmann::json rows = report["by_layout"];
  int64_t different = 0;
  std::vector<double> x, y;
  nlohmann::json tips = nlohmann::json::array();
  for (auto& row : rows) {
    different += !row["equal"].get<bool>();
    // On a scale of logarithms 0 has no place: it is shown as less than any rounding.
    const auto worst = row["gradient"];
    x.push_back(static_cast<double>(x.size() + 1));
    y.push_back(worst.is_number() ? std::max(worst.get<double>(), 1e-17) : NAN);
    tips.push_back(row["layout"].get<std::string>().empty() ? "nothing split"
                                                            : row["layout"].get<std::string>());
    row["equal"] = row["equal"].get<bool>() ? "equal" : "NOT EQUAL";
    row["flipped"] = row["flipped"].get<bool>() ? "yes" : "";
    if (row["layout"] == "") row["layout"] = "nothing split";
  }
  page.cards({{std::to_string(rows.size()), "layouts"},
              {std::to_string(different), "differ from one rank"},
              {pages::with_unit(tolerance, "#"), "tolerance"}});
  if (different > 0) page.note(fmt::format("{} layouts are NOT EQUAL to one rank.", different));
  page.section("differences", "Largest differences");
  page.chart(
      {{"kind", "xy"},
       {"title", "largest relative difference of a gradient, by layout"},
       {"about", "Values below 1e-17 are shown there."},
       {"xs", {{{"key", "n"}, {"label", "layout, in the order of the table"}, {"unit", "#"}}}},
       {"y", {{"label", "difference"}, {"unit", ""}, {"log", true}}},
       {"series",
        {{{"name", "layout"},
          {"points", true},
          {"x", {{"n", x}}},
          {"y", pages::numbers(y)},
          {"tips", tips}}}},
       {"hlines", {{{"at", tolerance}, {"label", "tolerance"}}}}});
  page.section("layouts", "Layouts");
  page.table(
      "layout: layout | equal: result | loss: loss [#] | gradient: gradient [#] | "
      "parameter: parameter [#] | flipped: chose otherwise near a tie",
      rows, "No layout was compared.");
  return page.html();
}

int run_verify(const VerifyFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  require_writable(args.html);
  const Job job = resolve(args, models, true);
  const int64_t steps = args.steps;
  const std::string& dtype = job.config.text("train.dtype");
  const double tolerance = args.tolerance >= 0 ? args.tolerance : default_tolerance(job.config);
  const std::vector<Written> layouts = layouts_of(args, job);
  TESSERA_REQUIRE(
      job.mesh.size() > 1 || job.device != "cpu",
      "mesh '{}' has one rank, so there is nothing to compare with one rank on the CPU; give "
      "more ranks, as --mesh \"data:2;model:2\"",
      job.mesh.to_string());
  Cluster single = Cluster::threads(1);
  const Outcome reference =
      run(reference_of(args, models, job), Mesh::parse("one:1"), Layout(), steps, "cpu", single);
  if (is_narrow(job.config)) require_gradients(reference, job);
  Cluster cluster = make_cluster(job, args);
  const Watchdog watchdog(cluster, args.timeout);
  Agreement all;
  nlohmann::json rows = nlohmann::json::array();
  for (const Written& written : layouts) {
    const Agreement found = compare(run(job, job.mesh, written.layout, steps, job.device, cluster),
                                    reference, tolerance);
    all.see(found, written.layout.to_string());
    rows.push_back({{"layout", written.text},
                    {"equal", found.is_equal(tolerance, job.config)},
                    {"flipped", found.flips.layouts > 0},
                    {"loss", json_number(found.loss.value)},
                    {"gradient", json_number(found.gradient.value)},
                    {"parameter", json_number(found.parameter.value)}});
  }
  const auto& [loss, first_gradient, gradient, parameter, flips] = all;
  const bool ok = all.is_equal(tolerance, job.config);
  if (cluster.is_root()) {
    say("{} layouts of mesh {}, {} step{}, {}\n", layouts.size(), job.mesh.to_string(), steps,
        steps == 1 ? "" : "s", dtype);
    if (flips.layouts > 0) say("{}\n", flips_text(flips, layouts.size(), tolerance));
    say("largest relative difference from one rank on the CPU:\n"
        "  loss      {:.3e}  ({})\n"
        "  gradient  {:.3e}  ({}), of the first step {:.3e}\n"
        "  parameter {:.3e}  ({})\n{} (tolerance {:g})\n",
        loss.value, layout_text(loss.layout), gradient.value, layout_text(gradient.layout),
        first_gradient.value, parameter.value, layout_text(parameter.layout),
        ok ? "equal" : "NOT EQUAL", tolerance);
    if (!ok && reference.hidden_choices)
      say("the model chooses (argmax, top_k) inside of a loop, where a choice that fell otherwise "
          "is not told from an error; build it without loops (--set scan=false microbatches=1), or "
          "compare in float32\n");
  }
  if (cluster.is_root()) {
    const nlohmann::json report = {{"layouts", layouts.size()},
                                   {"steps", steps},
                                   {"max_rel_loss", json_number(loss.value)},
                                   {"worst_loss", loss.layout},
                                   {"max_rel_first_grad", json_number(first_gradient.value)},
                                   {"max_rel_grad", json_number(gradient.value)},
                                   {"worst_grad", gradient.layout},
                                   {"max_rel_param", json_number(parameter.value)},
                                   {"worst_param", parameter.layout},
                                   {"flipped_layouts", flips.layouts},
                                   {"max_flip_margin", json_number(flips.margin)},
                                   {"equal", ok},
                                   {"by_layout", rows}};
    write_report(args.json, report);
    if (!args.html.empty()) write_text_file(args.html, page_of(job, report, tolerance));
  }
  return ok ? 0 : 1;
}

}  // namespace

Command verify_command() {
  return command("verify", "Trains under every legal layout and compares with one rank.",
                 "tessera verify gpt --mesh \"a:2;b:2;c:2\" --steps 20 --dtype float64",
                 Processes::all, run_verify);
}

}  // namespace tessera::cli
