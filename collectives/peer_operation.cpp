// Collectives on memory that all ranks see. Nothing is sent: a rank synchronizes with the others
// (begin), reads what it needs from their `in` into its `out`, and synchronizes again (end) before
// anybody may touch its operands. Reductions read the inputs in rank order, so all results have the
// same bits.
//
//   small `in` (<= 4 KiB)   start() copies it into one of several slots, used in turn, so that
//                           nobody reads the operand itself and the second wait is not needed
//   a small broadcast       and exchange are streams: a rank only waits for those that it reads, a
//                           root for nobody
//   all_reduce              rank r combines share r of all inputs, block by block, into its own
//                           `out` and copies each block, still in the cache, to the `out` of the
//                           others. Only rank r touches share r of anything, so in == out needs no
//                           extra copy
//   counts                  are copied to one of two slots by start(); a rank reads as many rows of
//                           a block as its owner says, and zeroes the rest
//   other memory            is copied to or from memory that peers can see
//
// Several collectives in one operation share its two synchronizations.
#include <algorithm>
#include <array>

#include "base/fail.h"
#include "collectives/blocks.h"
#include "collectives/peer_group.h"

namespace tessera {
namespace {

constexpr int64_t kSmallSlots = 4096;

/// What every rank publishes in prepare().
struct Notice {
  Agreement agreement;
  Rendezvous::Ticket ticket;
  Token in, out, runs, counts;
  int64_t slot_bytes = 0;  ///< `in` is the first of several slots of this size; 0: one fixed `in`
};

/// True if a rank does not read all others.
bool can_stream(CollectiveKind kind) {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::exchange;
}

/// The number of slots of this size for a small operand.
uint32_t slots_of(CollectiveKind kind, int64_t slot_bytes) {
  constexpr int64_t kMost = 64;
  if (!can_stream(kind) || slot_bytes == 0) return 2;
  return static_cast<uint32_t>(std::min(kMost, 2 * kSmallSlots / slot_bytes));
}

/// A copy of one run of elements.
struct Move {
  int64_t from = 0, to = 0, length = 0;
};

/// One collective of an operation.
class PeerCollective {
 public:
  PeerCollective(const std::shared_ptr<Fabric>& fabric, const std::vector<int>& ranks, int me,
                 Rendezvous& meeting, const Collective& collective)
      : fabric_(fabric),
        ranks_(ranks),
        me_(me),
        c_(collective),
        meeting_(meeting),
        bytes_(size_of(collective.dtype)) {
    choose_memory();
  }
  /// Publishes where this rank's operands are and reads the same of the others. The first
  /// collective of an operation also connects its rendezvous.
  void publish(Mailbox& mailbox, bool first, double seconds);

  bool is_large() const { return large_; }
  /// Makes the rendezvous a stream if possible. For an operation of this collective alone.
  void stream();
  /// Before begin: copies the operand to where peers read it.
  void offer();
  /// Between begin and end: reads what this rank wants of all operands.
  void take();
  /// After end: copies the result to where the caller wants it.
  void keep();

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  int64_t counts_bytes() const { return size() * static_cast<int64_t>(sizeof(int64_t)); }
  void choose_memory();
  Token publish_runs();
  void match_runs(Mailbox& mailbox, const std::vector<Notice>& notices, double seconds);
  void take_parts();
  void take_counted(int q);
  void reduce_share();

  std::shared_ptr<Fabric> fabric_;
  const std::vector<int>& ranks_;
  int me_;
  Collective c_;
  Rendezvous& meeting_;
  int64_t bytes_;

  const void* operand_ = nullptr;  ///< the caller's `in`
  int64_t in_bytes_ = 0;
  int64_t slot_bytes_ = 0;
  char* in_ = nullptr;   ///< what peers read if it is a copy of operand_; else null
  char* out_ = nullptr;  ///< what peers write (large all_reduce)
  char* counts_ =
      nullptr;          ///< two slots with the elements for each rank, of a collective with counts
  bool large_ = false;  ///< some rank's operand is read in place

