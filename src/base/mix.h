// The finalizer of splitmix64 (Steele, Lea and Flood 2014). Orders of examples and what is masked
// in them come from it, so it must never change.
#pragma once

#include <cstdint>

namespace tessera {

/// Every bit of the result depends on every bit of x.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace tessera
