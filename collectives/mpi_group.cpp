// Groups across hosts. They need no MPI communicator: tags keep the messages of two operations
// apart. Whenever ranks create something together, each tells its first unused tag; all take the
// maximum and continue after it. So two operations that have two ranks in common have different
// tags, whatever their groups.
//
// A split may yield both kinds of groups; those whose ranks see each other's memory use that.
#include "collectives/mpi_group.h"

#include <algorithm>
#include <chrono>

#include "base/fail.h"
#include "collectives/blocks.h"
#include "collectives/wait_briefly.h"

namespace tessera {

MessageCommunicator::MessageCommunicator(std::shared_ptr<MpiFabric> fabric, std::vector<int> ranks,
                                         int me, int tag)
    : Communicator(me, static_cast<int>(ranks.size())),
      fabric_(std::move(fabric)),
      ranks_(std::move(ranks)),
      tag_(tag) {}

MessageCommunicator::~MessageCommunicator() {
  for (void* memory : memory_) fabric_->unmap(memory);
}

void MessageCommunicator::complete(Transfers& transfers, const Call& call) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLookForDead = 0.02;
  const Clock::time_point start = Clock::now();
  double look = kLookForDead;
  while (!transfers.test()) {
    fabric_->poll();
    fabric_->check(call);
    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    wait_briefly(waited, fabric_->crowded());
    if (waited > look) {
      look = waited + kLookForDead;
      fabric_->check_alive(call, transfers.outstanding());
    }
    if (waited > timeout_ && !transfers.test()) {
      fabric_->throw_timeout(call, timeout_, transfers.outstanding());
    }
  }
}

void MessageCommunicator::trade(const void* out, void* in, int64_t bytes, const Call& call) {
  fabric_->check(call);
  fabric_->note(call);
  const std::unique_ptr<Transfers> transfers = fabric_->wire().transfers();
  for (int q = 0; q < size_; ++q) {
    if (q == rank_) continue;
    transfers->receive(ranks_[q], tag_, static_cast<char*>(in) + q * bytes, bytes);
    transfers->send(ranks_[q], tag_, static_cast<const char*>(out) + q * bytes, bytes);
  }
  transfers->start();
  complete(*transfers, call);
  fabric_->heard(ranks_, std::make_shared<const Call>(call));
}

int MessageCommunicator::agree_on_tag(const std::vector<int64_t>& unused, const Call& call) {
  const int64_t tag = *std::max_element(unused.begin(), unused.end());
  if (tag >= fabric_->wire().largest_tag()) {
    tessera::fail(
        ErrorKind::unsupported,
        "{}: this MPI has only {} message tags and all are used; prepare operations once and "
        "start them many times",
        describe(call), fabric_->wire().largest_tag());
  }
  fabric_->next_tag = tag + 1;
  return static_cast<int>(tag);
}

std::vector<int64_t> MessageCommunicator::agree_on(const Collective& collective) {
  struct Notice {
    Agreement agreement;
    int64_t tag = 0;
  };
  const Call call{collective.kind, true, collective.site};
  const auto notices = gather(Notice{agreement_of(collective), fabric_->next_tag}, call);
  std::vector<Agreement> agreements;
  std::vector<int64_t> tags;
  for (const Notice& notice : notices) {
    agreements.push_back(notice.agreement);
    tags.push_back(notice.tag);
  }
  check_agreement(call, agreements, ranks_);
  if (collective.kind == CollectiveKind::exchange) {
    struct Verdict {
      int sender = -1;
      int64_t sent = 0, expected = 0;
    } mine;
    std::vector<int64_t> totals, sent(size_);
    for (const auto& runs : collective.send) totals.push_back(total(runs));
    sent[rank_] = totals[rank_];
    trade(totals.data(), sent.data(), sizeof(int64_t), call);
    for (int q = 0; q < size_; ++q) {
      const int64_t expected = total(collective.recv[q]);
      if (sent[q] != expected && mine.sender < 0) mine = {ranks_[q], sent[q], expected};
    }
    const auto verdicts = gather(mine, call);
    for (int r = 0; r < size_; ++r) {
      check_totals(Call{collective.kind, false, collective.site}, verdicts[r].sender, ranks_[r],
                   verdicts[r].sent, verdicts[r].expected);
    }
  }
  return tags;
}

std::unique_ptr<Operation> MessageCommunicator::do_prepare(
    const std::vector<Collective>& collectives) {
  std::vector<int64_t> tags;
  for (const Collective& collective : collectives) tags = agree_on(collective);
  const int tag = agree_on_tag(tags, call_of(collectives, true));
  return make_message_operation(*this, tag, collectives);
}

std::unique_ptr<Communicator> MessageCommunicator::do_split(int color, int key) {
  const Call call{CollectiveKind::barrier, true, {-1, "split"}};
  const auto all = gather(SplitRecord{color, key, ranks_[rank_], fabric_->next_tag}, call);
  std::vector<int64_t> tags;
  for (const SplitRecord& record : all) tags.push_back(record.tag);
  const int tag = agree_on_tag(tags, call);
  std::vector<int> group;
  int me = 0;
  for (const SplitRecord& member : members_of(all, color)) {
    if (member.rank == ranks_[rank_]) me = static_cast<int>(group.size());
    group.push_back(member.rank);
  }
  // All ranks of this group take part in the second gather, whatever their new group is.
  std::unique_ptr<Mailbox> mailbox;
  if (fabric_->together(group)) mailbox = std::make_unique<Mailbox>(fabric_, group, me);
  const auto everybody = gather(mailbox ? mailbox->address() : Mailbox::Address{}, call);
  if (!mailbox) return std::make_unique<MessageCommunicator>(fabric_, group, me, tag);
  std::vector<Mailbox::Address> addresses;
  for (const int rank : group) {
    addresses.push_back(everybody[std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin()]);
  }
  mailbox->connect(addresses);
  return std::make_unique<PeerCommunicator>(fabric_, group, me, std::move(mailbox));
}

void* MessageCommunicator::do_allocate(int64_t bytes) {
  memory_.push_back(fabric_->map(std::max<int64_t>(bytes, 64)));
  return memory_.back();
}

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiFabric> fabric,
                                                    double seconds) {
  std::vector<int> ranks;
  for (int q = 0; q < fabric->wire().size(); ++q) ranks.push_back(q);
  const int me = fabric->rank();
  if (!fabric->together(ranks)) {
    const int tag = static_cast<int>(fabric->next_tag++);
    return std::make_unique<MessageCommunicator>(std::move(fabric), std::move(ranks), me, tag);
  }
  auto mailbox = std::make_unique<Mailbox>(fabric, ranks, me);
  const Mailbox::Address mine = mailbox->address();
  std::vector<Mailbox::Address> addresses(ranks.size());
  fabric->wire().all_gather(&mine, sizeof(mine), addresses.data(), seconds);
  mailbox->connect(addresses);
  return std::make_unique<PeerCommunicator>(std::move(fabric), std::move(ranks), me,
                                            std::move(mailbox));
}

}  // namespace tessera
