// Finds what repeated layers have in common, so that one layer stands for all.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// Which parts of a graph stand for several: the layers of a model that was built with one.
struct Repeats {
  std::vector<int64_t> of_node = {};  ///< by node: how many it stands for; empty: 1 each
  /// Values whose layouts are equal: what one layer reads, and what it hands to the next.
  std::vector<std::pair<int, int>> seams = {};
};

/// `one` and `two`: a model with one and with two layers. The result is about `one`, standing for
/// `layers` layers. A node of `two` that `one` lacks is a copy of one whose name has a number less
/// somewhere: "gpt.block1.mlp.add" is one of "gpt.block0.mlp.add". Nodes without such a name count
/// once.
Repeats repeats_of(const Graph& one, const Graph& two, int64_t layers);

}  // namespace tessera
