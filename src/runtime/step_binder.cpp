#include "runtime/step_binder.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"

namespace tessera {

namespace {

/// True if a collective in the body, whose plan is bound, depends on the counter.
bool plans_differ(const Function& body, int counter) {
  return std::any_of(body.steps.begin(), body.steps.end(), [&](const Step& step) {
    return (step.kind == StepKind::collective &&
            std::any_of(step.exprs.begin(), step.exprs.end(),
                        [&](const AffineExpr& e) { return e.scalar == counter; })) ||
           (!step.body.empty() && plans_differ(step.body[0], counter));
  });
}

/// True if a body waits for what another loop has started.
bool awaits_others(const Function& body) {
  std::set<int> started;
  for (const Step& step : body.steps) {
    if (step.kind == StepKind::collective) started.insert(step.number);
    if (step.kind == StepKind::wait && !started.contains(step.number)) return true;
  }
  return false;
}

/// True if the iterations of a loop touch different addresses, or have other plans.
bool moves(const Step& step) {
  bool any = plans_differ(step.body[0], step.loop.counter) || awaits_others(step.body[0]);
  visit_views(step, [&](const View& v) { any = any || v.shift.scalar == step.loop.counter; });
  return any;
}

}  // namespace

int64_t counter_of(const Step& step, int64_t iteration, std::span<const int> coordinates) {
  const LoopStep& loop = step.loop;
  const int64_t first = loop.first.eval(coordinates, nullptr);
  return first + (loop.reverse ? loop.iterations - 1 - iteration : iteration);
}

std::vector<BoundStep> StepBinder::bind(const std::vector<Step>& steps) {
  const bool labels = rank_.device.shows_ranges();
  std::vector<BoundStep> result;
  std::map<int, BoundBucket*> open;
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    BoundStep bound{.step = &*step};
    if (labels)
      bound.label =
          fmt::format("{} {} ({})", name_of(*step), step->origin.name, step->origin.source);
    if (!step->body.empty()) {
      bound.loop = bind_loop(*step);
    } else if (step->kind == StepKind::compute) {
      bound.kernel = bind_kernel(*step);
    } else if (step->kind == StepKind::wait) {
      const auto here = open.find(step->number);
      bound.bucket = here != open.end() ? here->second : started_.at({step->number, iteration_});
    } else if (open.count(step->number) == 0) {
      const auto end = std::find_if(step, steps.end(), [&](const Step& other) {
        return other.kind != StepKind::collective || other.number != step->number;
      });
      bound.bucket = open[step->number] = &collectives_.bind({step, end});
      started_[{step->number, iteration_}] = bound.bucket;
    }
    result.push_back(std::move(bound));
  }
  return result;
}

std::unique_ptr<Kernel> StepBinder::bind_kernel(const Step& step) {
  KernelArgs args;
  args.step = &step;
  for (const View& v : step.in) args.in.push_back(memory_.argument(v));
  for (const View& v : step.out) args.out.push_back(memory_.argument(v));
  args.coordinates = rank_.coordinates;
  args.scalars = rank_.scalars.data();
  args.workspace = memory_.workspace(step);
  args.fault = faults_.slot_of(step);
  return rank_.device.bind(args);
}

std::unique_ptr<BoundLoop> StepBinder::bind_loop(const Step& step) {
  auto bound = std::make_unique<BoundLoop>();
  const Function& body = step.body[0];
  const int64_t few = body.early + body.late > 0 ? 2 : 1;
  const int64_t variants = moves(step) ? step.loop.iterations : few, outside = iteration_;
  for (int64_t iteration = 0; iteration < variants; ++iteration) {
    rank_.scalars[static_cast<size_t>(step.loop.counter)] =
        counter_of(step, iteration, rank_.coordinates);
    memory_.set_parity(body, iteration);
    iteration_ = iteration;
    bound->conditions.push_back(
        step.loop.condition.empty() ? nullptr : memory_.address(step.loop.condition[0]));
    bound->iterations.push_back(bind(body.steps));
  }
  iteration_ = outside;
  return bound;
}

}  // namespace tessera
