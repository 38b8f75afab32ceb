#include "compile/buffer_lives.h"

#include <vector>

namespace tessera {

std::map<int, std::pair<int, int>> buffer_lives(const Program& program, const Function& f,
                                                bool with_bodies) {
  std::map<int, std::pair<int, int>> life;
  std::map<int, std::vector<const Step*>> in_flight;  // by bucket
  for (int s = 0; s < static_cast<int>(f.steps.size()); ++s) {
    const Step& step = f.steps[static_cast<size_t>(s)];
    const auto touch = [&](int buffer) {
      if (buffer < 0 || program.buffers[static_cast<size_t>(buffer)].arena != ArenaKind::transient)
        return;
      life.emplace(buffer, std::make_pair(s, s)).first->second.second = s;
    };
    const auto touch_all = [&](const Step& all) {
      for (const View& v : all.out) touch(v.buffer);
      for (const View& v : all.in) touch(v.buffer);
    };
    if (step.kind == StepKind::collective) in_flight[step.number].push_back(&step);
    if (step.kind == StepKind::wait) {
      for (const Step* member : in_flight[step.number]) touch_all(*member);
    }
    touch_all(step);
    if (with_bodies) visit_views(step, [&](const View& v) { touch(v.buffer); });
    touch(step.workspace);
  }
  return life;
}

}  // namespace tessera
