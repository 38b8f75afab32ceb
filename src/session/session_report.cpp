// What a Session tells of itself without running.
#include "compile/kernel_info.h"
#include "cost/function_time.h"
#include "program/axes_text.h"
#include "session/session_state.h"

namespace tessera {

namespace {

/// Bytes of transient memory that a step fills.
int64_t result_bytes(const Program& program, const Step& step) {
  int64_t bytes = 0;
  for (const View& view : step.out) {
    if (program.buffers[view.buffer].arena == ArenaKind::transient)
      bytes += view.elements() * size_of(view.dtype);
  }
  return bytes;
}

/// Of a wait the collective which it ends; else the step.
const Step& waited_for(const Function& function, const Step& step) {
  if (step.kind != StepKind::wait) return step;
  for (const Step& other : function.steps) {
    if (other.kind == StepKind::collective && other.number == step.number) return other;
  }
  return step;
}

}  // namespace

int64_t Session::persistent_bytes() const { return state_->program.persistent_bytes; }
int64_t Session::transient_bytes() const { return state_->program.transient_bytes; }
int64_t Session::offloaded_bytes() const { return state_->program.offloaded_bytes; }
std::string Session::program_text() const { return to_string(state_->program); }
uint64_t Session::program_hash() const { return hash(state_->program); }
std::vector<StepTime> Session::profile() const {
  std::vector<StepTime> rows;
  const Program& program = state_->program;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const Function& function = program.functions[f];
    for (size_t i = 0; i < function.steps.size(); ++i) {
      const Step& step = function.steps[i];
      const auto [seconds, runs] =
          state_->executors.at(0)->time_of(static_cast<int>(f), static_cast<int>(i));
      if (runs == 0) continue;
      const Step& begun = waited_for(function, step);
      rows.push_back(
          {function.name, begun.origin.name, begun.origin.source, name_of(step), runs, seconds,
           step.flops, step.kind == StepKind::compute ? bytes_touched(step) : step.bytes,
           result_bytes(program, step), axes_text(program, begun.axes),
           step.kind == StepKind::collective ? std::optional(step.collective) : std::nullopt,
           step.kind == StepKind::wait});
    }
  }
  return rows;
}

int64_t Session::flops(const std::string& function) const {
  int64_t total = 0;
  for (const Step& step : state_->program.functions[state_->program.function(function)].steps)
    total += step.flops;
  return total;
}

std::vector<std::string> Session::find(const std::string& function, const std::string& glob) const {
  const Program& program = state_->program;
  const Function& f = program.functions[program.function(function)];
  std::vector<std::string> names;
  for (const std::vector<int>& ports : {f.outputs, f.inputs, program.stored}) {
    for (int p : ports) {
      const std::string& name = program.ports[p].name;
      const bool seen = std::find(names.begin(), names.end(), name) != names.end();
      if (!seen && glob_match(glob, name)) names.push_back(name);
    }
  }
  return names;
}

const std::string& Session::skipped() const { return state_->skipped; }

std::vector<double> Session::waited() const {
  std::vector<double> seconds;
  for (const auto& executor : state_->executors) seconds.push_back(executor->waited());
  return seconds;
}

}  // namespace tessera
