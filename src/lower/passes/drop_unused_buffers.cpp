#include "lower/passes/drop_unused_buffers.h"

#include <vector>

namespace tessera {

void drop_unused_buffers(Program& program) {
  std::vector<int> number(program.buffers.size(), -1);
  auto for_all = [&](auto&& visit) {
    for (Port& port : program.ports) visit(port.view.buffer);
    for (Function& f : program.functions) {
      for (Step& step : f.steps) visit_views(step, [&](View& v) { visit(v.buffer); });
    }
    for (Function* f : all_functions(program.functions)) {
      for (Step& step : f->steps) {
        if (step.workspace >= 0) visit(step.workspace);
      }
      for (int& buffer : f->outer) visit(buffer);
    }
  };
  for_all([&](int buffer) { number[buffer] = 0; });
  std::vector<Buffer> kept;
  for (size_t b = 0; b < number.size(); ++b) {
    if (number[b] < 0) continue;
    number[b] = static_cast<int>(kept.size());
    kept.push_back(std::move(program.buffers[b]));
  }
  program.buffers = std::move(kept);
  for_all([&](int& buffer) { buffer = number[buffer]; });
}

}  // namespace tessera
