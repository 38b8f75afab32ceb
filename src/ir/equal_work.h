// Rules with several intervals a rank: `length:context*2`, `layers:pipe*4`.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/mesh.h"

namespace tessera {

/// The number behind `*` at the end of the rule as written: how many intervals of the dim a rank
/// works on. 1 without one. The axes are those before the `*`.
inline int64_t intervals_of(const LayoutRule& rule) {
  const size_t star = rule.text.find('*', rule.text.find_last_of(":=") + 1);
  return star == std::string::npos ? 1 : std::stoll(rule.text.substr(star + 1));
}

/// True if ops whose work grows along the dim give each rank two intervals of it that have the same
/// work together. (Of layers, intervals are the chunks of a stage.)
inline bool asks_for_equal_work(const LayoutRule& rule) { return intervals_of(rule) == 2; }

}  // namespace tessera
