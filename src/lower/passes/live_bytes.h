// Live bytes at each point of a schedule. Point 2k is slot k; point 2k + 1 is compute step k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "lower/passes/liveness.h"

namespace tessera {

class LiveBytes {
 public:
  LiveBytes() = default;
  /// `buffers`: live range in points, and bytes.
  LiveBytes(size_t slots, const std::vector<std::pair<LiveRange, int64_t>>& buffers)
      : bytes_(2 * slots, 0) {
    for (const auto& [range, bytes] : buffers) {
      bytes_[range.first] += bytes;
      if (range.last + 1 < static_cast<int>(bytes_.size())) bytes_[range.last + 1] -= bytes;
    }
    for (size_t t = 1; t < bytes_.size(); ++t) bytes_[t] += bytes_[t - 1];
  }

  /// Adds bytes at the points from `first` to `last`, both included.
  void add(int first, int last, int64_t bytes) {
    for (int t = first; t <= last; ++t) bytes_[t] += bytes;
  }
  void add_to_all(int64_t bytes) { add(0, static_cast<int>(bytes_.size()) - 1, bytes); }
  int64_t peak() const { return *std::max_element(bytes_.begin(), bytes_.end()); }

  /// Moves a start or a wait from slot `from` towards slot `to` until extending its buffers' live
  /// ranges would exceed `limit` bytes at some point; returns the slot reached. Buffer i is live up
  /// to point ends[i].first anyway and has ends[i].second bytes.
  int extend(int from, int to, std::vector<std::pair<int, int64_t>> ends, int64_t limit) {
    const int way = to < from ? -1 : 1;
    std::sort(ends.begin(), ends.end(),
              [&](const auto& x, const auto& y) { return way * x.first < way * y.first; });
    size_t next = 0;
    int64_t more[2] = {0, 0};  // at the compute step, and at the slot after it
    int slot = from;
    for (; slot != to; slot += way) {
      for (int t = 0; t < 2; ++t) {
        const int point = 2 * slot + way * (t + 1);
        if (t == 1) more[1] = more[0];
        for (; next < ends.size() && way * ends[next].first < way * point; ++next)
          more[t] += ends[next].second;
        if (more[t] > 0 && bytes_[point] + more[t] > limit) return slot;
      }
      for (int t = 0; t < 2; ++t) bytes_[2 * slot + way * (t + 1)] += more[t];
      more[0] = more[1];
    }
    return slot;
  }

 private:
  std::vector<int64_t> bytes_;
};

}  // namespace tessera
