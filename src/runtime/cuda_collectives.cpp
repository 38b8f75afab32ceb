// Collectives on the memory of cards, in three ways.
//
//   groups   NCCL, on the lane of transfers, where every rank has a card of its own.
//   peers    other ranks that are threads of this process on cards that reach each other: each
//   reads its peers' memory in place.
//            The host threads meet twice, so that every event is recorded before a peer waits for
//            it; no host thread waits for a card.
//   staged   any other: through memory of the host and the ranks' own communicator. Waits for the
//            card.
#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "collectives/blocks.h"
#include "runtime/cuda_device.h"

namespace tessera {
namespace {

/// Through pinned memory of the host.
class Staged final : public Operation, public Enqueued {
 public:
  Staged(CudaDevice& device, Communicator& group, const std::vector<Collective>& collectives,
         std::string why)
      : device_(device), why_(std::move(why)) {
    std::vector<Collective> there = collectives;
    for (Collective& c : there) {
      const int64_t item = size_of(c.dtype);
      Pair pair;
      pair.from = c.in;
      pair.to = c.out;
      const Extent extent = extent_of(c, group.size(), group.rank());
      pair.in_bytes = extent.in * item;
      pair.out_bytes = extent.out * item;
      pair.in = device_.pinned(pair.in_bytes);
      pair.out = device_.pinned(pair.out_bytes);
      pair.keeps_out = c.kind == CollectiveKind::exchange || c.kind == CollectiveKind::broadcast;
      c.in = pair.in;
      c.out = pair.out;
      pairs_.push_back(pair);
    }
    operation_ = group.prepare(there);
    ready_ = device_.make_event();
    done_ = device_.make_event();
  }

  void start() override {
    CudaApi& api = device_.api();
    api.record(ready_, device_.compute());
    api.wait(device_.transfers(), ready_);
    for (const Pair& p : pairs_) {
      if (p.in_bytes > 0) api.to_host(p.in, p.from, p.in_bytes, device_.transfers());
      if (p.keeps_out && p.out_bytes > 0)
        api.to_host(p.out, p.to, p.out_bytes, device_.transfers());
    }
    device_.finish(device_.transfers());
    operation_->start();
  }
  bool advance() override { return operation_->advance(); }
  bool is_in_background() const override { return operation_->is_in_background(); }
  void wait() override {
    CudaApi& api = device_.api();
    operation_->wait();
    for (const Pair& p : pairs_) {
      if (p.out_bytes > 0) api.to_device(p.to, p.out, p.out_bytes, device_.transfers());
    }
    api.record(done_, device_.transfers());
    api.wait(device_.compute(), done_);
  }
  std::string why_not_captured() const override { return "it goes through the host: " + why_; }
  std::string why_waits() const override { return why_not_captured(); }

