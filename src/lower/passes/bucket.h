// A bucket: collectives that start together and are awaited together.
#pragma once

#include <algorithm>
#include <vector>

#include "program/program.h"

namespace tessera {

struct Bucket {
  std::vector<Step> feeders;  ///< compute steps right before the start
  std::vector<Step> members;
  Step wait;
  std::vector<Step> followers;  ///< compute steps right after the wait
  int start = 0, end = 0;       ///< slot k is the point before compute step k
  bool early = false;           ///< prefetch: starts in the iteration before
  bool late = false;            ///< is awaited in the next iteration

  bool writes(int buffer) const {
    const auto is_out = [&](const Step& step) { return step.out[0].buffer == buffer; };
    return std::any_of(members.begin(), members.end(), is_out) ||
           std::any_of(followers.begin(), followers.end(), is_out);
  }
  /// True if each iteration communicates another slice, such as the parameters of a layer.
  bool moves_slices() const {
    const auto is_slice = [](const Step& step) {
      return std::any_of(step.in.begin(), step.in.end(),
                         [](const View& v) { return v.shift.depends_on_scalars(); });
    };
    return std::any_of(members.begin(), members.end(), is_slice) ||
           std::any_of(feeders.begin(), feeders.end(), is_slice);
  }
};

}  // namespace tessera
