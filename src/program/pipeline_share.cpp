// The text of a table has for each stage its runs: "0+8@3/2" is iterations 0 to 7, the first in
// tick 3 and another one every 2 ticks.
#include <algorithm>

#include "base/fail.h"
#include "program/program.h"

namespace tessera {

namespace {

struct Entry {
  int64_t tick, iteration;
};

std::string print_runs(const std::vector<Entry>& entries) {
  std::string text;
  for (size_t i = 0; i < entries.size();) {
    size_t end = i + 1;
    const int64_t stride = end < entries.size() ? entries[end].tick - entries[i].tick : 1;
    while (end < entries.size() && entries[end].iteration == entries[end - 1].iteration + 1 &&
           entries[end].tick == entries[end - 1].tick + stride)
      ++end;
    text += fmt::format("{}{}+{}@{}/{}", text.empty() ? "" : " ", entries[i].iteration, end - i,
                        entries[i].tick, end - i > 1 ? stride : 1);
    i = end;
  }
  return text;
}

}  // namespace

int64_t PipelineShare::iteration(int64_t in_tick, int64_t stage) const {
  const auto columns = std::ssize(*table) / ticks;
  return table->at(static_cast<size_t>(in_tick * columns + (columns > 1 ? stage : 0)));
}

std::string PipelineShare::to_string() const {
  std::string text = fmt::format(" {} in {} ticks s{}", tessera::to_string(work), ticks, tick);
  if (send_id > 0) text += fmt::format(" sends {}", send_id);
  if (recv_id > 0) text += fmt::format(" awaits {}", recv_id);
  for (int64_t stage = 0; stage < std::ssize(*table) / ticks; ++stage) {
    std::vector<Entry> entries;
    for (int64_t t = 0; t < ticks; ++t) {
      if (const int64_t run = iteration(t, stage); run >= 0) entries.push_back({t, run});
    }
    text += fmt::format("{}{}", stage == 0 ? " [" : "; ", print_runs(entries));
  }
  return text + "]";
}

std::pair<int64_t, int64_t> counters_of(const LoopStep& loop, std::span<const int> coordinates,
                                        const int64_t* scalars) {
  const int64_t first = loop.first.eval(coordinates, nullptr), all = first + loop.iterations;
  if (loop.share) {
    const PipelineShare& share = *loop.share;
    const int64_t stage = share.axis < 0 ? 0 : coordinates[static_cast<size_t>(share.axis)];
    const int64_t run = share.iteration(scalars[share.tick], stage);
    if (run < 0) return {first, first};
    if (loop.end < 0) return {run, run + 1};
  }
  return {first, loop.end < 0 ? all : std::clamp(loop.end, first, all)};
}

}  // namespace tessera
