#include "plan/pricer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/fail.h"
#include "compile/kernel_info.h"
#include "compile/kernel_rows.h"
#include "compile/lowering.h"
#include "compile/program_variants.h"
#include "cost/function_time.h"
#include "program/axes_text.h"
#include "program/loop_runs.h"
#include "tessera/pipeline_schedules.h"

namespace tessera {

namespace {

/// The entry of a list; added if it has none.
PlanTransfer& transfer_of(std::vector<PlanTransfer>& all, const std::string& kind,
                          const std::string& tensor, const std::string& axes) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const PlanTransfer& t) {
    return t.kind == kind && t.tensor == tensor && t.axes == axes;
  });
  return at == all.end() ? all.emplace_back(PlanTransfer{kind, tensor, axes}) : *at;
}

}  // namespace

PricedPlan mix(const PricedPlan& a, double of_a, const PricedPlan& b, double of_b) {
  PricedPlan r = a;
  const auto sum = [&](auto x, auto y) {
    const double v = of_a * static_cast<double>(x) + of_b * static_cast<double>(y);
    if constexpr (std::is_integral_v<decltype(x)>) {
      return static_cast<decltype(x)>(std::llround(v));
    } else {
      return v;
    }
  };
  for (double PricedPlan::*seconds :
       {&PricedPlan::seconds, &PricedPlan::compute, &PricedPlan::slowed, &PricedPlan::exposed,
        &PricedPlan::bubble, &PricedPlan::bubble_compute, &PricedPlan::update})
    r.*seconds = sum(a.*seconds, b.*seconds);
  for (int64_t PricedPlan::*bytes :
       {&PricedPlan::params, &PricedPlan::state, &PricedPlan::inputs, &PricedPlan::transient})
    r.*bytes = sum(a.*bytes, b.*bytes);
  r.by_axes.clear();
  std::vector<PlanAxes> all = a.by_axes;
  all.insert(all.end(), b.by_axes.begin(), b.by_axes.end());
  const auto of = [](const PricedPlan& p, const std::string& axes) {
    for (const PlanAxes& x : p.by_axes) {
      if (x.axes == axes) return x;
    }
    return PlanAxes{axes};
  };
  for (const PlanAxes& x : all) {
    if (std::any_of(r.by_axes.begin(), r.by_axes.end(),
                    [&](const PlanAxes& y) { return y.axes == x.axes; })) {
      continue;
    }
    const PlanAxes p = of(a, x.axes), q = of(b, x.axes);
    r.by_axes.push_back(
        {x.axes, sum(p.bytes, q.bytes), sum(p.seconds, q.seconds), sum(p.exposed, q.exposed)});
  }
  r.transfers.clear();
  for (const auto& [part, factor] : {std::pair{&a, of_a}, {&b, of_b}}) {
    for (const PlanTransfer& t : part->transfers)
      transfer_of(r.transfers, t.kind, t.tensor, t.axes).bytes +=
          std::llround(factor * static_cast<double>(t.bytes));
  }
  return r;
}

namespace {

/// a + factor * (b - a) for every figure: extrapolates to more layers. What is exposed at the ends
/// of a step is hidden by the first layers that come, not by each: it does not become less.
PricedPlan extrapolate(const PricedPlan& a, const PricedPlan& b, double factor) {
  PricedPlan r = mix(a, 1 - factor, b, factor);
  r.transient = std::max(b.transient, r.transient);
  if (r.exposed >= b.exposed) return r;
  r.seconds += b.exposed - r.exposed;
  r.exposed = b.exposed;
  for (PlanAxes& x : r.by_axes) {
    const auto two = std::find_if(b.by_axes.begin(), b.by_axes.end(),
                                  [&](const PlanAxes& y) { return y.axes == x.axes; });
    x.exposed = two == b.by_axes.end() ? 0 : two->exposed;
  }
  return r;
}

}  // namespace

