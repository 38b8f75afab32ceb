#include "plan/stage_pricer.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "cost/function_time.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

namespace {

/// The result of the forward pass: the first output of the step.
Tensor end_of(const PlanStep& step) { return step.functions.at(0).outputs.at(0); }

/// The function with another number of iterations of the loop over microbatches.
Function with_iterations(const Function& function, int64_t microbatches, int64_t iterations) {
  Function f = function;
  for (Step& step : f.steps) {
    if (!step.body.empty() && step.loop.iterations == microbatches)
      step.loop.iterations = iterations;
  }
  return f;
}

const Function* microbatch_body(const Function& function, int64_t microbatches) {
  for (const Step& step : function.steps) {
    if (!step.body.empty() && step.loop.iterations == microbatches) return &step.body[0];
  }
  return nullptr;
}

/// True if the step accumulates over microbatches: its results outlive an iteration.
bool accumulates(const Step& step, const std::set<int>& outer) {
  return std::all_of(step.out.begin(), step.out.end(),
                     [&](const View& view) { return outer.contains(view.buffer); });
}

/// The end of the forward pass in an iteration: after the last forward step whose result backward
/// reads. (The loss may be computed at any time.) `forward` has the steps of the forward pass.
size_t turn_of(const Function& both, const Function& forward, const std::set<int>& outer) {
  std::vector<bool> is_forward(both.steps.size());
  for (const Step& step : forward.steps) {
    for (size_t i = 0; i < both.steps.size(); ++i) {
      const Step& other = both.steps[i];
      if (is_forward[i] || accumulates(other, outer) || other.kind != step.kind ||
          other.kernel != step.kernel || other.collective != step.collective ||
          other.origin.name != step.origin.name)
        continue;
      is_forward[i] = true;
      break;
    }
  }
  size_t turn = 0;
  std::map<int, size_t> made;  // buffer -> index after the forward step that wrote it
  for (size_t i = 0; i < both.steps.size(); ++i) {
    const Step& step = both.steps[i];
    if (is_forward[i]) {
      for (const View& view : step.out) made[view.buffer] = i + 1;
    } else if (!accumulates(step, outer)) {
      for (const View& view : step.in) turn = std::max(turn, made[view.buffer]);
    }
  }
  return turn;
}

/// Bytes that an iteration of the loop over microbatches keeps for backward: written before the end
/// of its forward pass and read after it.
int64_t bytes_kept(const Program& program, const Function& f, const Function& forward, int64_t m) {
  const Function *both = microbatch_body(f, m), *first = microbatch_body(forward, m);
  TESSERA_CHECK(both != nullptr && first != nullptr && !first->steps.empty(),
                "no loop of {} iterations", m);
  const std::set<int> outer(both->outer.begin(), both->outer.end());
  const size_t turn = turn_of(*both, *first, outer);
  std::set<int> fixed, made, kept;  // fixed: the same for all microbatches
  for (const int port : program.stored) fixed.insert(program.ports[port].view.buffer);
  for (size_t i = 0; i < turn; ++i) {
    const Step& step = both->steps[i];
    const bool is_fixed = std::all_of(step.in.begin(), step.in.end(), [&](const View& view) {
      return fixed.contains(view.buffer);
    });
    for (const View& view : step.out) (is_fixed ? fixed : made).insert(view.buffer);
  }
  for (size_t i = turn; i < both->steps.size(); ++i) {
    for (const View& view : both->steps[i].in) kept.insert(view.buffer);
  }
  int64_t bytes = 0;
  for (const int buffer : kept) {
    if (made.contains(buffer) && !fixed.contains(buffer) && !outer.contains(buffer))
      bytes += program.buffers[buffer].bytes;
  }
  return bytes;
}

}  // namespace

PlanModel unrolled(const PlanModel& model) {
  PlanModel flat = model;
  flat.is_loop = false;
  flat.reshard_of_loop.clear();
  flat.build = [build = model.build](const PlanBuild& how) {
    PlanBuild plain = how;
    plain.unrolled = true;
    return build(plain);
  };
  return flat;
}

