// The kinds of flow nodes. Resharding is a sequence of the kinds that move data.
#pragma once

#include <cstdint>

#include "tessera/collectives.h"

namespace tessera {

enum class FlowKind : uint8_t {
  input,           ///< a fed tensor
  stored,          ///< a parameter or state, in its storage layout
  op,              ///< an op on slices
  all_reduce,      ///< over `axes`
  reduce_scatter,  ///< over `axes`, into dim `to`
  all_gather,      ///< over `axes`, along dim `from`
  all_to_all,      ///< over `axes`: dim `from` becomes whole, dim `to` split
  slice,           ///< local: dim `to` split over `axes`
  exchange,        ///< any layout to any layout or interval; each element is sent once, by an owner
  mask,            ///< padding of dims `dims` becomes `fill`
  first_only,      ///< zero except on coordinate 0 of `axes`
  tree_sum,        ///< local: the subtrees in dim 0 become their sum (program/sum_order.h)
  loop,            ///< FlowLoop
};
const char* to_string(FlowKind kind);
/// The collective of a kind that is one.
CollectiveKind collective_of(FlowKind kind);

}  // namespace tessera
