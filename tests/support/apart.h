// How far numbers are apart.
#pragma once

#include <cmath>

namespace tessera::test {

/// |x - y|; infinite where that is no number, so that no comparison passes it.
inline double apart(double x, double y) {
  const double distance = std::abs(x - y);
  return std::isnan(distance) ? INFINITY : distance;
}

}  // namespace tessera::test