 private:
  struct Pair {
    const void* from = nullptr;
    void* to = nullptr;
    void *in = nullptr, *out = nullptr;
    int64_t in_bytes = 0, out_bytes = 0;
    bool keeps_out = false;  ///< what `out` held counts: it has gaps, or is the root's
  };
  CudaDevice& device_;
  std::string why_;
  std::vector<Pair> pairs_;
  std::unique_ptr<Operation> operation_;
  CudaEvent ready_ = nullptr, done_ = nullptr;
};

/// Calls of NCCL.
class Grouped final : public Operation, public Enqueued {
 public:
  Grouped(CudaDevice& device, Communicator& world, CudaGroup group,
          const std::vector<Collective>& collectives)
      : device_(device), world_(world), group_(group), collectives_(collectives) {
    ready_ = device_.make_event();
    done_ = device_.make_event();
    report_ = device_.make_report(collectives[0].site);
  }
  void start() override {
    CudaApi& api = device_.api();
    CudaStream stream = device_.transfers();
    api.record(ready_, device_.compute());
    api.wait(stream, ready_);
    api.begin_calls();
    for (const Collective& c : collectives_) {
      if (c.kind == CollectiveKind::all_reduce) {
        api.all_reduce(group_, c.in, c.out, c.count, c.dtype, c.combiner, stream);
      } else if (c.kind == CollectiveKind::reduce_scatter) {
        api.reduce_scatter(group_, c.in, c.out, c.inner, c.dtype, c.combiner, stream);
      } else {
        api.all_gather(group_, c.in, c.out, c.inner, c.dtype, stream);
      }
    }
    api.end_calls();
    api.launch(report_, stream);
    api.record(done_, stream);
  }
  void wait() override {
    const std::string trouble = device_.api().trouble(group_);
    if (!trouble.empty()) {
      device_.abort_groups();
      tessera::fail(ErrorKind::comm, "[{}] {} (a collective of {} ranks, call {})",
                    collectives_[0].site.text, trouble, world_.size(), collectives_[0].site.number);
    }
    device_.api().wait(device_.compute(), done_);
  }
  /// What NCCL does as it is: no gaps between the ranks' parts, an operator it knows.
  static bool can(const Collective& c) {
    const bool kind =
        c.kind == CollectiveKind::all_reduce ||
        ((c.kind == CollectiveKind::reduce_scatter || c.kind == CollectiveKind::all_gather) &&
         c.outer == 1);
    return kind && c.combiner != Combiner::any && c.combiner != Combiner::all;
  }

 private:
  CudaDevice& device_;
  Communicator& world_;
  CudaGroup group_;
  std::vector<Collective> collectives_;
  CudaEvent ready_ = nullptr, done_ = nullptr;
  CudaLaunch report_;
};

/// Peers of one process whose cards reach each other: kernels that read every peer's operand where
/// it lies.
class Peers final : public Operation, public Enqueued {
 public:
  Peers(CudaDevice& device, Communicator& group, const std::vector<Collective>& collectives)
      : device_(device), ranks_(group.size()), rank_(group.rank()) {
    ready_ = device_.make_event();
    done_ = device_.make_event();
    std::vector<int64_t> mine = {reinterpret_cast<int64_t>(ready_),
                                 reinterpret_cast<int64_t>(done_)};
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
    Collective meet;
    meet.site.text = collectives[0].site.text;
    meet.site.number = collectives[0].site.number;
    meet_ = group.prepare(meet);
  }

  void start() override {
    CudaApi& api = device_.api();
    api.record(ready_, device_.compute());
    together();
    for (CudaEvent ready : peers_ready_) api.wait(device_.transfers(), ready);
    for (const CudaLaunch& launch : launches_) api.launch(launch, device_.transfers());
    api.record(done_, device_.transfers());
  }
  void wait() override {
    CudaApi& api = device_.api();
    together();
    for (CudaEvent done : peers_done_) api.wait(device_.compute(), done);
    for (const CudaLaunch& launch : after_) api.launch(launch, device_.compute());
  }
  std::string why_not_captured() const override { return "ranks of one process meet on the host"; }
  static bool can(const Collective& c) {
    return c.kind != CollectiveKind::exchange && c.kind != CollectiveKind::broadcast;
  }

 private:
  void together() {
    meet_->start();
    meet_->wait();
  }

  /// Rows of a part of a buffer.
  static TensorArg view(void* data, DType dtype, const Strided& part) {
    return {static_cast<char*>(data) + part.offset * size_of(dtype),
            dtype,
            {part.n0, part.n1, part.width},
            {part.stride0, part.stride1, 1}};
  }

  void copy(const TensorArg& from, const TensorArg& to) {
    CudaLaunch launch = device_.make_copy(from, to);
    if (launch.blocks > 0) launches_.push_back(std::move(launch));
  }

