// Thread ranks that send each other messages, and count them: what a run moves, whatever anybody
// predicted. Of the product's collectives only the contract (communicator.h) and the order of sums
// are used, so results have the same bits as with any other ranks of one host.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/communicator.h"

namespace tessera::test {

/// A collective that ran: its kind, CallSite text, and ranks of the group. Of several that agree in
/// these, `number` and `member` tell which operation it was part of and where in it.
struct CountedCall {
  CollectiveKind kind = CollectiveKind::barrier;
  std::string text;
  int64_t number = -1;
  size_t member = 0;
  auto operator<=>(const CountedCall&) const = default;
};

struct Counted {
  int64_t runs = 0;  ///< starts by one rank; of all ranks the same number
  /// Bytes of messages to other ranks, of all ranks and runs together. An all_reduce has two phases
  /// (reduce_scatter, all_gather), the others one.
  int64_t bytes[2] = {};
  std::vector<int> group;  ///< ranks of the world of the group that rank 0 is in
};

class CountedTraffic;

/// What all ranks of a world share. Outlives their communicators. Thread-safe.
class CountedWorld {
 public:
  explicit CountedWorld(int ranks);
  ~CountedWorld();
  /// Element r is of rank r. Once.
  std::vector<std::unique_ptr<Communicator>> communicators();

  /// Since the start, or the last clear().
  std::map<CountedCall, Counted> counted() const;
  void clear();
  /// Memory that a rank allocated through its communicators, in order.
  struct Memory {
    unsigned char* data = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Memory> memory(int rank) const;

 private:
  std::shared_ptr<CountedTraffic> traffic_;
};

}  // namespace tessera::test
