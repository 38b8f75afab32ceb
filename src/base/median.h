// The median of measured values.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera {

/// Of the finite values, of two in the middle the greater; NaN if there is none.
inline double median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return NAN;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace tessera
