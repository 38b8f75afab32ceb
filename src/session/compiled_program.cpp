#include "tessera/compiled_program.h"

#include <algorithm>

#include "program/loop_runs.h"
#include "program/program.h"
#include "tessera/mesh.h"

namespace tessera {

std::string CompiledProgram::text() const { return to_string(program_); }
uint64_t CompiledProgram::hash() const { return tessera::hash(program_); }
int64_t CompiledProgram::persistent_bytes() const { return program_.persistent_bytes; }
int64_t CompiledProgram::transient_bytes() const { return program_.transient_bytes; }
int64_t CompiledProgram::offloaded_bytes() const { return program_.offloaded_bytes; }

namespace {
/// Of steps that run `times` times. What a loop computes is what its steps do after all passes.
int64_t flops_of(const std::vector<Step>& steps, int64_t times) {
  int64_t total = 0;
  for (const Step& step : steps) {
    if (step.body.empty()) total += times * step.flops;
    for (const Function& body : step.body)
      total += flops_of(body.steps, body_runs(step.loop, times));
  }
  return total;
}
}  // namespace

int64_t CompiledProgram::flops(const std::string& function) const {
  return flops_of(program_.functions[program_.function(function)].steps, 1);
}

bool CompiledProgram::depends_on_microbatches(const std::string& function) const {
  return program_.functions[program_.function(function)].by_microbatches;
}

std::vector<std::string> CompiledProgram::find(const std::string& function,
                                               const std::string& glob) const {
  const Function& f = program_.functions[program_.function(function)];
  std::vector<std::string> names;
  for (const std::vector<int>& ports : {f.outputs, f.inputs, program_.stored}) {
    for (int p : ports) {
      const std::string& name = program_.ports[p].name;
      const bool seen = std::find(names.begin(), names.end(), name) != names.end();
      if (!seen && glob_match(glob, name)) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> CompiledProgram::stored_names() const {
  std::vector<std::string> names;
  for (int p : program_.stored) names.push_back(program_.ports[p].name);
  return names;
}

}  // namespace tessera
