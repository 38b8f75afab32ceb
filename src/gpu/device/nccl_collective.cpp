#include "gpu/device/nccl_collective.h"

#include "base/fail.h"

namespace tessera {

NcclCollective::NcclCollective(const RankGpu& gpu, GpuStreams& streams, GpuGroups& groups,
                               CollectiveReports& reports, Communicator& ranks, CudaGroup joined,
                               const std::vector<Collective>& collectives)
    : api_(gpu.api),
      streams_(streams),
      groups_(groups),
      ranks_(ranks),
      group_(joined),
      collectives_(collectives) {
  ready_ = streams.make_event();
  done_ = streams.make_event();
  report_ = reports.make(collectives[0].site);
}

void NcclCollective::start() {
  CudaStreamApi& streams = api_.streams();
  CudaNcclApi& nccl = groups_.nccl();
  const CudaStream stream = streams_.transfers();
  streams.record(ready_, streams_.compute());
  streams.wait(stream, ready_);
  try {
    call(nccl, stream);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::comm) throw;
    give_up(e.what());
  }
  api_.kernels().launch(report_, stream);
  streams.record(done_, stream);
}

void NcclCollective::call(CudaNcclApi& nccl, CudaStream stream) {
  nccl.begin_calls();
  for (const Collective& c : collectives_) {
    if (c.kind == CollectiveKind::all_reduce) {
      nccl.all_reduce(group_, c.in, c.out, c.count, c.dtype, c.combiner, stream);
    } else if (c.kind == CollectiveKind::reduce_scatter) {
      nccl.reduce_scatter(group_, c.in, c.out, c.inner, c.dtype, c.combiner, stream);
    } else {
      nccl.all_gather(group_, c.in, c.out, c.inner, c.dtype, stream);
    }
  }
  nccl.end_calls();
}

void NcclCollective::give_up(const std::string& why) {
  groups_.abort();
  fail(ErrorKind::comm, "[{}] {} (a collective of {} ranks, call {})", collectives_[0].site.text,
       why, ranks_.size(), collectives_[0].site.number);
}

void NcclCollective::wait() {
  const std::string trouble = groups_.nccl().trouble(group_);
  if (!trouble.empty()) give_up(trouble);
  api_.streams().wait(streams_.compute(), done_);
}

bool NcclCollective::can(const Collective& c) {
  const bool kind =
      c.kind == CollectiveKind::all_reduce ||
      ((c.kind == CollectiveKind::reduce_scatter || c.kind == CollectiveKind::all_gather) &&
       c.outer == 1);
  return kind && c.combiner != Combiner::any && c.combiner != Combiner::all;
}

}  // namespace tessera