  /// out = the operands combined in the order of rank, narrow types in float32 and rounded once.
  void combine(const std::vector<TensorArg>& from, const TensorArg& out, Combiner combiner) {
    Step step;
    step.kernel = "pointwise";
    KernelArgs args;
    args.step = &step;
    args.in = from;
    args.out = {out};
    const bool narrow = is_narrow(out.dtype);
    const DType wide = narrow ? DType::float32 : out.dtype;
    auto& code = step.pointwise.code;
    int sum = -1;
    auto push = [&](Code what, DType dtype, int a, int b, int slot) {
      Instr instr;
      instr.code = what;
      instr.dtype = dtype;
      instr.a = a;
      instr.b = b;
      instr.slot = slot;
      code.push_back(instr);
      return static_cast<int>(code.size()) - 1;
    };
    const Code of[] = {Code::add,     Code::mul,        Code::maximum,
                       Code::minimum, Code::logical_or, Code::logical_and};
    Code joined = Code::add;
    const Combiner combiners[] = {Combiner::sum, Combiner::prod, Combiner::max,
                                  Combiner::min, Combiner::any,  Combiner::all};
    for (size_t i = 0; i < 6; ++i) {
      if (combiners[i] == combiner) joined = of[i];
    }
    for (int r = 0; r < ranks_; ++r) {
      int x = push(Code::load, out.dtype, -1, -1, r);
      if (narrow) x = push(Code::cast, wide, x, -1, -1);
      sum = sum < 0 ? x : push(joined, wide, sum, x, -1);
    }
    if (narrow) sum = push(Code::cast, out.dtype, sum, -1, -1);
    step.pointwise.outputs = {sum};
    CudaLaunch launch = device_.make_launch(cuda::generate_pointwise(args), args);
    if (launch.blocks > 0) launches_.push_back(std::move(launch));
  }

  void add(const Collective& c, const std::vector<char*>& from) {
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
    // Peers read `in` until all are done, and it may be `out`.
    void* result = device_.allocate(c.count * size_of(c.dtype), "sums of peers");
    combine(parts, view(result, c.dtype, packed(mine)), c.combiner);
    CudaLaunch last =
        device_.make_copy(view(result, c.dtype, packed(mine)), view(c.out, c.dtype, packed(mine)));
    if (last.blocks > 0) after_.push_back(std::move(last));
  }

  CudaDevice& device_;
  int ranks_, rank_;
  CudaEvent ready_ = nullptr, done_ = nullptr;
  std::vector<CudaEvent> peers_ready_, peers_done_;
  std::vector<CudaLaunch> launches_, after_;
  std::unique_ptr<Operation> meet_;
};

}  // namespace

/// The same on all ranks: whether each reaches every other.
bool CudaDevice::reaches_peers(Communicator& group) {
  const auto known = reached_.find(&group);
  if (known != reached_.end()) return known->second;
  std::vector<int64_t> cards(static_cast<size_t>(group.size()));
  const int64_t mine = card_;
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.dtype = DType::int64;
  gather.in = &mine;
  gather.out = cards.data();
  gather.inner = 1;
  gather.site.text = "cards of peers";
  group.run(gather);
  bool all = true;
  for (int64_t from : cards) {
    for (int64_t to : cards)
      all = all && api_.reaches(static_cast<int>(from), static_cast<int>(to));
  }
  return reached_[&group] = all;
}

std::unique_ptr<Operation> CudaDevice::prepare(Communicator& group,
                                               const std::vector<Collective>& collectives) {
  const UseCard here(api_, card_);
  auto all = [&](auto can) { return std::all_of(collectives.begin(), collectives.end(), can); };
  std::string why = "no way of the card's own does this kind";
  if (all(Grouped::can)) {
    if (CudaGroup cards = card_group(group, why))
      return std::make_unique<Grouped>(*this, group, cards, collectives);
  }
  if (std::string(group.backend()) == "threads" && all(Peers::can) && reaches_peers(group))
    return std::make_unique<Peers>(*this, group, collectives);
  return std::make_unique<Staged>(*this, group, collectives, why);
}

}  // namespace tessera
