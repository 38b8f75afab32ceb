// The local ranks' slices of ports, as the host sees them.
#pragma once

#include <functional>
#include <vector>

#include "session/local_ranks.h"
#include "session/slices.h"

namespace tessera {

/// On the CPU a slice is the rank's own memory. On a GPU it is a copy in host memory, which read()
/// and write() bring up to date. All is made at the first use, for a step allocates nothing.
class PortSlices {
 public:
  PortSlices(const Program& program, const LocalRanks& ranks, const std::vector<int64_t>& scalars)
      : program_(program),
        ranks_(ranks),
        scalars_(scalars),
        slices_(program.ports.size()),
        mirrors_(program.ports.size()) {}

  /// The slices of `port`, one for each local rank.
  const std::vector<Slice>& slices(int port);
  /// The same, with what the devices hold now.
  const std::vector<Slice>& read(int port);
  /// Gives the devices what slices() hold.
  void write(int port);
  /// Zeroes every slice, calls fill(slice) and writes it.
  void fill(int port, const std::function<void(const Slice&)>& fill);
  /// The slice that is all of the port, with what the device holds now; null if it is split.
  const Slice* whole(int port);
  /// Sizes of bounded dims have changed.
  void resize();

 private:
  const Program& program_;
  const LocalRanks& ranks_;
  const std::vector<int64_t>& scalars_;
  std::vector<std::vector<Slice>> slices_;                    ///< by port; empty until asked for
  std::vector<std::vector<std::vector<std::byte>>> mirrors_;  ///< by port and local rank; on a GPU
};

}  // namespace tessera
