// The largest buffers are placed first, each at the lowest offset that no buffer alive at the same
// time has (Pisarchyk and Lee 2020, greedy by size). Mostly this takes no more than what is alive
// at once. A result that may be written over an operand takes its place. The buffers of a loop's
// body are placed before, inside one buffer that is alive as long as the loop.
#include "lower/passes/plan_memory.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/fail.h"
#include "lower/passes/in_place_results.h"
#include "lower/passes/liveness.h"
#include "program/buffer_room.h"

namespace tessera {

namespace {

/// Memory that buffers have one after the other, each from the step that ends the one before.
struct Block {
  LiveRange range;
  int64_t bytes = 0, offset = 0;
  std::vector<int> buffers = {};
};

std::vector<Block> blocks_of(const Program& program, const Function& function) {
  const std::map<int, LiveRange> ranges = live_ranges(program, function);
  const std::map<int, int> operand_of = in_place_results(program, function, ranges);
  std::vector<int> order;
  for (const auto& [buffer, range] : ranges) order.push_back(buffer);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return ranges.at(a).first < ranges.at(b).first; });
  std::vector<Block> blocks;
  std::map<int, size_t> block_of;
  for (const int buffer : order) {
    const LiveRange& range = ranges.at(buffer);
    const auto operand = operand_of.find(buffer);
    const size_t number =
        operand == operand_of.end() ? blocks.size() : block_of.at(operand->second);
    if (number == blocks.size())
      blocks.push_back({range, whole_room_of(program.buffers[buffer]), 0});
    blocks[number].range.last = range.last;
    blocks[number].buffers.push_back(buffer);
    block_of[buffer] = number;
  }
  return blocks;
}

/// Sets the offsets of the blocks and returns the end of the last one.
int64_t place(std::vector<Block>& blocks) {
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& a, const Block& b) { return a.bytes > b.bytes; });
  std::vector<const Block*> placed;  // by offset
  int64_t peak = 0;
  for (Block& block : blocks) {
    for (const Block* other : placed) {
      if (other->range.last < block.range.first || block.range.last < other->range.first) continue;
      if (block.offset + block.bytes <= other->offset) break;
      block.offset = std::max(block.offset, other->offset + other->bytes);
    }
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), &block,
                         [](const Block* a, const Block* b) { return a->offset < b->offset; }),
        &block);
    peak = std::max(peak, block.offset + block.bytes);
  }
  return peak;
}

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
  std::vector<Block> blocks = blocks_of(program, function);
  const int64_t peak = place(blocks);
  for (const Block& block : blocks) {
    for (const int buffer : block.buffers) program.buffers[buffer].offset = block.offset;
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
