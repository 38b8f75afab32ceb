// Groups that share memory. A mailbox has two slots per rank, used in turn. A rank is at most one
// generation ahead of the slowest reader, because it cannot complete a rendezvous that the reader
// has not begun. So the slot of the generation before last is free, and one rendezvous per exchange
// suffices.
#include "collectives/peer_group.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

Mailbox::Mailbox(std::shared_ptr<Fabric> fabric, std::vector<int> ranks, int me)
    : fabric_(fabric),
      ranks_(ranks),
      me_(me),
      meeting_(fabric, ranks, me),
      own_slots_(static_cast<char*>(meeting_.hold(2 * kRecordBytes))) {}

Mailbox::Address Mailbox::address() const {
  return {meeting_.ticket(), fabric_->token(own_slots_)};
}

void Mailbox::connect(const std::vector<Address>& addresses) {
  std::vector<Rendezvous::Ticket> tickets;
  for (size_t q = 0; q < addresses.size(); ++q) {
    tickets.push_back(addresses[q].ticket);
    slots_.push_back(static_cast<int>(q) == me_ ? own_slots_
                                                : static_cast<const char*>(fabric_->resolve(
                                                      ranks_[q], addresses[q].slots)));
  }
  meeting_.connect(tickets);
}

void Mailbox::exchange_bytes(const void* mine, int64_t bytes, void* all, const Call& call,
                             double seconds) {
  fabric_->check(call);
  fabric_->note(call);
  const int64_t slot = (meeting_.generation() + 1) % 2 * kRecordBytes;
  std::memcpy(own_slots_ + slot, mine, static_cast<size_t>(bytes));
  meeting_.begin();
  meeting_.await_begin(call, seconds);
  for (size_t q = 0; q < slots_.size(); ++q) {
    std::memcpy(static_cast<char*>(all) + q * bytes, slots_[q] + slot, static_cast<size_t>(bytes));
  }
  meeting_.end();
}

std::vector<SplitRecord> members_of(const std::vector<SplitRecord>& all, int color) {
  std::vector<SplitRecord> members;
  for (const SplitRecord& record : all) {
    if (record.color == color) members.push_back(record);
  }
  std::stable_sort(members.begin(), members.end(),
                   [](const SplitRecord& a, const SplitRecord& b) { return a.key < b.key; });
  return members;
}

PeerCommunicator::PeerCommunicator(std::shared_ptr<Fabric> fabric, std::vector<int> ranks, int me,
                                   std::unique_ptr<Mailbox> mailbox)
    : Communicator(me, static_cast<int>(ranks.size())),
      fabric_(std::move(fabric)),
      ranks_(std::move(ranks)),
      mailbox_(std::move(mailbox)) {}

PeerCommunicator::~PeerCommunicator() {
  for (void* memory : memory_) fabric_->unmap(memory);
}

std::unique_ptr<Operation> PeerCommunicator::do_prepare(
    const std::vector<Collective>& collectives) {
  return make_peer_operation(fabric_, ranks_, rank_, *mailbox_, collectives, timeout_);
}

std::unique_ptr<Communicator> PeerCommunicator::do_split(int color, int key) {
  const Call call{CollectiveKind::barrier, true, {-1, "split"}};
  // The members are only known after a first exchange; then make the mailbox.
  const auto all = mailbox_->exchange(SplitRecord{color, key, ranks_[rank_], 0}, call, timeout_);
  std::vector<int> group, positions;
  int me = 0;
  for (const SplitRecord& member : members_of(all, color)) {
    if (member.rank == ranks_[rank_]) me = static_cast<int>(group.size());
    group.push_back(member.rank);
    positions.push_back(
        static_cast<int>(std::find(ranks_.begin(), ranks_.end(), member.rank) - ranks_.begin()));
  }
  auto mailbox = std::make_unique<Mailbox>(fabric_, group, me);
  const auto everybody = mailbox_->exchange(mailbox->address(), call, timeout_);
  std::vector<Mailbox::Address> addresses;
  for (const int position : positions) addresses.push_back(everybody[position]);
  mailbox->connect(addresses);
  return std::make_unique<PeerCommunicator>(fabric_, group, me, std::move(mailbox));
}