  struct Source {
    const char* base = nullptr;
    int64_t slot_bytes = 0;
    const char* counts = nullptr;
  };
  std::vector<Source> sources_;
  std::vector<int> readers_;  ///< for an exchange
  std::vector<char*> targets_;
  std::vector<const void*> inputs_, blocks_;
  LocalReduceScratch scratch_;
  std::vector<std::vector<Move>> moves_;
};

class PeerOperation final : public Operation {
 public:
  PeerOperation(const std::shared_ptr<Fabric>& fabric, const std::vector<int>& ranks, int me,
                Mailbox& mailbox, const std::vector<Collective>& collectives, const double& timeout)
      : fabric_(fabric),
        ranks_(ranks),
        timeout_(timeout),
        call_(call_of(collectives, false)),
        meeting_(fabric, ranks, me) {
    for (const Collective& c : collectives) {
      collectives_.push_back(std::make_unique<PeerCollective>(fabric, ranks_, me, meeting_, c));
      collectives_.back()->publish(mailbox, collectives_.size() == 1, timeout);
      large_ = large_ || collectives_.back()->is_large();
    }
    if (collectives_.size() == 1) collectives_[0]->stream();
  }

  void start() override;
  void wait() override;

 private:
  std::shared_ptr<Fabric> fabric_;
  std::vector<int> ranks_;
  const double& timeout_;
  Call call_;
  Rendezvous meeting_;
  std::vector<std::unique_ptr<PeerCollective>> collectives_;
  bool large_ = false;
};

void PeerCollective::choose_memory() {
  const Extent extent = extent_of(c_, size(), me_);
  in_bytes_ = extent.in * bytes_;
  operand_ = c_.kind == CollectiveKind::broadcast ? c_.out : c_.in;
  if (in_bytes_ == 0) return;
  if (c_.counts != nullptr) counts_ = static_cast<char*>(meeting_.hold(2 * counts_bytes()));
  if (in_bytes_ <= kSmallSlots) {
    slot_bytes_ = (in_bytes_ + 63) / 64 * 64;
    in_ = static_cast<char*>(meeting_.hold(slots_of(c_.kind, slot_bytes_) * slot_bytes_));
    return;
  }
  const bool in_seen = fabric_->visible(operand_, in_bytes_);
  if (!in_seen) in_ = static_cast<char*>(meeting_.hold(in_bytes_));
  if (c_.kind != CollectiveKind::all_reduce) return;
  const bool out_seen = fabric_->visible(c_.out, in_bytes_);
  out_ = out_seen ? static_cast<char*>(c_.out)
         : in_    ? in_
                  : static_cast<char*>(meeting_.hold(in_bytes_));
}

Token PeerCollective::publish_runs() {
  // For each rank q the start of its list among all runs; then the runs.
  size_t count = 0;
  for (const auto& list : c_.send) count += list.size();
  const int64_t head = (size() + 1) * static_cast<int64_t>(sizeof(int64_t));
  char* const memory =
      static_cast<char*>(meeting_.hold(head + static_cast<int64_t>(count * sizeof(Run))));
  int64_t place = 0;
  for (int q = 0; q <= size(); ++q) {
    std::memcpy(memory + q * sizeof(int64_t), &place, sizeof(place));
    if (q == size()) break;
    const auto& list = c_.send[q];
    if (!list.empty()) {
      std::memcpy(memory + head + place * sizeof(Run), list.data(), list.size() * sizeof(Run));
    }
    place += static_cast<int64_t>(list.size());
  }
  return fabric_->token(memory);
}

void PeerCollective::publish(Mailbox& mailbox, bool first, double seconds) {
  Notice mine;
  mine.agreement = agreement_of(c_);
  mine.ticket = meeting_.ticket();
  mine.slot_bytes = slot_bytes_;
  if (in_bytes_ > 0) mine.in = fabric_->token(in_ ? in_ : operand_);
  if (out_) mine.out = fabric_->token(out_);
  if (counts_) mine.counts = fabric_->token(counts_);
  const bool exchange = c_.kind == CollectiveKind::exchange;
  if (exchange) mine.runs = publish_runs();
  const Call call{c_.kind, true, c_.site};
  const std::vector<Notice> notices = mailbox.exchange(mine, call, seconds);
  std::vector<Agreement> agreements;
  std::vector<Rendezvous::Ticket> tickets;
  for (const Notice& notice : notices) {
    agreements.push_back(notice.agreement);
    tickets.push_back(notice.ticket);
  }
  if (first) meeting_.connect(tickets);
  check_agreement(call, agreements, ranks_);
  for (int q = 0; q < size(); ++q) {
    const Notice& notice = notices[q];
    Source source{nullptr, notice.slot_bytes};
    char* target = nullptr;
    if (q == me_) {
      source.base = in_ ? in_ : static_cast<const char*>(operand_);
      source.counts = counts_;
      target = out_;
    } else {
      if (notice.in.segment >= 0) {
        source.base = static_cast<const char*>(fabric_->resolve(ranks_[q], notice.in));
      }
      if (notice.counts.segment >= 0) {
        source.counts = static_cast<const char*>(fabric_->resolve(ranks_[q], notice.counts));
      }
      if (notice.out.segment >= 0) {
        target = static_cast<char*>(fabric_->resolve(ranks_[q], notice.out));
      }
    }
    sources_.push_back(source);
    targets_.push_back(target);
    large_ = large_ || (notice.in.segment >= 0 && notice.slot_bytes == 0);
  }
  inputs_.resize(size());
  blocks_.resize(size());
  if (exchange) match_runs(mailbox, notices, seconds);
  for (int q = 0; exchange && q < size(); ++q)
    if (q != me_ && total(c_.send[q]) > 0) readers_.push_back(q);
  c_.send.clear();
  c_.recv.clear();
}

void PeerCollective::stream() {
  if (large_ || !can_stream(c_.kind)) return;
  std::vector<int> sources;
  if (c_.kind == CollectiveKind::broadcast) {
    if (me_ != c_.root) sources = {c_.root};
    for (int q = 0; me_ == c_.root && q < size(); ++q)
      if (q != me_) readers_.push_back(q);
  }
  for (int q = 0; q < std::ssize(moves_); ++q)
    if (!moves_[q].empty() && q != me_) sources.push_back(q);
  meeting_.make_stream(std::move(sources), std::move(readers_), slots_of(c_.kind, slot_bytes_));
}

void PeerCollective::match_runs(Mailbox& mailbox, const std::vector<Notice>& notices,
                                double seconds) {
  struct Verdict {
    int sender = -1;
    int64_t sent = 0, expected = 0;
  } mine;
  moves_.resize(size());
  for (int q = 0; q < size(); ++q) {
    const char* memory = static_cast<const char*>(fabric_->resolve(ranks_[q], notices[q].runs));
    int64_t bounds[2];
    std::memcpy(bounds, memory + me_ * sizeof(int64_t), sizeof(bounds));
    std::vector<Run> from(static_cast<size_t>(bounds[1] - bounds[0]));
    if (!from.empty()) {
      std::memcpy(from.data(), memory + (size() + 1) * sizeof(int64_t) + bounds[0] * sizeof(Run),
                  from.size() * sizeof(Run));
    }
    if (total(from) != total(c_.recv[q])) {
      if (mine.sender < 0) mine = {ranks_[q], total(from), total(c_.recv[q])};
      continue;
    }
    // Cuts both lists where either has a bound.
    size_t i = 0;
    int64_t used = 0;
    for (const Run& to : c_.recv[q]) {
      for (int64_t done = 0; done < to.length;) {
        while (used == from[i].length) ++i, used = 0;
        const int64_t n = std::min(to.length - done, from[i].length - used);
        moves_[q].push_back({from[i].offset + used, to.offset + done, n});
        done += n;
        used += n;
      }
    }
  }
  const auto verdicts = mailbox.exchange(mine, Call{c_.kind, true, c_.site}, seconds);
  for (int r = 0; r < size(); ++r) {
    check_totals(Call{c_.kind, false, c_.site}, verdicts[r].sender, ranks_[r], verdicts[r].sent,
                 verdicts[r].expected);
  }
}

void PeerCollective::offer() {
  for (int q = 0; counts_ && q < size(); ++q) {
    const int64_t elements = counted_elements(c_, q);
    std::memcpy(counts_ + (meeting_.generation() + 1) % 2 * counts_bytes() +
                    q * static_cast<int64_t>(sizeof(int64_t)),
                &elements, sizeof(elements));
  }
  if (!in_) return;
  char* const place =
      in_ + (meeting_.generation() + 1) % slots_of(c_.kind, slot_bytes_) * slot_bytes_;
  std::memcpy(place, operand_, static_cast<size_t>(in_bytes_));
}

void PeerCollective::take() {
  for (int q = 0; q < size(); ++q) {
    const int64_t slot_bytes = sources_[q].slot_bytes;
    inputs_[q] =
        sources_[q].base + meeting_.generation() % slots_of(c_.kind, slot_bytes) * slot_bytes;
  }
  if (c_.kind == CollectiveKind::all_reduce && large_) return reduce_share();
  take_parts();
}

void PeerCollective::keep() {
  if (out_ && out_ != c_.out) std::memcpy(c_.out, out_, static_cast<size_t>(in_bytes_));
}

void PeerCollective::take_parts() {
  char* const out = static_cast<char*>(c_.out);
  switch (c_.kind) {
    case CollectiveKind::all_reduce:
      return local_reduce(inputs_.data(), size(), out, c_.count, c_.dtype, c_.combiner);
    case CollectiveKind::reduce_scatter:
      return local_reduce_strided(inputs_.data(), size(), wanted_part(c_, size(), me_), out,
                                  c_.dtype, c_.combiner, scratch_);
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all:
      // Starts with this rank, so that not all ranks read from the same peer at a time.
      for (int step = 0; step < size(); ++step) {
        const int q = (me_ + step) % size();
        if (counts_) {
          take_counted(q);
          continue;
        }
        copy_strided(out, kept_part(c_, size(), q), inputs_[q], wanted_part(c_, size(), me_),
                     bytes_);
      }
      return;
    case CollectiveKind::exchange:
      for (int step = 0; step < size(); ++step) {
        const int q = (me_ + step) % size();
        for (const Move& move : moves_[q]) {
          std::memcpy(out + move.to * bytes_,
                      static_cast<const char*>(inputs_[q]) + move.from * bytes_,
                      static_cast<size_t>(move.length * bytes_));
        }
      }
      return;
    case CollectiveKind::broadcast:
      if (me_ != c_.root && c_.count > 0) {
        std::memcpy(out, inputs_[c_.root], static_cast<size_t>(c_.count * bytes_));
      }
      return;
    case CollectiveKind::barrier:
      return;
  }
}

void PeerCollective::take_counted(int q) {
  int64_t elements = 0;
  std::memcpy(&elements,
              sources_[q].counts + meeting_.generation() % 2 * counts_bytes() +
                  me_ * static_cast<int64_t>(sizeof(int64_t)),
              sizeof(elements));
  const auto bytes = static_cast<size_t>(elements * bytes_);
  char* const to = static_cast<char*>(c_.out) + q * c_.post * bytes_;
  std::memcpy(to, static_cast<const char*>(inputs_[q]) + me_ * c_.post * bytes_, bytes);
  std::memset(to + bytes, 0, static_cast<size_t>(c_.post * bytes_) - bytes);
}

void PeerCollective::reduce_share() {
  constexpr int64_t kBlockBytes = 16 * 1024;
  const Share share = share_of(c_.count, size(), me_);
  const int64_t block = kBlockBytes / bytes_;
  for (int64_t at = share.begin; at < share.end; at += block) {
    const int64_t n = std::min(block, share.end - at), offset = at * bytes_;
    for (int q = 0; q < size(); ++q) blocks_[q] = static_cast<const char*>(inputs_[q]) + offset;
    char* const mine = out_ + offset;
    local_reduce(blocks_.data(), size(), mine, n, c_.dtype, c_.combiner);
    for (int q = 0; q < size(); ++q) {
      if (q != me_) std::memcpy(targets_[q] + offset, mine, static_cast<size_t>(n * bytes_));
    }
  }
}

void PeerOperation::start() {
  fabric_->check(call_);
  if (meeting_.in_flight())
    fail(ErrorKind::internal, "{}: started twice without a wait", describe(call_));
  fabric_->note(call_);
  meeting_.await_free(call_, timeout_);
  for (const auto& part : collectives_) part->offer();
  meeting_.begin();
}

void PeerOperation::wait() {
  if (!meeting_.in_flight())
    fail(ErrorKind::internal, "{}: waited for without a start", describe(call_));
  try {
    meeting_.await_begin(call_, timeout_);
    if (large_) meeting_.enter(call_);
    for (const auto& part : collectives_) part->take();
    if (large_) meeting_.leave();
    meeting_.end();
    if (large_) meeting_.await_end(call_, timeout_);
  } catch (...) {
    meeting_.leave();
    meeting_.quiesce();
    throw;
  }
  for (const auto& part : collectives_) part->keep();
}

}  // namespace

std::unique_ptr<Operation> make_peer_operation(const std::shared_ptr<Fabric>& fabric,
                                               const std::vector<int>& ranks, int me,
                                               Mailbox& mailbox,
                                               const std::vector<Collective>& collectives,
                                               const double& timeout) {
  return std::make_unique<PeerOperation>(fabric, ranks, me, mailbox, collectives, timeout);
}

}  // namespace tessera
