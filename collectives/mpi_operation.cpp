// Collectives by messages. An operation is a short list of phases. Each phase is a set of sends and
// receives with fixed addresses and a little work before and after.
//
//   all_reduce      small: everybody sends `in` to all and combines all of it. Large: share q of
//                   `in` goes to rank q, which combines it in rank order and sends the result to
//                   all: 2 (P-1)/P of the bytes, and the same bits everywhere
//   reduce_scatter  the first half of that
//   all_gather, all_to_all, exchange   one phase; parts that are not contiguous are packed
//   with counts     the counts, then as many messages as they say
//   broadcast       down a binomial tree
//   barrier         log2 P rounds, in round k with the ranks at distance 2^k
#include <algorithm>
#include <exception>
#include <functional>

#include "base/fail.h"
#include "collectives/blocks.h"
#include "collectives/mpi_group.h"

namespace tessera {
namespace {

constexpr int64_t kSmallReduction = 4096;

bool contiguous(const Strided& part) {
  return (part.n1 == 1 || part.stride1 == part.width) &&
         (part.n0 == 1 || part.stride0 == part.n1 * part.width);
}

/// One round of messages for all collectives of an operation.
struct Phase {
  std::unique_ptr<Transfers> transfers;
  std::vector<std::function<void()>> before, after;
  /// Of messages whose sizes the phase before it told: makes them.
  std::function<std::unique_ptr<Transfers>()> make = {};
  void launch() {
    if (make) transfers = make();
    for (const auto& work : before) work();
    transfers->start();
  }
};
using Phases = std::vector<Phase>;

/// One collective of an operation. Adds its messages to the phases, starting with the first.
class MessageCollective {
 public:
  MessageCollective(MessageCommunicator& group, int tag, const Collective& collective,
                    Phases& phases)
      : group_(group),
        tag_(tag),
        c_(collective),
        bytes_(size_of(collective.dtype)),
        in_(static_cast<const char*>(collective.in)),
        out_(static_cast<char*>(collective.out)),
        phases_(phases) {
    plan();
  }

 private:
  int size() const { return group_.size(); }
  int me() const { return group_.rank(); }
  Phase& new_phase() {
    if (next_phase_ == phases_.size()) {
      phases_.push_back({group_.fabric().wire().transfers(), {}, {}, {}});
    }
    return phases_[next_phase_++];
  }
  char* scratch(int64_t bytes) {
    buffers_.push_back(std::make_unique<char[]>(static_cast<size_t>(bytes)));
    return buffers_.back().get();
  }
  void send(Phase& phase, int q, const void* data, int64_t elements) {
    phase.transfers->send(group_.ranks()[q], tag_, data, elements * bytes_);
  }
  void receive(Phase& phase, int q, void* data, int64_t elements) {
    phase.transfers->receive(group_.ranks()[q], tag_, data, elements * bytes_);
  }
  void plan() {
    switch (c_.kind) {
      case CollectiveKind::all_reduce:
        return c_.count * bytes_ <= kSmallReduction ? plan_small_all_reduce() : plan_all_reduce();
      case CollectiveKind::exchange:
        return plan_exchange();
      case CollectiveKind::broadcast:
        return plan_broadcast();
      case CollectiveKind::barrier:
        return plan_barrier();
      default:
        return c_.counts != nullptr ? plan_counted() : plan_parts();
    }
  }
  void plan_small_all_reduce();
  void plan_all_reduce();
  void plan_parts();
  void plan_counted();
  void plan_exchange();
  void plan_broadcast();
  void plan_barrier();
  void copy_runs(const std::vector<Run>& runs, const char* from, char* to, bool pack) const;

  MessageCommunicator& group_;
  int tag_;
  Collective c_;
  int64_t bytes_;
  const char* in_;
  char* out_;
  Phases& phases_;
  size_t next_phase_ = 0;
  std::vector<std::unique_ptr<char[]>> buffers_;
  std::vector<int64_t> sent_, received_;  ///< elements, by rank, of a collective with counts
};

class MessageOperation final : public Operation, private Driven {
 public:
  MessageOperation(MessageCommunicator& group, int tag, const std::vector<Collective>& collectives)
      : group_(group), call_(std::make_shared<const Call>(call_of(collectives, false))) {
    for (const Collective& c : collectives)
      collectives_.push_back(std::make_unique<MessageCollective>(group, tag, c, phases_));
  }
  ~MessageOperation() override {
    progress().remove(*this);
    if (in_flight_) group_.fabric().raise("an operation was destroyed between start and wait");
  }

