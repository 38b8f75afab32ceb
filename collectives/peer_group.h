// A group of ranks that see each other's memory: the Communicator of threads and of one host.
#pragma once

#include <memory>
#include <vector>

#include "collectives/peer_memory.h"

namespace tessera {

/// Small records of every rank to every rank, which is how a group agrees on anything.
class Mailbox {
 public:
  static constexpr int64_t kRecordBytes = 768;
  /// What the other ranks need to reach this one's mailbox.
  struct Address {
    Rendezvous::Ticket ticket;
    Token slots;
  };

  Mailbox(std::shared_ptr<Fabric> fabric, std::vector<int> ranks, int me);
  Address address() const;
  void connect(const std::vector<Address>& addresses);

  /// All ranks' records, in order; Record is a plain struct. Collective.
  template <class Record>
  std::vector<Record> exchange(const Record& mine, const Call& call, double seconds) {
    static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) <= kRecordBytes);
    std::vector<Record> all(ranks_.size());
    exchange_bytes(&mine, sizeof(Record), all.data(), call, seconds);
    return all;
  }

 private:
  void exchange_bytes(const void* mine, int64_t bytes, void* all, const Call& call, double seconds);

  std::shared_ptr<Fabric> fabric_;
  std::vector<int> ranks_;
  int me_;
  Rendezvous meeting_;
  char* own_slots_;
  std::vector<const char*> slots_;
};

/// What every rank tells the others in a split.
struct SplitRecord {
  int color = 0, key = 0, rank = 0;  ///< rank of the world
  int64_t tag = 0;                   ///< a message tag that this rank has not used yet, if any
};
/// The records of `color`, ordered by (key, position).
std::vector<SplitRecord> members_of(const std::vector<SplitRecord>& all, int color);

class PeerCommunicator final : public Communicator {
 public:
  /// `mailbox` is connected. `ranks` are world ranks.
  PeerCommunicator(std::shared_ptr<Fabric> fabric, std::vector<int> ranks, int me,
                   std::unique_ptr<Mailbox> mailbox);
  ~PeerCommunicator() override;

  const char* backend() const override { return fabric_->name(); }
  void fail(const std::string& message) override { fabric_->raise(message); }
  void recover() override { fabric_->recover(); }

 protected:
  std::unique_ptr<Operation> do_prepare(const std::vector<Collective>& collectives) override;
  std::unique_ptr<Communicator> do_split(int color, int key) override;
  void* do_allocate(int64_t bytes) override;

 private:
  std::shared_ptr<Fabric> fabric_;
  std::vector<int> ranks_;
  std::unique_ptr<Mailbox> mailbox_;
  std::vector<void*> memory_;
};

/// The numbers of a collective on which all ranks must agree; those that its kind does not use are
/// 0.
struct Agreement {
  int64_t number = -1;
  int32_t kind = 0, dtype = 0, combiner = 0, root = 0, split_first = 0;
  int64_t sizes[5] = {};
};
Agreement agreement_of(const Collective& collective);
/// Throws comm, on every rank alike, if the ranks prepare different collectives.
void check_agreement(const Call& call, const std::vector<Agreement>& all,
                     const std::vector<int>& world_ranks);

/// Throws a usage error if `sender` (a world rank; -1 for none) sends `receiver` another number of
/// elements than that expects. Every rank calls it with the verdicts of all.
void check_totals(const Call& call, int sender, int receiver, int64_t sent, int64_t expected);

/// How messages name an operation: by its first collective and the number of the others.
Call call_of(const std::vector<Collective>& collectives, bool preparing);

/// Prepares `collectives` (checked) for a group; `timeout` outlives the operation.
std::unique_ptr<Operation> make_peer_operation(const std::shared_ptr<Fabric>& fabric,
                                               const std::vector<int>& ranks, int me,
                                               Mailbox& mailbox,
                                               const std::vector<Collective>& collectives,
                                               const double& timeout);

}  // namespace tessera