void add_function(const Program& program, const Function& f, const Costs& costs, PricedPlan& to) {
  const FunctionTime time = total_time(f, costs);
  to.seconds += time.seconds;
  to.compute += time.compute;
  to.slowed += time.slowed;
  to.exposed += time.exposed;
  to.bubble += time.bubble;
  to.bubble_compute += time.bubble_compute;
  for (size_t s = static_cast<size_t>(f.first_update); f.updates && s < f.steps.size(); ++s) {
    if (f.steps[s].kind == StepKind::compute && f.steps[s].body.empty())
      to.update += costs.compute(f.steps[s]);
  }
  for (const AxisTime& axes : time.by_axes) {
    const std::string name = axes_text(program, axes.axes);
    const auto at = std::find_if(to.by_axes.begin(), to.by_axes.end(),
                                 [&](const PlanAxes& x) { return x.axes == name; });
    PlanAxes& x = at == to.by_axes.end() ? to.by_axes.emplace_back(PlanAxes{name}) : *at;
    x.bytes += axes.bytes;
    x.seconds += axes.seconds;
    x.exposed += axes.exposed;
  }
}

namespace {

/// Adds what the collectives of a function send, counting all iterations of loops.
void add_transfers(const Program& program, const Function& f, int64_t times,
                   std::vector<PlanTransfer>& all) {
  for (const Step& step : f.steps) {
    for (const Function& body : step.body)
      add_transfers(program, body, body_runs(step.loop, times), all);
    if (step.kind != StepKind::collective) continue;
    transfer_of(all, to_string(step.collective), without_numbers(step.origin.name),
                axes_text(program, step.axes))
        .bytes += times * step.bytes;
  }
}

/// Leaves the tensors whose collectives send the most bytes.
PricedPlan with_largest_transfers(PricedPlan plan) {
  constexpr size_t kShown = 8;
  std::vector<PlanTransfer>& all = plan.transfers;
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (all.size() > kShown) all.resize(kShown);
  return plan;
}

}  // namespace

std::shared_ptr<const Graph> Pricer::layers_in_loop() {
  const bool may_loop = model_.is_loop || !model_.loop_setting.empty();
  if (!may_loop || model_.microbatches.back() < 2) return nullptr;
  PlanBuild build{model_.layers, model_.recompute_options[0].first,
                  model_.recompute_options[0].second, model_.microbatches[0]};
  build.looped = !model_.is_loop;
  try {
    return built(build).graph;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return nullptr;  // these layers cannot be a loop
  }
}

std::vector<std::string> Pricer::dims_of_loop() {
  if (!is_looped()) return {};
  const auto dims_of = [&](const PlanBuild& build) {
    std::set<std::string> dims;
    for (const Value& value : built(build).graph->values()) {
      for (const Dim& dim : value.shape) dims.insert(dim.name);
    }
    return dims;
  };
  PlanBuild build{std::min<int64_t>(2, model_.layers), model_.recompute_options[0].first,
                  model_.recompute_options[0].second, model_.microbatches[0]};
  const std::set<std::string> own = dims_of(build);
  build.looped = true;
  std::vector<std::string> more;
  for (const std::string& dim : dims_of(build)) {
    if (!own.contains(dim)) more.push_back(dim);
  }
  return more;
}

const PlanStep& Pricer::built(const PlanBuild& build) {
  const std::lock_guard lock(mutex_);
  PlanStep& built =
      built_[std::make_tuple(build.layers, build.recompute, build.reshard_after_forward,
                             build.microbatches, build.looped, build.unrolled)];
  if (!built.graph) built = model_.build(build);
  return built;
}