StagePricer::StagePricer(Pricer& pricer) : pricer_(pricer) {
  const std::string& name = pricer.model().name;
  TESSERA_REQUIRE(
      pricer.model().layers >= 2,
      "[plan] {}: a pipeline deals layers to stages, and this model has {}; give it at least 2",
      name, pricer.model().layers);
  const PlanStep &one = few(1), &two = few(2);
  cut_ = cut_layers(*one.graph, end_of(one).id(), *two.graph, end_of(two).id(), pricer.machine(),
                    name);
}

const PlanStep& StagePricer::few(int64_t layers) const {
  const PlanModel& model = pricer_.model();
  return pricer_.built({layers, model.recompute_options[0].first, model.recompute_options[0].second,
                        model.microbatches[0]});
}

/// A microbatch costs half of what two more cost: even and odd ones differ if buffers are doubled.
StepTimes StagePricer::lowered_times(const StageTimes& stage, int64_t layers) {
  PlanBuild build = stage.build;
  build.layers = layers;
  PlanStep step = pricer_.built(build);
  step.functions.push_back({"forward", {end_of(step)}, false});
  const Program program = pricer_.lowered(stage.mesh, stage.layout, step, false);
  const Costs costs(pricer_.machine(), stage.mesh);
  PricedPlan now, more;
  StepTimes times;
  const Function& forward = program.functions.back();
  for (const Function& f : program.functions) {
    const int64_t m = build.microbatches;
    if (&f == &forward) {
      times.forward =
          (total_time(with_iterations(f, m, m + 2), costs).seconds - total_time(f, costs).seconds) /
          2;
      continue;
    }
    add_function(program, f, costs, now);
    add_function(program, with_iterations(f, m, m + 2), costs, more);
    times.kept += bytes_kept(program, f, forward, m);
  }
  times.microbatch = mix(more, 0.5, now, -0.5);
  times.once = mix(now, 1, times.microbatch, -static_cast<double>(build.microbatches));
  add_memory(program, *step.graph, times.once);
  return times;
}

StageTimes StagePricer::times(const Mesh& mesh, const std::string& layout, const PlanBuild& build) {
  TESSERA_REQUIRE(build.microbatches >= 2,
                  "[plan] a pipeline of {} microbatch; there must be at least 2",
                  build.microbatches);
  StageTimes times{{}, {}, mesh, layout, build};
  times.one = lowered_times(times, 1);
  times.two = lowered_times(times, 2);
  return times;
}

double StagePricer::transfer(const StageTimes& times, int64_t stages, int64_t& handed) const {
  std::vector<MeshAxis> axes = {{"stage", static_cast<int>(stages)}};
  axes.insert(axes.end(), times.mesh.axes().begin(), times.mesh.axes().end());
  const Costs costs(pricer_.machine(), Mesh(axes));
  const Graph& graph = *few(2).graph;
  const RuleLayouts rule_layouts(graph, times.mesh, Layout::parse(times.layout));
  double seconds = 0;
  for (const int v : cut_.handed) {
    const Value& value = graph.value(v);
    const TensorLayout layout = rule_layouts.of(value);
    const double bytes = static_cast<double>(rule_layouts.local_elements(value.shape, layout) *
                                             size_of(value.dtype)) *
                         static_cast<double>(pricer_.model().microbatches[0]) /
                         static_cast<double>(times.build.microbatches);
    std::vector<int> copies;
    for (int axis = 0; axis < times.mesh.rank(); ++axis) {
      if (!layout.uses(axis)) copies.push_back(axis + 1);
    }
    handed += static_cast<int64_t>(bytes);
    seconds += hand_over(costs, bytes, {0}, copies);
  }
  return seconds;
}

