// The graph has no microbatches and recomputes nothing: both only cost time, and less so the less
// there is to move. Its cost is that of steps one after the other, nothing fused and nothing
// hidden, for the plan and for the optimum alike. What fusion and overlap make of both is asked
// afterwards, of the Programs with the rules that the optimum suggests.
#include "plan/tensor_proof.h"

#include <algorithm>

#include "base/fail.h"
#include "compile/kernel_info.h"
#include "lower/lower.h"
#include "plan/scoped_rules.h"
#include "plan/shared_work.h"
#include "plan/tensor_layouts/least_step.h"
#include "tessera/storage.h"

namespace tessera {

namespace {

constexpr size_t kRules = 8;         ///< that are written of an optimum
constexpr double kSaved = 0.001;     ///< share of the plan's cost that an optimum must save
constexpr double kPays = 0.02;       ///< share of the plan's time that its rules must save
constexpr double kProofShare = 0.2;  ///< of the search's time limit, for each of four parts
constexpr int kMostAxes = 2;         ///< that split something

}  // namespace

/// Why the layouts of a plan's tensors are not examined; "" if they are.
std::string TensorProof::unfit(const PricedCandidate& best) const {
  for (const LayoutRule& rule : candidates_.options().layout.rules()) {
    if (!rule.automatic) return fmt::format("every plan keeps the given rule '{}'", rule.text);
  }
  if (candidates_.has_stages(best.candidate.assignment)) return "its layers are in stages";
  int axes = 0;
  for (const MeshAxis& axis : best.plan.mesh.axes()) axes += axis.size > 1;
  if (axes == 0) return "there is one rank";
  if (axes > kMostAxes) return "its mesh has more than two axes";
  const Layout layout = Layout::parse(best.plan.layout);
  for (const LayoutRule& rule : layout.rules()) {
    if (rule.intervals != 1) return fmt::format("'{}' asks for equal work", rule.text);
  }
  return "";
}

TensorProof::Models TensorProof::models() {
  const PlanModel& model = candidates_.model();
  PlanBuild build{model.layers, "none", "none", 1};
  build.unrolled = model.is_loop && model.layers > 1;  // one or two of many layers, not all
  if (model.layers < 2) {
    const PlanStep& all = candidates_.pricer().built(build);
    return {&all, &all, 1};
  }
  build.layers = 2;
  const PlanStep& two = candidates_.pricer().built(build);
  build.layers = 1;
  return {&candidates_.pricer().built(build), &two, model.layers};
}

namespace {

/// All rules of a plan. Rules of storage name tensors, which have other names where layers are a
/// loop.
std::string layout_of(const PricedPlan& plan, const PlanStep& step) {
  if (plan.over.empty()) return plan.rules;
  return joined(plan.rules, storage_rules(*step.graph, plan.mesh, Layout::parse(plan.rules),
                                          plan.zero, plan.over));
}

double all_of(const ByPhase<PlacedTimes>& times) {
  double seconds = 0;
  for (const PlacedTimes& t : times) seconds += t.all_kernels();
  return seconds;
}

}  // namespace

/// The time of the plan's steps, one after the other.
double TensorProof::sum_of(const Models& models, const PricedPlan& plan) const {
  const Costs costs(candidates_.machine(), plan.mesh);
  const auto sum = [&](const PlanStep& step) {
    LowerOptions options{
        plan.mesh, Layout::parse(layout_of(plan, step)), step.functions, composite_kernels(), {},
        {}};
    options.init = options.fuse = options.overlap = false;
    options.bucket_bytes = 0;
    const Program program = lower(*step.graph, options);
    return step_sum(program.functions[0], costs);
  };
  const double one = sum(*models.one);
  return models.one == models.two
             ? one
             : one + static_cast<double>(models.layers - 1) * (sum(*models.two) - one);
}

/// Sums by phase of the whole model, from one layer and from two.
ByPhase<PlacedTimes> TensorProof::of_all_layers(
    const Models& models, const std::function<ByPhase<PlacedTimes>(const PlanStep&)>& sum) {
  ByPhase<PlacedTimes> all = sum(*models.one);
  if (models.one == models.two) return all;
  const auto more = static_cast<double>(models.layers - 1);
  const ByPhase<PlacedTimes> two = sum(*models.two);
  for (size_t p = 0; p < all.size(); ++p) {
    for (auto& [links, seconds] : all[p].kernels) seconds *= 1 - more;
    for (const auto& [links, seconds] : two[p].kernels) all[p].kernels[links] += more * seconds;
  }
  return all;
}

/// Seconds of compute steps that are no kernels, in equal shares, fused as one rank may or as the
/// plan's ranks do, whichever takes less: steps are merged greedily, so that one rank, which could
/// merge most, may store more than ranks that wait for each other in between.
ByPhase<PlacedTimes> TensorProof::shared(const Models& models, const LayoutProblem& problem,
                                         const PricedPlan& plan) const {
  const auto place_of = [&](const std::string& name) { return problem.order().of(name); };
  const Place anywhere = problem.order().anywhere();
  const Mesh one = Mesh::parse("all:1");
  const Costs costs(candidates_.machine(), one), costs_there(candidates_.machine(), plan.mesh);
  ByPhase<PlacedTimes> shares = of_all_layers(models, [&](const PlanStep& step) {
    const Program program = on_one_rank(step, candidates_.model());
    return shared_sum(program, program.functions[0], costs, plan.mesh.size(), {}, place_of,
                      anywhere);
  });
  const ByPhase<PlacedTimes> own = of_all_layers(models, [&](const PlanStep& step) {
    const Program program =
        candidates_.pricer().lowered(plan.mesh, layout_of(plan, step), step, false);
    return shared_sum(program, program.functions[0], costs_there, 1, {}, place_of, anywhere);
  });
  const double least = std::min(all_of(own), all_of(shares));
  if (least >= all_of(shares)) return shares;
  const double scale = least / all_of(shares);
  for (PlacedTimes& times : shares) {
    for (auto& [links, seconds] : times.kernels) seconds *= scale;
  }
  return shares;
}

void TensorProof::run() {
  if (!found_.has_best()) return;
  const PricedCandidate best = found_.best();
  result_.left_out = unfit(best);
  if (!result_.left_out.empty()) return;
  try {
    const Models models = this->models();
    if (models.one->functions.size() != 1) {
      result_.left_out = "the model has several functions";
      return;
    }
    compare(best, models);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage && e.kind() != ErrorKind::unsupported) throw;
    result_ = {};
    result_.left_out = e.what();
  }
}

