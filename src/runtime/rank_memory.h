// The arenas of one rank, and the addresses of views in them.
#pragma once

#include <map>
#include <vector>

#include "runtime/bound_step.h"

namespace tessera {

class RankMemory {
 public:
  /// Allocates the arenas of rank.program on rank.device. `lent`: buffers that lie elsewhere in the
  /// device's memory. Throws device errors where there is too little memory.
  RankMemory(const RankContext& rank, std::map<int, void*> lent);

  /// The first element of `view`, with the scalars as they are now.
  void* address(const View& view) const;
  TensorArg argument(const View& view) const;
  /// The workspace of a step, or null.
  void* workspace(const Step& step) const;
  /// Buffers of `body` that alternate between iterations: addresses are those of this iteration's
  /// parity from here on.
  void set_parity(const Function& body, int64_t iteration);

 private:
  const RankContext& rank_;
  std::map<int, void*> lent_;
  std::vector<char> odd_;  ///< by buffer: addresses are in the second of its two places
  std::byte *persistent_ = nullptr, *transient_ = nullptr, *offloaded_ = nullptr;
};

}  // namespace tessera
