#include "cost/function_time.h"

#include "cost/rank_simulator.h"

namespace tessera {

namespace {

void add_steps(const Function& function, std::vector<const Step*>& steps) {
  for (const Step& step : function.steps) {
    steps.push_back(&step);
    for (const Function& body : step.body) add_steps(body, steps);
  }
}

}  // namespace

std::vector<const Step*> all_steps(const Function& function) {
  std::vector<const Step*> steps;
  add_steps(function, steps);
  return steps;
}

int steps_inside(const Step& loop) {
  int steps = 0;
  for (const Function& body : loop.body) {
    for (const Step& step : body.steps) steps += 1 + steps_inside(step);
  }
  return steps;
}

FunctionTime time_of(const Function& function, const Costs& costs, bool spans) {
  RankSimulator simulator(costs, false);
  simulator.simulate(function.steps, 0);
  simulator.wait_all();
  return simulator.finish(spans);
}

FunctionTime total_time(const Function& function, const Costs& costs) {
  RankSimulator simulator(costs, true);
  simulator.simulate(function.steps, 0);
  simulator.wait_all();
  FunctionTime time = simulator.finish(false);
  time.collectives.clear();
  return time;
}

}  // namespace tessera