void TensorProof::compare(const PricedCandidate& best, const Models& models) {
  const Graph& graph = *models.one->graph;
  const Mesh& mesh = best.plan.mesh;
  const Costs costs(candidates_.machine(), mesh);
  Repeats repeats;
  if (models.layers > 1) repeats = repeats_of(graph, *models.two->graph, models.layers);
  LayoutProblem problem(graph, models.one->functions[0], costs, composite_kernels(), repeats);
  const PricedPlan& p = best.plan;
  if (memory_.bytes() > 0)
    problem.problem().limit =
        std::max(p.params + p.state, memory_.bytes() - p.inputs - p.transient);
  solver::Options options;
  options.seconds = kProofShare * candidates_.options().seconds;
  const double until = clock_.seconds() + 2 * options.seconds;
  const solver::Solution solution = solver::solve(problem.problem(), options);
  result_.tensors = static_cast<int64_t>(problem.values().size());
  result_.ops = static_cast<int64_t>(problem.flat().ops.size());
  result_.planned = sum_of(models, p);
  result_.least = std::min(result_.planned, LayoutProblem::seconds(solution.cost));
  result_.bound = LayoutProblem::seconds(solution.bound);
  const bool saves = result_.least <= (1 - kSaved) * result_.planned;
  problem.problem().limit.reset();  // other layouts may need less memory for other things
  const ByPhase<PlacedTimes> shares = shared(models, problem, p);
  const LeastStep least =
      least_step(problem, costs, shares, std::max(options.seconds, until - clock_.seconds()));
  result_.floor = least.seconds;
  result_.mesh = mesh;
  const auto try_choice = [&](const std::vector<int>& choice) {
    if (choice.empty()) return;
    try_rules(best, rules_towards(graph, mesh, p.rules, wanted(problem, repeats, choice), kRules));
  };
  if (saves) try_choice(solution.choice);
  try_choice(least.choice);
  result_.planned = sum_of(models, found_.best().plan);
  result_.least = std::min(result_.planned, LayoutProblem::seconds(solution.cost));
}

/// See CandidatePricer::scale_of().
double TensorProof::scale() {
  PricedCandidate plain = found_.best();
  if (!candidates_.pricer().is_looped()) return 1;
  plain.candidate.scoped.clear();
  plain.plan = pricer_.price(plain.candidate, false);
  return pricer_.scale_of(plain);
}

/// The layouts that a choice gives the tensors that rules can name.
std::vector<WantedLayout> TensorProof::wanted(const LayoutProblem& problem, const Repeats& repeats,
                                              const std::vector<int>& choice) const {
  const bool with_stored = found_.best().candidate.storage.stage == 0;
  std::vector<WantedLayout> wanted;
  const Graph& graph = problem.graph();
  for (const int v : problem.values()) {
    const FlatValue& value = problem.flat().values[static_cast<size_t>(v)];
    // Rules in force name the values of the graph; how tensors are stored is a candidate's own.
    if (value.of < 0 || value.shape.rank() == 0) continue;
    if (graph.value(value.of).purpose != Purpose::none && !with_stored) continue;
    const auto node = static_cast<size_t>(graph.value(value.of).node);
    const double copies = repeats.of_node.empty() ? 1 : static_cast<double>(repeats.of_node[node]);
    wanted.push_back({value.of, problem.layout(choice, v),
                      copies * static_cast<double>(value.shape.elements() * size_of(value.dtype))});
  }
  return wanted;
}

/// Prices the plan with the first of the rules, with the first two, and so on. The fastest that
/// pays becomes the plan.
void TensorProof::try_rules(const PricedCandidate& plain, const std::vector<std::string>& rules) {
  std::vector<Candidate> with_rules;
  std::string more;
  for (const std::string& rule : rules) {
    more = joined(more, rule);
    with_rules.push_back(plain.candidate);
    with_rules.back().scoped = joined(plain.candidate.scoped, more);
  }
  const double until = clock_.seconds() + kProofShare * candidates_.options().seconds;
  const double scale = this->scale();
  result_.before = plain.plan.seconds;
  for (PricedCandidate& p : pricer_.price_scaled(with_rules, scale, until)) {
    if (result_.simulated > 0 && p.plan.seconds >= result_.simulated) continue;
    result_.simulated = p.plan.seconds;
    const size_t own = plain.candidate.scoped.empty() ? 0 : plain.candidate.scoped.size() + 1;
    result_.rules = p.candidate.scoped.substr(own);
    if (!memory_.fits(p.plan) || p.plan.seconds >= (1 - kPays) * found_.best_seconds()) continue;
    found_.add_best(std::move(p));
  }
}

}  // namespace tessera
