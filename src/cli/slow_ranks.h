// Which rank is slow, in a sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::cli {

/// The slowest rank of a step: its own work over that of the median rank, 1 or more.
struct SlowestRank {
  double step = 0;
  int64_t rank = 0;
  double ratio = 1;
};

/// "No rank is slow: in 95 % of the steps all ranks are within 3 % of the median." "Rank 5 (host b)
/// is slow: 1.8 times the median, from step 120 on." "No rank is slow all the time: ..." `slowest`:
/// of each step, in order. `host_of`: "" if there is but one. "" without steps.
std::string slow_ranks_text(const std::vector<SlowestRank>& slowest,
                            const std::function<std::string(int64_t rank)>& host_of);

}  // namespace tessera::cli
