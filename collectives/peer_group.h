// A group of ranks that see each other's memory (threads, or processes of one host): its
// Communicator.
#pragma once

#include <memory>
#include <vector>

#include "collectives/peer_memory.h"

namespace tessera {

/// All-gathers small records; a group uses it to agree on anything.
class Mailbox {
 public:
  static constexpr int64_t kRecordBytes = 768;
  /// What other ranks need to connect to this rank's mailbox.
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
  int color = 0, key = 0, rank = 0;  ///< rank in the world
  int64_t tag = 0;                   ///< the first message tag that this rank has not used, if any
};
/// The records of `color`, ordered by (key, position).
std::vector<SplitRecord> members_of(const std::vector<SplitRecord>& all, int color);

class PeerCommunicator final : public Communicator {
 public:
  /// `mailbox` must be connected. `ranks` are world ranks.
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

/// The properties of a collective on which all ranks must agree; 0 if its kind does not use them.
struct Agreement {
  int64_t number = -1;
  int32_t kind = 0, dtype = 0, combiner = 0, root = 0, split_first = 0;
  int64_t sizes[5] = {};
  int64_t row = 0;  ///< of a collective with counts
};
Agreement agreement_of(const Collective& collective);
/// Throws comm, on all ranks alike, if they prepare different collectives.
void check_agreement(const Call& call, const std::vector<Agreement>& all,
                     const std::vector<int>& world_ranks);

/// Throws a usage error if `sender` (a world rank; -1: none) sends `receiver` another number of
/// elements than expected. All ranks must call it, with everybody's findings.
void check_totals(const Call& call, int sender, int receiver, int64_t sent, int64_t expected);

/// How messages name an operation: its first collective and the number of others.
Call call_of(const std::vector<Collective>& collectives, bool preparing);

/// Prepares `collectives`, which have been checked, for a group. `timeout` must outlive the
/// operation.
std::unique_ptr<Operation> make_peer_operation(const std::shared_ptr<Fabric>& fabric,
                                               const std::vector<int>& ranks, int me,
                                               Mailbox& mailbox,
                                               const std::vector<Collective>& collectives,
                                               const double& timeout);

}  // namespace tessera