  void start() override {
    group_.fabric().check(*call_);
    if (in_flight_) fail(ErrorKind::internal, "{}: started twice without a wait", describe(*call_));
    group_.fabric().note(*call_);
    in_flight_ = true;
    now_ = 0;
    error_ = nullptr;
    {
      const auto held = progress().lock();
      phases_[0].launch();
      progress().note();
    }
    progress().add(*this);
  }

  bool advance() override {
    const auto held = progress().lock();
    progress().note();
    drive();
    return now_ >= phases_.size();
  }
  bool is_in_background() const override { return true; }

  void wait() override {
    if (!in_flight_) fail(ErrorKind::internal, "{}: waited for without a start", describe(*call_));
    progress().remove(*this);
    if (error_) std::rethrow_exception(error_);
    while (now_ < phases_.size()) {
      group_.complete(*phases_[now_].transfers, *call_);
      next();
    }
    in_flight_ = false;
    group_.fabric().heard(group_.ranks(), call_);
  }

 private:
  Progress& progress() { return group_.fabric().progress(); }

  /// Called by the rank or by the progress thread. Errors are kept and thrown in wait().
  void drive() override {
    try {
      while (!error_ && in_flight_ && now_ < phases_.size() && phases_[now_].transfers->test())
        next();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  void next() {
    for (const auto& work : phases_[now_].after) work();
    if (++now_ < phases_.size()) phases_[now_].launch();
  }

  MessageCommunicator& group_;
  std::shared_ptr<const Call> call_;
  bool in_flight_ = false;
  size_t now_ = 0;  ///< the phase in progress
  std::exception_ptr error_;
  std::vector<std::unique_ptr<MessageCollective>>
      collectives_;  // their buffers must outlive the transfers
  Phases phases_;
};

void MessageCollective::plan_small_all_reduce() {
  Phase& phase = new_phase();
  std::vector<const void*> inputs(size());
  for (int q = 0; q < size(); ++q) {
    if (q == me()) {
      inputs[q] = in_;
      continue;
    }
    char* const place = scratch(c_.count * bytes_);
    inputs[q] = place;
    receive(phase, q, place, c_.count);
    send(phase, q, in_, c_.count);
  }
  phase.after.push_back([this, inputs] {
    local_reduce(inputs.data(), size(), out_, c_.count, c_.dtype, c_.combiner);
  });
}

void MessageCollective::plan_all_reduce() {
  const Share mine = share_of(c_.count, size(), me());
  const int64_t length = mine.end - mine.begin;
  std::vector<const void*> inputs(size());
  Phase& scatter = new_phase();
  for (int step = 1; step < size(); ++step) {
    const int q = (me() + step) % size(), p = (me() + size() - step) % size();
    const Share theirs = share_of(c_.count, size(), q);
    char* const place = scratch(length * bytes_);
    inputs[p] = place;
    receive(scatter, p, place, length);
    send(scatter, q, in_ + theirs.begin * bytes_, theirs.end - theirs.begin);
  }
  inputs[me()] = in_ + mine.begin * bytes_;
  scatter.after.push_back([this, inputs, mine, length] {
    local_reduce(inputs.data(), size(), out_ + mine.begin * bytes_, length, c_.dtype, c_.combiner);
  });
  Phase& gather = new_phase();
  for (int step = 1; step < size(); ++step) {
    const int q = (me() + step) % size(), p = (me() + size() - step) % size();
    const Share theirs = share_of(c_.count, size(), p);
    receive(gather, p, out_ + theirs.begin * bytes_, theirs.end - theirs.begin);
    send(gather, q, out_ + mine.begin * bytes_, length);
  }
}

void MessageCollective::plan_parts() {
  const bool reduces = c_.kind == CollectiveKind::reduce_scatter;
  std::vector<const void*> inputs(size());
  Phase& phase = new_phase();
  for (int step = 1; step < size(); ++step) {
    const int q = (me() + step) % size(), p = (me() + size() - step) % size();
    const Strided ours = wanted_part(c_, size(), q);
    if (contiguous(ours)) {
      send(phase, q, in_ + ours.offset * bytes_, ours.elements());
    } else {
      char* const place = scratch(ours.elements() * bytes_);
      phase.before.push_back([=, this] { copy_strided(place, packed(ours), in_, ours, bytes_); });
      send(phase, q, place, ours.elements());
    }
    const Strided theirs = reduces ? packed(ours) : kept_part(c_, size(), p);
    if (!reduces && contiguous(theirs)) {
      receive(phase, p, out_ + theirs.offset * bytes_, theirs.elements());
      continue;
    }
    char* const place = scratch(theirs.elements() * bytes_);
    receive(phase, p, place, theirs.elements());
    inputs[p] = place;
    if (reduces) continue;
    phase.after.push_back([=, this] { copy_strided(out_, theirs, place, packed(theirs), bytes_); });
  }
  const Strided own = wanted_part(c_, size(), me());
  if (!reduces) {
    const Strided place = kept_part(c_, size(), me());
    phase.after.push_back([=, this] { copy_strided(out_, place, in_, own, bytes_); });
    return;
  }
  // Our own part is packed into the result: local_reduce() may write over one of its inputs.
  inputs[me()] = out_;
  phase.after.push_back([=, this] {
    copy_strided(out_, packed(own), in_, own, bytes_);
    local_reduce(inputs.data(), size(), out_, own.elements(), c_.dtype, c_.combiner);
  });
}

void MessageCollective::plan_counted() {
  sent_.resize(static_cast<size_t>(size()));
  received_.resize(static_cast<size_t>(size()));
  Phase& counts = new_phase();
  counts.before.push_back([this] {
    for (int q = 0; q < size(); ++q) sent_[q] = counted_elements(c_, q);
    received_[me()] = sent_[me()];
  });
  for (int step = 1; step < size(); ++step) {
    const int q = (me() + step) % size(), p = (me() + size() - step) % size();
    const auto bytes = static_cast<int64_t>(sizeof(int64_t));
    counts.transfers->receive(group_.ranks()[p], tag_, &received_[p], bytes);
    counts.transfers->send(group_.ranks()[q], tag_, &sent_[q], bytes);
  }
  Phase& rows = new_phase();
  const int64_t block = c_.post * bytes_;
  rows.make = [this, block] {
    std::unique_ptr<Transfers> transfers = group_.fabric().wire().transfers();
    for (int step = 1; step < size(); ++step) {
      const int q = (me() + step) % size(), p = (me() + size() - step) % size();
      if (received_[p] > 0)
        transfers->receive(group_.ranks()[p], tag_, out_ + p * block, received_[p] * bytes_);
      if (sent_[q] > 0)
        transfers->send(group_.ranks()[q], tag_, in_ + q * block, sent_[q] * bytes_);
    }
    return transfers;
  };
  rows.after.push_back([this, block] {
    const auto own = static_cast<size_t>(sent_[me()] * bytes_);
    std::memcpy(out_ + me() * block, in_ + me() * block, own);
    for (int p = 0; p < size(); ++p)
      std::memset(out_ + p * block + received_[p] * bytes_, 0,
                  static_cast<size_t>(block - received_[p] * bytes_));
  });
}

void MessageCollective::copy_runs(const std::vector<Run>& runs, const char* from, char* to,
                                  bool pack) const {
  int64_t at = 0;
  for (const Run& run : runs) {
    const int64_t sparse = run.offset * bytes_;
    if (run.length > 0) {
      std::memcpy(to + (pack ? at : sparse), from + (pack ? sparse : at),
                  static_cast<size_t>(run.length * bytes_));
    }
    at += run.length * bytes_;
  }
}

void MessageCollective::plan_exchange() {
  Phase& phase = new_phase();
  for (int step = 0; step < size(); ++step) {
    const int q = (me() + step) % size();
    const int64_t sent = total(c_.send[q]), received = total(c_.recv[q]);
    if (sent > 0) {
      char* const place = scratch(sent * bytes_);
      phase.before.push_back([=, this] { copy_runs(c_.send[q], in_, place, true); });
      if (q == me()) {
        phase.after.push_back([=, this] { copy_runs(c_.recv[q], place, out_, false); });
        continue;
      }
      send(phase, q, place, sent);
    }
    if (received > 0) {
      char* const place = scratch(received * bytes_);
      receive(phase, q, place, received);
      phase.after.push_back([=, this] { copy_runs(c_.recv[q], place, out_, false); });
    }
  }
}

void MessageCollective::plan_broadcast() {
  const int place = (me() - c_.root + size()) % size();
  auto rank_at = [&](int where) { return (where + c_.root) % size(); };
  int reach = place & -place;  // lowest set bit: the parent clears it, children lie below it
  if (place == 0) {
    for (reach = 1; reach < size();) reach *= 2;
  } else {
    receive(new_phase(), rank_at(place - reach), out_, c_.count);
  }
  Phase& phase = new_phase();
  for (int step = reach / 2; step > 0; step /= 2) {
    if (place + step < size()) send(phase, rank_at(place + step), out_, c_.count);
  }
}

void MessageCollective::plan_barrier() {
  for (int step = 1; step < size(); step *= 2) {
    Phase& phase = new_phase();
    receive(phase, (me() + size() - step) % size(), out_, 0);
    send(phase, (me() + step) % size(), in_, 0);
  }
}

}  // namespace

std::unique_ptr<Operation> make_message_operation(MessageCommunicator& group, int tag,
                                                  const std::vector<Collective>& collectives) {
  return std::make_unique<MessageOperation>(group, tag, collectives);
}

}  // namespace tessera
