#include "session/clock_sync.h"

#include <algorithm>
#include <limits>

namespace tessera {

std::vector<double> clock_offsets(Cluster& cluster, const std::function<double()>& clock) {
  const auto ranks = static_cast<size_t>(cluster.size());
  std::vector<double> offsets(ranks, 0.0);
  if (cluster.local_ranks() == cluster.size()) return offsets;
  constexpr double kFar = std::numeric_limits<double>::infinity();
  std::vector<double> least(ranks, -kFar), most(ranks, kFar), entered(ranks);
  double left = 0;
  for (int round = 0; round <= 16; ++round) {  // what a round took is known in the next one
    const std::vector<double> all = cluster.gather({clock(), left});
    left = clock();
    for (size_t r = 0; r < ranks; ++r) {
      if (round > 0) {
        most[r] = std::min(most[r], all[2 * r + 1] - entered[0]);
        least[r] = std::max(least[r], entered[r] - all[1]);
      }
    }
    for (size_t r = 0; r < ranks; ++r) entered[r] = all[2 * r];
  }
  for (size_t r = 1; r < ranks; ++r) {
    if (least[r] > 0 || most[r] < 0) offsets[r] = (least[r] + most[r]) / 2;
  }
  return offsets;
}

}  // namespace tessera
