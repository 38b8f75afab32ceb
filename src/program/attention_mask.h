// Which keys a query of attention sees, and which queries see a key, by position alone: causal
// order, a window, and keys that are padding. Both are intervals. The kernels of CPU and GPU and
// the cost model use these formulas.
#pragma once

#include <cstdint>

#include "base/bfloat16.h"

namespace tessera {

/// Positions from begin to end - 1.
struct PositionRange {
  int64_t begin = 0, end = 0;
};

TESSERA_HD PositionRange intersection(const PositionRange& a, const PositionRange& b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

struct AttentionMask {
  int64_t queries, keys;  ///< on this rank
  bool causal;
  int64_t window;    ///< 0: none
  int64_t all_keys;  ///< of all ranks; keys from there on are padding. 0: none is
};

/// The keys that a query sees; none: {0, 0}. `first_query`, `first_key`: the positions of this
/// rank's first ones in the whole sequence.
TESSERA_HD PositionRange keys_seen(const AttentionMask& s, int64_t query, int64_t first_query,
                                   int64_t first_key) {
  const int64_t own = first_query + query - first_key;  // the key at the query's position
  PositionRange seen = {0, s.keys};
  if (s.all_keys > 0) seen = intersection(seen, {0, s.all_keys - first_key});
  if (s.causal) seen = intersection(seen, {0, own + 1});
  if (s.window > 0) seen = intersection(seen, {own - s.window + 1, own + s.window});
  return seen.begin < seen.end ? seen : PositionRange{0, 0};
}

/// The queries that see a key; none: {s.queries, s.queries}.
TESSERA_HD PositionRange queries_seeing(const AttentionMask& s, int64_t key, int64_t first_query,
                                        int64_t first_key) {
  const int64_t own = first_key + key - first_query;  // the query at the key's position
  PositionRange seen = {0, s.queries};
  if (s.all_keys > 0 && first_key + key >= s.all_keys) seen.end = 0;
  if (s.causal) seen.begin = own > 0 ? own : 0;
  if (s.window > 0) seen = intersection(seen, {own - s.window + 1, own + s.window});
  return seen.begin < seen.end ? seen : PositionRange{s.queries, s.queries};
}

}  // namespace tessera
