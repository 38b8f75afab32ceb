#include "runtime/rank_memory.h"

#include <algorithm>

#include "program/buffer_room.h"

namespace tessera {

RankMemory::RankMemory(const RankContext& rank, std::map<int, void*> lent)
    : rank_(rank), lent_(std::move(lent)), odd_(rank.program.buffers.size(), 0) {
  const Program& program = rank.program;
  Device& device = rank.device;
  device.expect({{"persistent", program.persistent_bytes}, {"transient", program.transient_bytes}});
  persistent_ = static_cast<std::byte*>(device.allocate(program.persistent_bytes, "persistent"));
  transient_ = static_cast<std::byte*>(device.allocate(program.transient_bytes, "transient"));
  if (program.offloaded_bytes > 0)
    offloaded_ = static_cast<std::byte*>(device.allocate_on_host(program.offloaded_bytes));
}

void* RankMemory::address(const View& view) const {
  const Buffer& buffer = rank_.program.buffers[view.buffer];
  std::byte* base = buffer.arena == ArenaKind::persistent  ? persistent_
                    : buffer.arena == ArenaKind::offloaded ? offloaded_
                                                           : transient_;
  const int64_t other = odd_[static_cast<size_t>(view.buffer)] ? room_of(buffer) : 0;
  const auto lent = lent_.find(view.buffer);
  std::byte* first =
      lent == lent_.end() ? base + buffer.offset + other : static_cast<std::byte*>(lent->second);
  return first + (view.offset + view.shift.eval(rank_.coordinates, rank_.scalars.data())) *
                     size_of(view.dtype);
}

TensorArg RankMemory::argument(const View& view) const {
  return {address(view), view.dtype, view.sizes, view.strides};
}

void* RankMemory::workspace(const Step& step) const {
  return step.workspace < 0 ? nullptr : transient_ + rank_.program.buffers[step.workspace].offset;
}

void RankMemory::set_parity(const Function& body, int64_t iteration) {
  for (const Step& step : body.steps) {
    for (const auto* views : {&step.in, &step.out}) {
      for (const View& v : *views) {
        const auto b = static_cast<size_t>(v.buffer);
        if (rank_.program.buffers[b].alternates &&
            !std::binary_search(body.outer.begin(), body.outer.end(), v.buffer))
          odd_[b] = iteration % 2 != 0;
      }
    }
  }
}

}  // namespace tessera
