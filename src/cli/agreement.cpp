// Losses, gradients and parameters are compared by L2(a - b) / max(L2(b), share * L2(all b)), not
// element by element. The share is 1e-4, or more where the tolerance would ask for less than one
// unit of rounding of L2(all b).
//
// Where exact arithmetic gives a gradient of 0, as to the queries of a single position, what is
// left is rounding. An optimizer that scales by a gradient's size makes whole steps of it, so such
// a parameter is not compared.
#include "cli/agreement.h"

#include <algorithm>

#include "base/fail.h"
#include "tessera/inspect.h"

namespace tessera::cli {

Outcome train_some(const Job& job, const Mesh& mesh, const Layout& layout, int64_t steps,
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
  options.strict_chunks = strict_chunks_of(job.config);
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
  outcome.state_hash = state_hash(session).all;
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

namespace {

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

}  // namespace

void Agreement::see(const Agreement& other, const std::string& layout) {
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

bool Agreement::is_equal(double tolerance, const Config& config) const {
  const double updated = (config.text("train.dtype") == "float64" ? 1 : 10) * tolerance;
  return loss.value <= tolerance && first_gradient.value <= tolerance &&
         gradient.value <= updated && parameter.value <= updated && flips.margin <= tolerance;
}

Agreement agreement_of(const Outcome& outcome, const Outcome& reference, double tolerance) {
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

}  // namespace tessera::cli