namespace {

/// `n` layers, and the share `ends` of what is outside of layers.
PricedPlan with(const PricedPlan& one, const PricedPlan& two, double n, double ends) {
  return mix(one, 2 * ends - n, two, n - ends);
}

/// Sets the memory of a stage with the share `ends` of what is outside of layers: as without a
/// pipeline, plus what its layers keep for further microbatches.
PricedPlan filled(PricedPlan p, const StageTimes& times, const Pipeline& pipeline, int stage,
                  double ends) {
  const auto layers = static_cast<double>(p.build.layers / pipeline.stages);
  const PricedPlan stored = with(times.one.once, times.two.once, layers, ends);
  const auto kept = static_cast<double>(times.two.kept - times.one.kept);
  const double more = std::max(0.0, microbatches_kept(pipeline, stage) - 1);
  p.params = stored.params;
  p.state = stored.state;
  p.inputs = times.one.once.inputs;
  p.transient = stored.transient + static_cast<int64_t>(more * layers * kept);
  return p;
}

void add_spans(const PipelineTime& time, int chunks, PipelinePlan& to) {
  for (const PipelineSpan& span : time.spans) {
    const bool is_forward = span.work == StageWork::forward;
    const bool last = span.chunk == (is_forward ? chunks - 1 : 0);
    to.spans.push_back({span.stage, span.chunk / static_cast<int>(to.stages), span.microbatch,
                        is_forward, !last && to.stages > 1, span.begin, span.seconds});
  }
}

}  // namespace

PipelinePlan StagePricer::plan(const StageTimes& times, int64_t stages, int64_t chunks,
                               bool spans) const {
  const int64_t layers = pricer_.model().layers, m = times.build.microbatches;
  TESSERA_REQUIRE(
      stages >= 1 && chunks >= 1 && layers % (stages * chunks) == 0,
      "[plan] {} layers cannot be dealt to {} stages with {} chunks each; stages times chunks "
      "is a number that divides the layers",
      layers, stages, chunks);
  const auto of_stage = static_cast<double>(layers / stages), count = static_cast<double>(m);
  const auto chunk_of = [&](double n, double ends) {
    const double forward = times.one.forward * (2 * ends - n) + times.two.forward * (n - ends);
    const double both = with(times.one.microbatch, times.two.microbatch, n, ends).seconds;
    return ChunkTime{std::min(forward, both), std::max(0.0, both - forward)};
  };
  PipelinePlan result;
  result.stages = stages;
  result.chunks = chunks;
  Pipeline pipeline;
  pipeline.schedule = times.build.pipeline_schedule;
  pipeline.stages = static_cast<int>(stages);
  pipeline.chunks = assign_virtual_stages(
      std::vector<int64_t>(stages * chunks, layers / (stages * chunks)), chunk_of(1, 0),
      chunk_of(0, cut_.time_before), chunk_of(0, 1 - cut_.time_before));
  pipeline.microbatches = m;
  if (stages > 1) pipeline.transfer = result.transfer = transfer(times, stages, result.handed);
  pipeline.blocking = !pricer_.machine().overlap.possible;
  const PipelineTime simulated = simulate(pipeline);

  const bool alone = stages == 1;
  const double time_ends = alone ? 1 : std::max(cut_.time_before, 1 - cut_.time_before);
  const double first = alone ? 1 : cut_.params_before, last = alone ? 1 : cut_.params_behind;
  const PricedPlan busy = with(times.one.microbatch, times.two.microbatch, of_stage, time_ends);
  const PricedPlan rest = with(times.one.once, times.two.once, of_stage, std::max(first, last));
  PricedPlan& p = result.stage = mix(busy, count, rest, 1);
  p.mesh = times.mesh;
  p.layout = p.rules = times.layout;
  p.build = times.build;
  p.build.layers = layers;
  p.bubble = std::max(0.0, simulated.seconds - count * busy.seconds);
  result.once = rest.seconds;
  if (spans) add_spans(simulated, static_cast<int>(pipeline.chunks.size()), result);
  p.seconds += p.bubble;

  const auto fullest = [](const PricedPlan& x, const PricedPlan& y) {
    return x.memory() > y.memory() ? x : y;
  };
  p = fullest(filled(p, times, pipeline, 0, first),
              filled(p, times, pipeline, static_cast<int>(stages) - 1, last));
  return result;
}

PipelinePlan price_pipeline(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                            const PlanBuild& build, int64_t stages, int64_t chunks,
                            const Machine& machine) {
  const PlanModel flat = unrolled(model);
  Pricer pricer(flat, machine);
  StagePricer stage(pricer);
  return stage.plan(stage.times(mesh, layout.to_string(), build), stages, chunks, true);
}

}  // namespace tessera
