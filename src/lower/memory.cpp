// Transient buffers are placed in the order of their first step, each in the smallest gap that fits
// among the buffers alive then (best fit). A buffer lives from the step that writes it to the last
// that reads it; a collective holds its operands until its wait.
#include <algorithm>
#include <map>

#include "base/fail.h"
#include "lower/passes.h"

namespace tessera {

namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Life {
  int first = -1, last = -1;
};

std::map<int, Life> lives(const Program& program, const Function& function) {
  std::map<int, Life> result;
  std::map<int, int> wait_of;
  for (size_t s = 0; s < function.steps.size(); ++s) {
    if (function.steps[s].kind == StepKind::wait)
      wait_of[function.steps[s].number] = static_cast<int>(s);
  }
  auto touch = [&](int buffer, int first, int last) {
    if (buffer < 0 || program.buffers[buffer].arena != ArenaKind::transient) return;
    Life& life = result[buffer];
    if (life.first < 0) life.first = first;
    life.last = std::max(life.last, last);
  };
  for (size_t s = 0; s < function.steps.size(); ++s) {
    const Step& step = function.steps[s];
    const int now = static_cast<int>(s);
    const int end = step.kind == StepKind::collective ? wait_of.at(step.number) : now;
    for (const View& v : step.out) touch(v.buffer, now, end);
    for (const View& v : step.in) touch(v.buffer, now, end);
    touch(step.workspace, now, now);
  }
  for (int port : function.outputs) {
    const int end = static_cast<int>(function.steps.size());
    touch(program.ports[port].view.buffer, 0, end);
    if (auto it = result.find(program.ports[port].view.buffer); it != result.end())
      it->second.last = end;
  }
  return result;
}

/// Offsets in use, as offset -> end.
int64_t best_gap(const std::map<int64_t, int64_t>& used, int64_t bytes) {
  int64_t best = -1, best_size = 0, cursor = 0;
  for (const auto& [begin, end] : used) {
    const int64_t gap = begin - cursor;
    if (gap >= bytes && (best < 0 || gap < best_size)) best = cursor, best_size = gap;
    cursor = std::max(cursor, end);
  }
  return best >= 0 ? best : cursor;
}

int64_t place(Program& program, const Function& function) {
  const std::map<int, Life> all = lives(program, function);
  std::vector<std::pair<int, int>> order;  // (first step, buffer)
  for (const auto& [buffer, life] : all) order.emplace_back(life.first, buffer);
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return program.buffers[a.second].bytes > program.buffers[b.second].bytes;
  });
  std::map<int64_t, int64_t> used;
  std::multimap<int, int64_t> ends;  // last step -> offset
  int64_t peak = 0;
  for (const auto& [first, buffer] : order) {
    while (!ends.empty() && ends.begin()->first < first) {
      used.erase(ends.begin()->second);
      ends.erase(ends.begin());
    }
    Buffer& b = program.buffers[buffer];
    const int64_t bytes = std::max<int64_t>(aligned(b.bytes), 64);
    b.offset = best_gap(used, bytes);
    used[b.offset] = b.offset + bytes;
    ends.emplace(all.at(buffer).last, b.offset);
    peak = std::max(peak, b.offset + bytes);
  }
  return peak;
}

}  // namespace

void plan_memory(Program& program) {
  program.persistent_bytes = program.transient_bytes = 0;
  for (Buffer& b : program.buffers) {
    if (b.arena != ArenaKind::persistent) continue;
    b.offset = program.persistent_bytes;
    program.persistent_bytes += std::max<int64_t>(aligned(b.bytes), 64);
  }
  for (const Function& f : program.functions) {
    program.transient_bytes = std::max(program.transient_bytes, place(program, f));
  }
}

}  // namespace tessera
