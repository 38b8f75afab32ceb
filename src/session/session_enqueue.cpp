// Runs of a Session that leave the GPU behind.
#include "session/session_state.h"

namespace tessera {

std::string Session::State::why_waits(int f) const {
  const std::string& name = program.functions[static_cast<size_t>(f)].name;
  auto names = [&](const Probe& p) { return p.function == name; };
  for (const auto& [probes, what] :
       {std::pair{&prints, "print()"}, std::pair{&checks, "check_finite()"}}) {
    const auto it = std::find_if(probes->begin(), probes->end(), names);
    if (it != probes->end())
      return fmt::format("[{}] {} reads its tensor ({})", it->node, what, it->source);
  }
  if (!guards[static_cast<size_t>(f)].empty()) {
    const auto port = static_cast<size_t>(guards[static_cast<size_t>(f)][0]);
    return fmt::format("its guard '{}' is read before anything is stored",
                       program.ports[port].name);
  }
  if (!measures.empty()) return measures + " of every step is taken";
  return executors[0]->why_waits(f);
}

void Session::enqueue(const std::string& function) {
  State& s = *state_;
  if (s.on_host()) return run(function);
  const int f = s.program.function(function);
  const std::string why = s.why_waits(f);
  require(why.empty(), "[enqueue] '{}' has to wait for the GPU: {}; call run(), or leave that out",
          function, why);
  s.begin(f);
  s.on_all([f](Executor& executor) { executor.enqueue(f); });
  if (s.program.functions[static_cast<size_t>(f)].updates) ++s.scalars[0];
}

void Session::wait() {
  State& s = *state_;
  if (!s.on_host()) s.on_all([](Executor& executor) { executor.settle(); });
}

}  // namespace tessera
