#include "gpu/device/staged_collective.h"

#include <utility>

#include "collectives/blocks.h"

namespace tessera {

StagedCollective::StagedCollective(const RankGpu& gpu, GpuStreams& streams, GpuMemory& memory,
                                   GpuWait& wait, Communicator& group,
                                   const std::vector<Collective>& collectives, std::string why)
    : copies_(gpu.api.memory()),
      api_(gpu.api.streams()),
      streams_(streams),
      wait_(wait),
      why_(std::move(why)) {
  std::vector<Collective> there = collectives;
  for (Collective& c : there) {
    const int64_t item = size_of(c.dtype);
    Pair pair;
    pair.from = c.in;
    pair.to = c.out;
    const Extent extent = extent_of(c, group.size(), group.rank());
    pair.in_bytes = extent.in * item;
    pair.out_bytes = extent.out * item;
    pair.in = memory.pinned(pair.in_bytes);
    pair.out = memory.pinned(pair.out_bytes);
    pair.keeps_out = c.kind == CollectiveKind::exchange || c.kind == CollectiveKind::broadcast;
    c.in = pair.in;
    c.out = pair.out;
    pairs_.push_back(pair);
  }
  operation_ = group.prepare(there);
  ready_ = streams.make_event();
  done_ = streams.make_event();
}

void StagedCollective::start() {
  api_.record(ready_, streams_.compute());
  api_.wait(streams_.transfers(), ready_);
  for (const Pair& p : pairs_) {
    if (p.in_bytes > 0) copies_.to_host(p.in, p.from, p.in_bytes, streams_.transfers());
    if (p.keeps_out && p.out_bytes > 0)
      copies_.to_host(p.out, p.to, p.out_bytes, streams_.transfers());
  }
  wait_.finish(streams_.transfers());
  operation_->start();
}

void StagedCollective::wait() {
  operation_->wait();
  for (const Pair& p : pairs_) {
    if (p.out_bytes > 0) copies_.to_device(p.to, p.out, p.out_bytes, streams_.transfers());
  }
  api_.record(done_, streams_.transfers());
  api_.wait(streams_.compute(), done_);
}

}  // namespace tessera
