#include "plan/candidates.h"

#include <algorithm>
#include <bit>

#include "base/fail.h"
#include "tessera/pipeline_schedules.h"
#include "tessera/storage.h"

namespace tessera {

namespace {

constexpr int64_t kMostChunks = 8;  ///< of a stage: each is a loop of the Program

StepSummary summary_of_model(Pricer& pricer, size_t recompute) {
  const PlanModel& model = pricer.model();
  const auto built = [&](int64_t layers) -> const PlanStep& {
    return pricer.built({layers, model.recompute_options[recompute].first,
                         model.recompute_options[recompute].second, model.microbatches[0],
                         pricer.is_looped()});
  };
  if (!pricer.is_continued()) {
    const PlanStep& all = built(model.layers);
    const SummarizedGraph graph{*all.graph, all.functions};
    return summarize_step(graph, graph, 1, pricer.machine());
  }
  const PlanStep &one = built(1), &two = built(2);
  return summarize_step({*one.graph, one.functions}, {*two.graph, two.functions}, model.layers,
                        pricer.machine());
}

SharedWork shared_work(Pricer& pricer, size_t recompute) {
  const PlanModel& model = pricer.model();
  PlanBuild build{1, model.recompute_options[recompute].first, "none", 1};
  const bool repeats = model.layers > 1;
  build.unrolled = model.is_loop && repeats;
  const auto lowered = [&](int64_t layers) {
    build.layers = layers;
    return on_one_rank(pricer.built(build), model);
  };
  try {
    Program one = lowered(1), two = repeats ? lowered(2) : one;
    if (one.functions.size() != 1) return {};
    return {std::move(one), std::move(two), model.layers, model.microbatches, pricer.machine()};
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return {};  // a given rule needs the layers to be a loop
  }
}

std::vector<StepSummary> summaries_of_model(Pricer& pricer) {
  std::vector<StepSummary> summaries;
  const std::shared_ptr<const Graph> looped = pricer.layers_in_loop();
  for (size_t recompute = 0; recompute < pricer.model().recompute_options.size(); ++recompute) {
    summaries.push_back(summary_of_model(pricer, recompute));
    if (looped) add_stages(*looped, summaries.back());
  }
  for (const StepSummary& summary : summaries)
    TESSERA_CHECK(summary.dims == summaries[0].dims, "what is recomputed changes a model's dims");
  return summaries;
}

}  // namespace

Candidates::Candidates(const PlanModel& model, const Machine& machine, const PlanOptions& options)
    : pricer_(model, machine),
      options_(options),
      summaries_(summaries_of_model(pricer_)),
      space_(summaries_[0], options.layout, pricer_.dims_of_loop()) {
  for (size_t recompute = 0; recompute < summaries_.size(); ++recompute) {
    const bool in_loop = model.is_loop || pricer_.is_looped();
    const bool twice = in_loop || model.recompute_options[recompute].second != "none";
    const Passes passes{twice ? 2.0 : 1.0, in_loop ? 2.0 : 1.0, model.wide_grad_reduce,
                        model.offload_state};
    estimates_.emplace_back(summaries_[recompute], machine, model.microbatch_dim, passes,
                            shared_work(pricer_, recompute));
  }
}

size_t Candidates::add(Assignment assignment) {
  assignments_.push_back(std::move(assignment));
  return assignments_.size() - 1;
}

void Candidates::order_axes(size_t assignment) {
  Assignment& a = assignments_[assignment];
  std::vector<size_t> order(a.picks.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Assignment best;
  double least = 0;
  do {
    Assignment next;
    std::vector<MeshAxis> axes;
    for (const size_t i : order) {
      axes.push_back(a.mesh.axes()[i]);
      next.picks.push_back(a.picks[i]);
    }
    next.mesh = Mesh(axes);
    const double seconds = estimates_[0].communication(next, {}, {microbatches(0)}).blocking;
    if (!best.picks.empty() && seconds >= least) continue;
    least = seconds;
    best = std::move(next);
  } while (std::next_permutation(order.begin(), order.end()));
  a = space_.named(best);
}

std::vector<int64_t> Candidates::chunk_options(size_t assignment,
                                               const std::string& schedule) const {
  const PipelineSchedule& of = pipeline_schedule(schedule);
  const StepSummary& summary = summaries_[0];
  const auto are_dealt = [&](int64_t chunks) {
    for (size_t d = 0; d < summary.dims.size() && chunks > 1; ++d) {
      const bool counts_layers = (summary.stages >> d & 1) != 0;
      if (counts_layers && summary.sizes[d] % (stages(assignment) * chunks) != 0) return false;
    }
    return true;
  };
  // Of a rule that the only schedule cannot follow, the lowering says what is wrong.
  const int64_t fixed = space_.fixed_chunks();
  if (space_.fixes_stages() && model().schedules.size() == 1) return {fixed};
  std::vector<int64_t> options;
  for (int64_t chunks = 1; chunks <= std::max(fixed, kMostChunks); ++chunks) {
    if (space_.fixes_stages() && chunks != fixed) continue;
    if (takes_chunks(of, chunks) && (chunks == fixed || are_dealt(chunks)))
      options.push_back(chunks);
  }
  return options;
}

bool Candidates::leaves_copies(const Assignment& a, int axis) const {
  return estimates_[0].copies(a, axis) > kCopies;
}

std::vector<Storage> Candidates::storages(size_t assignment) const {
  const Assignment& a = assignments_[assignment];
  std::vector<int> copies;
  for (int axis = 0; axis < static_cast<int>(a.picks.size()); ++axis) {
    const bool makes_stages = (a.picks[axis] & summaries_[0].stages) != 0;
    if (a.mesh.axes()[axis].size > 1 && !makes_stages && leaves_copies(a, axis))
      copies.push_back(axis);
  }
  std::vector<std::vector<int>> overs;
  if (!copies.empty()) overs.push_back(copies);
  for (const int axis : copies) {
    if (copies.size() > 1) overs.push_back({axis});
  }
  std::vector<Storage> all = {{}};
  for (const std::vector<int>& over : overs) {
    for (const int stage : {1, 2, 3}) all.push_back({stage, over});
  }
  return all;
}

bool Candidates::is_merged(size_t assignment, const Storage& storage) const {
  const Assignment& a = assignments_[assignment];
  const auto stores = [&](size_t axis) {
    return std::find(storage.axes.begin(), storage.axes.end(), axis) != storage.axes.end();
  };
  for (size_t i = 1; i < a.picks.size(); ++i) {
    if (a.picks[i] == 0 || a.picks[i] != a.picks[i - 1] || stores(i) != stores(i - 1)) continue;
    const int64_t one = a.mesh.axes()[i].size, other = a.mesh.axes()[i - 1].size,
                  size = one * other;
    if (one == 1 || other == 1) continue;
    bool fits = true;
    for (DimSet rest = a.picks[i]; rest != 0; rest &= rest - 1)
      fits = fits && summaries_[0].sizes[std::countr_zero(rest)] >= size;
    if (fits) return true;
  }
  return false;
}

bool Candidates::applies(const Candidate& c) const {
  const bool may_reshard = c.storage.stage == 3 && !has_stages(c.assignment);
  return may_reshard || model().recompute_options[c.recompute_option].second == "none";
}

std::string Candidates::stored_over(const Candidate& c) const {
  std::string over;
  for (const int axis : c.storage.axes)
    over += (over.empty() ? "" : "+") + assignment(c).mesh.axes()[axis].name;
  return over;
}

const Graph& Candidates::few_layers() {
  const PlanModel& model = pricer_.model();
  return *pricer_
              .built({std::min<int64_t>(2, model.layers), model.recompute_options[0].first,
                      model.recompute_options[0].second, model.microbatches[0]})
              .graph;
}

std::string Candidates::rules(const Candidate& c) const {
  const std::string text = space_.layout_text(assignment(c), c.chunks);
  return text + (text.empty() || c.scoped.empty() ? "" : ";") + c.scoped;
}

std::string Candidates::layout(const Candidate& c) {
  const std::string text = rules(c), over = stored_over(c);
  if (over.empty()) return text;
  const std::shared_ptr<const Graph> staged =
      has_stages(c.assignment) ? pricer_.layers_in_loop() : nullptr;
  const std::string more = storage_rules(staged ? *staged : few_layers(), assignment(c).mesh,
                                         Layout::parse(text), c.storage.stage, over);
  return text + (text.empty() || more.empty() ? "" : ";") + more;
}

PlanBuild Candidates::build(const Candidate& c) const {
  const auto& [recompute, reshard] = model().recompute_options[c.recompute_option];
  const bool staged = has_stages(c.assignment);
  const bool as_iterations = pricer_.is_looped() && c.storage.stage == 3 && !staged;
  PlanBuild build{model().layers, recompute, as_iterations ? model().reshard_of_loop : reshard,
                  microbatches(c.microbatch_option)};
  build.looped = staged && !model().is_loop;
  build.pipeline_schedule = staged ? c.schedule : model().schedules[0];
  build.reduce_each_microbatch = c.reduce_each && build.microbatches > 1;
  return build;
}

std::string Candidates::settings(const Candidate& c) const {
  PlanBuild settings = build(c);
  if (!has_stages(c.assignment)) settings.pipeline_schedule = PlanBuild().pipeline_schedule;
  return settings_of(model(), settings);
}

}  // namespace tessera
