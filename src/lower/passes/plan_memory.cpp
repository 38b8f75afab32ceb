// Transient buffers are placed in the order of their first step, each in the smallest gap that fits
// between the live buffers (best fit). The buffers of a loop's body are placed first, inside one
// buffer that is alive as long as the loop.
#include "lower/passes/plan_memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "lower/passes/liveness.h"
#include "program/buffer_room.h"

namespace tessera {

namespace {

/// Free intervals of transient memory below `end`, by offset and by size.
class FreeList {
 public:
  /// Returns the offset of the smallest free interval that fits; of equals, the lowest; if none
  /// fits, the end.
  int64_t take(int64_t bytes) {
    auto it = by_size_.lower_bound({bytes, 0});
    if (it == by_size_.end()) {
      const int64_t offset = end_;
      end_ += bytes;
      return offset;
    }
    const auto [size, offset] = *it;
    remove(offset, size);
    if (size > bytes) insert(offset + bytes, size - bytes);
    return offset;
  }

  void give(int64_t offset, int64_t bytes) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + bytes) {
      const int64_t size = next->second;
      remove(offset + bytes, size);
      bytes += size;
      next = by_offset_.lower_bound(offset);
    }
    if (next != by_offset_.begin()) {
      const auto [before, size] = *std::prev(next);
      if (before + size == offset) {
        remove(before, size);
        offset = before;
        bytes += size;
      }
    }
    if (offset + bytes == end_) {
      end_ = offset;
    } else {
      insert(offset, bytes);
    }
  }

  int64_t end() const { return end_; }

 private:
  void insert(int64_t offset, int64_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove(int64_t offset, int64_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  std::map<int64_t, int64_t> by_offset_;
  std::set<std::pair<int64_t, int64_t>> by_size_;
  int64_t end_ = 0;
};

/// Shifts the buffers of an iteration, and of the loops in it, by `offset`.
void move_iteration(Program& program, const Function& body, int64_t offset) {
  for (const auto& [buffer, range] : live_ranges(program, body))
    program.buffers[buffer].offset += offset;
  for (const Step& step : body.steps) {
    for (const Function& inner : step.body) move_iteration(program, inner, offset);
  }
}

int64_t place(Program& program, Function& function) {
  for (Step& step : function.steps) {  // the iterations of a loop share one buffer
    const int64_t bytes = step.body.empty() ? 0 : place(program, step.body[0]);
    if (bytes == 0) continue;
    step.workspace = static_cast<int>(program.buffers.size());
    program.buffers.push_back({"iteration of " + step.origin.name, ArenaKind::transient, bytes, 0});
  }
  const std::map<int, LiveRange> all = live_ranges(program, function);
  std::vector<std::pair<int, int>> order;  // (first step, buffer)
  for (const auto& [buffer, range] : all) order.emplace_back(range.first, buffer);
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return program.buffers[a.second].bytes > program.buffers[b.second].bytes;
  });
  FreeList memory;
  std::multimap<int, int> ends;  // last step -> buffer
  int64_t peak = 0;
  auto size_of = [&](int buffer) { return whole_room_of(program.buffers[buffer]); };
  for (const auto& [first, buffer] : order) {
    while (!ends.empty() && ends.begin()->first < first) {
      const int dead = ends.begin()->second;
      memory.give(program.buffers[dead].offset, size_of(dead));
      ends.erase(ends.begin());
    }
    program.buffers[buffer].offset = memory.take(size_of(buffer));
    ends.emplace(all.at(buffer).last, buffer);
    peak = std::max(peak, memory.end());
  }
  for (const Step& step : function.steps) {
    if (!step.body.empty() && step.workspace >= 0)
      move_iteration(program, step.body[0], program.buffers[step.workspace].offset);
  }
  return peak;
}

}  // namespace

void plan_memory(Program& program) {
  program.persistent_bytes = program.transient_bytes = program.offloaded_bytes = 0;
  for (Buffer& b : program.buffers) {
    if (b.arena == ArenaKind::transient) continue;
    const bool persists = b.arena == ArenaKind::persistent;
    int64_t& bytes = persists ? program.persistent_bytes : program.offloaded_bytes;
    b.offset = bytes;
    bytes += room_of(b);
  }
  for (Function& f : program.functions) {
    program.transient_bytes = std::max(program.transient_bytes, place(program, f));
  }
}

}  // namespace tessera