Program Pricer::lowered(const Mesh& mesh, const std::string& layout, const PlanStep& model,
                        bool init, const PlanBuild& build, int chunks) const {
  CompileOptions compile = model_.options(mesh, Layout::parse(layout), {});
  compile.pipeline_schedule = build.pipeline_schedule;
  compile.reduce_each_microbatch |= build.reduce_each_microbatch;
  compile.chunks = chunks;
  LowerOptions options = lowering_of(compile, model.functions);
  options.workspace_bytes = workspace_on(model_.device, 1);
  options.prices = prices_of(machine_, mesh);
  if (options.prices.seconds) options.seconds = seconds_of(machine_, mesh);
  options.init = init;
  return lower_chosen(*model.graph, std::move(options));
}

void add_memory(const Program& program, const Graph& graph, PricedPlan& to) {
  for (size_t i = 0; i < program.stored.size(); ++i) {
    const Buffer& buffer = program.buffers[program.ports[program.stored[i]].view.buffer];
    if (buffer.arena == ArenaKind::offloaded) continue;  // in host memory
    (graph.stored()[i].purpose == Purpose::params ? to.params : to.state) += buffer.bytes;
  }
  to.inputs = program.persistent_bytes - to.params - to.state;
  to.transient = program.transient_bytes;
}

/// Candidates have no chunks: the bound counts every awaited reduction as exposed.
PricedPlan Pricer::lower_and_price(const Mesh& mesh, const std::string& layout,
                                   const PlanBuild& build, bool as_run) {
  const PlanStep& model = built(build);
  const Program program = lowered(mesh, layout, model, as_run, build, as_run ? 0 : 1);
  PricedPlan p;
  p.mesh = mesh;
  p.layout = p.rules = layout;
  p.build = build;
  const Costs costs(machine_, mesh);
  for (const Function& f : program.functions) {
    if (f.kind == FunctionKind::init) continue;
    add_function(program, f, costs, p);
    add_transfers(program, f, 1, p.transfers);
  }
  add_memory(program, *model.graph, p);
  return p;
}

namespace {
bool names_tensors(const Layout& layout) {
  return std::any_of(layout.rules().begin(), layout.rules().end(), [](const LayoutRule& r) {
    return !r.scope.empty() && r.purpose == Purpose::none;
  });
}
}  // namespace

PricedPlan Pricer::price_layers(const Mesh& mesh, const std::string& layout, PlanBuild build) {
  build.layers = 1;
  const PricedPlan one = lower_and_price(mesh, layout, build, false);
  build.layers = 2;
  PricedPlan result = extrapolate(one, lower_and_price(mesh, layout, build, false),
                                  static_cast<double>(model_.layers - 1));
  build.layers = model_.layers;
  result.build = build;
  return with_largest_transfers(std::move(result));
}

std::string settings_of(const PlanModel& model, const PlanBuild& build) {
  using std::string_literals::operator""s;
  std::string text = build.looped ? model.loop_setting : "";
  const bool is_default = build.pipeline_schedule == pipeline_schedules()[0].name;
  if (!is_default && (build.looped || model.is_loop))
    text += (text.empty() ? "" : " ") + ("pipeline_schedule=" + build.pipeline_schedule);
  if (build.reduce_each_microbatch) text += (text.empty() ? "" : " ") + "grad_reduce=microbatch"s;
  return text;
}

PricedPlan Pricer::price(const Mesh& mesh, const std::string& layout, PlanBuild build, bool whole) {
  build.layers = model_.layers;
  const bool as_loop = is_looped() && !build.looped && !names_tensors(Layout::parse(layout));
  if (!whole && !as_loop && !build.looped && (is_looped() || is_continued()))
    return price_layers(mesh, layout, build);
  PricedPlan result;
  if (!whole && as_loop) {
    PlanBuild looped = build;
    looped.looped = true;
    looped.reshard_after_forward = "none";
    result = lower_and_price(mesh, layout, looped, false);
  } else {
    result = lower_and_price(mesh, layout, build, whole);
    result.whole = whole;
  }
  result.build = build;
  return with_largest_transfers(std::move(result));
}

}  // namespace tessera
