// A group of ranks on several hosts, which send messages: its Communicator.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "collectives/mpi_fabric.h"

namespace tessera {

class MessageCommunicator final : public Communicator {
 public:
  /// `ranks` are world ranks. No other group with two of these ranks may use `tag`.
  MessageCommunicator(std::shared_ptr<MpiFabric> fabric, std::vector<int> ranks, int me, int tag);
  ~MessageCommunicator() override;

  const char* backend() const override { return fabric_->name(); }
  void fail(const std::string& message) override { fabric_->raise(message); }

  MpiFabric& fabric() { return *fabric_; }
  const std::vector<int>& ranks() const { return ranks_; }
  /// Drives `transfers`, which have been started, to completion within the time-out.
  void complete(Transfers& transfers, const Call& call);
  /// All ranks' records, in order; Record is a plain struct. Collective.
  template <class Record>
  std::vector<Record> gather(const Record& mine, const Call& call) {
    static_assert(std::is_trivially_copyable_v<Record>);
    std::vector<Record> all(ranks_.size(), mine);
    const std::vector<Record> same(ranks_.size(), mine);
    trade(same.data(), all.data(), sizeof(Record), call);
    return all;
  }
  /// Sends `bytes` to every rank from its place in `out`, and receives as many from every rank in
  /// `in`.
  void trade(const void* out, void* in, int64_t bytes, const Call& call);
  /// Throws on all ranks alike if they disagree. Returns each rank's first unused tag.
  std::vector<int64_t> agree_on(const Collective& collective);
  /// The tag for a new group or operation, given every rank's first unused tag; see do_split().
  int agree_on_tag(const std::vector<int64_t>& unused, const Call& call);

 protected:
  std::unique_ptr<Operation> do_prepare(const std::vector<Collective>& collectives) override;
  std::unique_ptr<Communicator> do_split(int color, int key) override;
  void* do_allocate(int64_t bytes) override;

 private:
  std::shared_ptr<MpiFabric> fabric_;
  std::vector<int> ranks_;
  int tag_;
  std::vector<void*> memory_;
};

/// `collectives` have been checked and agreed on; `tag` is theirs alone.
std::unique_ptr<Operation> make_message_operation(MessageCommunicator& group, int tag,
                                                  const std::vector<Collective>& collectives);

}  // namespace tessera