void* PeerCommunicator::do_allocate(int64_t bytes) {
  memory_.push_back(fabric_->map(std::max<int64_t>(bytes, 64)));
  return memory_.back();
}

Agreement agreement_of(const Collective& c) {
  Agreement a;
  a.number = c.site.number;
  a.kind = static_cast<int32_t>(c.kind);
  if (c.kind == CollectiveKind::barrier) return a;
  a.dtype = static_cast<int32_t>(c.dtype);
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      a.combiner = static_cast<int32_t>(c.combiner);
      a.sizes[0] = c.count;
      break;
    case CollectiveKind::broadcast:
      a.root = c.root;
      a.sizes[0] = c.count;
      break;
    case CollectiveKind::reduce_scatter:
      a.combiner = static_cast<int32_t>(c.combiner);
      [[fallthrough]];
    case CollectiveKind::all_gather:
      a.sizes[0] = c.outer;
      a.sizes[1] = c.inner;
      break;
    case CollectiveKind::all_to_all:
      a.split_first = c.split_first;
      a.row = c.counts == nullptr ? 0 : c.row;
      std::copy_n(std::initializer_list<int64_t>{c.pre, c.s, c.mid, c.c, c.post}.begin(), 5,
                  a.sizes);
      break;
    default:
      break;
  }
  return a;
}

namespace {

std::string text_of(const Agreement& a) {
  const auto kind = static_cast<CollectiveKind>(a.kind);
  std::string text = fmt::format("call {}, {}", a.number, to_string(kind));
  if (kind == CollectiveKind::barrier) return text;
  text += fmt::format(" of {}", to_string(static_cast<DType>(a.dtype)));
  switch (kind) {
    case CollectiveKind::all_reduce:
      return text + fmt::format(", {}, {} elements", to_string(static_cast<Combiner>(a.combiner)),
                                a.sizes[0]);
    case CollectiveKind::broadcast:
      return text + fmt::format(" from {}, {} elements", a.root, a.sizes[0]);
    case CollectiveKind::reduce_scatter:
      return text + fmt::format(", {}, outer {}, inner {}",
                                to_string(static_cast<Combiner>(a.combiner)), a.sizes[0],
                                a.sizes[1]);
    case CollectiveKind::all_gather:
      return text + fmt::format(", outer {}, inner {}", a.sizes[0], a.sizes[1]);
    case CollectiveKind::all_to_all:
      text += fmt::format(", pre {}, s {}, mid {}, c {}, post {}, split_first {}", a.sizes[0],
                          a.sizes[1], a.sizes[2], a.sizes[3], a.sizes[4], a.split_first != 0);
      return a.row == 0 ? text : text + fmt::format(", counted rows of {}", a.row);
    default:
      return text;
  }
}

}  // namespace

void check_agreement(const Call& call, const std::vector<Agreement>& all,
                     const std::vector<int>& world_ranks) {
  for (size_t q = 1; q < all.size(); ++q) {
    if (text_of(all[q]) == text_of(all[0])) continue;
    fail(ErrorKind::comm,
         "{}: the ranks disagree: rank {} prepares {}, but rank {} prepares {}; all ranks of a "
         "group "
         "make the same calls in the same order",
         describe(call), world_ranks[0], text_of(all[0]), world_ranks[q], text_of(all[q]));
  }
}

Call call_of(const std::vector<Collective>& collectives, bool preparing) {
  Call call{collectives[0].kind, preparing, collectives[0].site};
  if (collectives.size() > 1) call.site.text += fmt::format(" and {} more", collectives.size() - 1);
  return call;
}

void check_totals(const Call& call, int sender, int receiver, int64_t sent, int64_t expected) {
  TESSERA_REQUIRE(
      sender < 0,
      "{}: rank {} sends {} elements to rank {}, which expects {}; the totals of send and recv "
      "must be equal",
      describe(call), sender, sent, receiver, expected);
}

}  // namespace tessera
