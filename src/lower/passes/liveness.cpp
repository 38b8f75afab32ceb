#include "lower/passes/liveness.h"

#include <algorithm>

#include "program/buffer_room.h"

namespace tessera {

bool touches(const std::vector<View>& views, int buffer) {
  return std::any_of(views.begin(), views.end(), [&](const View& v) { return v.buffer == buffer; });
}

std::map<int, LiveRange> live_ranges(const Program& program, const Function& function) {
  std::map<int, LiveRange> result;
  std::map<int, int> wait_of;
  for (size_t s = 0; s < function.steps.size(); ++s) {
    if (function.steps[s].kind == StepKind::wait)
      wait_of[function.steps[s].number] = static_cast<int>(s);
  }
  auto touch = [&](int buffer, int first, int last) {
    if (buffer < 0 || program.buffers[buffer].arena != ArenaKind::transient) return;
    if (std::binary_search(function.outer.begin(), function.outer.end(), buffer)) return;
    if (program.buffers[buffer].alternates) {
      first = 0;
      last = static_cast<int>(function.steps.size());
    }
    LiveRange& range = result[buffer];
    if (range.first < 0) range.first = first;
    range.last = std::max(range.last, last);
  };
  for (size_t s = 0; s < function.steps.size(); ++s) {
    const Step& step = function.steps[s];
    const int now = static_cast<int>(s);
    // What is awaited elsewhere lies in buffers of the loop around it.
    const auto wait = wait_of.find(step.number);
    const bool ends_here = step.kind == StepKind::collective && wait != wait_of.end();
    const int end = ends_here ? wait->second : now;
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

int64_t whole_room_of(const Buffer& buffer) {
  return room_of(buffer) * (buffer.alternates ? 2 : 1);
}

std::vector<int64_t> live_bytes(const Program& program, const Function& function) {
  std::vector<int64_t> bytes(function.steps.size() + 1, 0);
  for (const auto& [buffer, range] : live_ranges(program, function)) {
    const int64_t room = whole_room_of(program.buffers[buffer]);
    bytes[range.first] += room;
    if (range.last + 1 < static_cast<int>(bytes.size())) bytes[range.last + 1] -= room;
  }
  for (size_t s = 1; s < bytes.size(); ++s) bytes[s] += bytes[s - 1];
  for (size_t s = 0; s < function.steps.size(); ++s) {
    for (const Function& body : function.steps[s].body) bytes[s] += peak_live_bytes(program, body);
  }
  return bytes;
}

int64_t peak_live_bytes(const Program& program, const Function& function) {
  const std::vector<int64_t> bytes = live_bytes(program, function);
  return *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace tessera
