// The host threads meet twice per collective, so that every event is recorded before a peer waits
// for it. No host thread waits for a GPU.
#include "gpu/device/peer_collective.h"

#include <utility>

#include "collectives/blocks.h"

namespace tessera {

namespace {

/// The rows of a part of a buffer as an operand.
TensorArg view(void* data, DType dtype, const Strided& part) {
  return {static_cast<char*>(data) + part.offset * size_of(dtype),
          dtype,
          {part.n0, part.n1, part.width},
          {part.stride0, part.stride1, 1}};
}

}  // namespace

PeerCollective::PeerCollective(const RankGpu& gpu, GpuStreams& streams, GpuMemory& memory,
                               GpuKernels& kernels, Communicator& group,
                               const std::vector<Collective>& collectives)
    : api_(gpu.api),
      streams_(streams),
      memory_(memory),
      kernels_(kernels),
      ranks_(group.size()),
      rank_(group.rank()) {
  ready_ = streams.make_event();
  done_ = streams.make_event();
  std::vector<int64_t> mine = {reinterpret_cast<int64_t>(ready_), reinterpret_cast<int64_t>(done_)};
  for (const Collective& c : collectives) mine.push_back(reinterpret_cast<int64_t>(c.in));
  const auto each = static_cast<int64_t>(mine.size());
  std::vector<int64_t> all(static_cast<size_t>(each * ranks_));
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.dtype = DType::int64;
  gather.in = mine.data();
  gather.out = all.data();
  gather.inner = each;
  gather.site.text = "addresses of peers";
  group.run(gather);
  for (int r = 0; r < ranks_; ++r) {
    peers_ready_.push_back(reinterpret_cast<CudaEvent>(all[static_cast<size_t>(r * each)]));
    peers_done_.push_back(reinterpret_cast<CudaEvent>(all[static_cast<size_t>(r * each + 1)]));
  }
  for (size_t i = 0; i < collectives.size(); ++i) {
    std::vector<char*> from;
    for (int r = 0; r < ranks_; ++r)
      from.push_back(reinterpret_cast<char*>(all[static_cast<size_t>(r * each) + 2 + i]));
    add(collectives[i], from);
  }
  Collective meeting;
  meeting.site.text = collectives[0].site.text;
  meeting.site.number = collectives[0].site.number;
  meeting_ = group.prepare(meeting);
}

void PeerCollective::start() {
  CudaStreamApi& streams = api_.streams();
  streams.record(ready_, streams_.compute());
  meet();
  for (CudaEvent ready : peers_ready_) streams.wait(streams_.transfers(), ready);
  for (const CudaLaunch& launch : launches_) api_.kernels().launch(launch, streams_.transfers());
  streams.record(done_, streams_.transfers());
}

void PeerCollective::wait() {
  meet();
  for (CudaEvent done : peers_done_) api_.streams().wait(streams_.compute(), done);
  for (const CudaLaunch& launch : after_) api_.kernels().launch(launch, streams_.compute());
}

bool PeerCollective::can(const Collective& c) {
  return c.kind != CollectiveKind::exchange && c.kind != CollectiveKind::broadcast;
}

void PeerCollective::meet() {
  meeting_->start();
  meeting_->wait();
}

void PeerCollective::copy(const TensorArg& from, const TensorArg& to) {
  CudaLaunch launch = kernels_.make_copy(from, to);
  if (launch.blocks > 0) launches_.push_back(std::move(launch));
}

/// out = the operands combined in rank order; 16-bit types in float32, rounded once.
void PeerCollective::combine(const std::vector<TensorArg>& from, const TensorArg& out,
                             Combiner combiner) {
  Step step;
  step.kernel = KernelKind::pointwise;
  KernelArgs args;
  args.step = &step;
  args.in = from;
  args.out = {out};
  const bool narrow = is_narrow(out.dtype);
  const DType wide = narrow ? DType::float32 : out.dtype;
  auto& code = step.pointwise.code;
  int sum = -1;
  auto push = [&](PointwiseOp what, DType dtype, int a, int b, int slot) {
    Instr instr;
    instr.code = what;
    instr.dtype = dtype;
    instr.a = a;
    instr.b = b;
    instr.slot = slot;
    code.push_back(instr);
    return static_cast<int>(code.size()) - 1;
  };
  const PointwiseOp of[] = {PointwiseOp::add,        PointwiseOp::mul,
                            PointwiseOp::maximum,    PointwiseOp::minimum,
                            PointwiseOp::logical_or, PointwiseOp::logical_and};
  PointwiseOp joined = PointwiseOp::add;
  const Combiner combiners[] = {Combiner::sum, Combiner::prod, Combiner::max,
                                Combiner::min, Combiner::any,  Combiner::all};
  for (size_t i = 0; i < 6; ++i) {
    if (combiners[i] == combiner) joined = of[i];
  }
  for (int r = 0; r < ranks_; ++r) {
    int x = push(PointwiseOp::load, out.dtype, -1, -1, r);
    if (narrow) x = push(PointwiseOp::cast, wide, x, -1, -1);
    sum = sum < 0 ? x : push(joined, wide, sum, x, -1);
  }
  if (narrow) sum = push(PointwiseOp::cast, out.dtype, sum, -1, -1);
  step.pointwise.outputs = {sum};
  CudaLaunch launch = kernels_.make_launch(cuda::generate_pointwise(args), args);
  if (launch.blocks > 0) launches_.push_back(std::move(launch));
}

void PeerCollective::add(const Collective& c, const std::vector<char*>& from) {
  const Strided mine = wanted_part(c, ranks_, rank_);
  const bool reduces =
      c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::reduce_scatter;
  if (!reduces) {
    for (int r = 0; r < ranks_; ++r) {
      copy(view(from[static_cast<size_t>(r)], c.dtype, mine),
           view(c.out, c.dtype, kept_part(c, ranks_, r)));
    }
    return;
  }
  std::vector<TensorArg> parts;
  for (char* p : from) parts.push_back(view(p, c.dtype, mine));
  if (c.kind == CollectiveKind::reduce_scatter)
    return combine(parts, view(c.out, c.dtype, packed(mine)), c.combiner);
  // The result is copied to `out` only after all peers are done: it may be `in`, which they read.
  void* result = memory_.allocate(c.count * size_of(c.dtype), "sums of peers");
  combine(parts, view(result, c.dtype, packed(mine)), c.combiner);
  CudaLaunch last =
      kernels_.make_copy(view(result, c.dtype, packed(mine)), view(c.out, c.dtype, packed(mine)));
  if (last.blocks > 0) after_.push_back(std::move(last));
}

}  // namespace tessera
