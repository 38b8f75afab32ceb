// A group of ranks on several hosts, which send messages: the Communicator and its operations.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "collectives/mpi_fabric.h"

namespace tessera {

class MessageCommunicator final : public Communicator {
 public:
  /// `ranks` are world ranks. No other group that shares two ranks with this one uses `tag`.
  MessageCommunicator(std::shared_ptr<MpiFabric> fabric, std::vector<int> ranks, int me, int tag);
  ~MessageCommunicator() override;

  const char* backend() const override { return fabric_->name(); }
  void fail(const std::string& message) override { fabric_->raise(message); }

  MpiFabric& fabric() { return *fabric_; }
  const std::vector<int>& ranks() const { return ranks_; }
  /// Drives `transfers`, which have started, to their end under the time-out.
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
  /// `bytes` to every rank from its place in `out`, and from every rank to its place in `in`.
  void trade(const void* out, void* in, int64_t bytes, const Call& call);
  /// Throws, on every rank alike, what the ranks do not agree on; returns the tags they have
  /// unused.
  std::vector<int64_t> agree_on(const Collective& collective);
  /// The tag for something new, from what every rank has not used yet; see do_split().
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

/// `collectives` are checked and agreed on; `tag` is theirs.
std::unique_ptr<Operation> make_message_operation(MessageCommunicator& group, int tag,
                                                  const std::vector<Collective>& collectives);

}  // namespace tessera
