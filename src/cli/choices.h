// The choices of a model: where an argmax or top_k decides what is computed, as the router of a
// mixture of experts does. Where two scores are close, a layout's rounding may decide otherwise
// than one rank does, and results differ from there on though nothing is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/array.h"
#include "tessera/graph.h"

namespace tessera::cli {

/// A node that chooses by `scores` along `dim`.
struct ChoiceNode {
  Tensor scores, indices;
  std::string dim;
};
/// The argmax and top_k nodes of floating scores, in their order, but for those in loops.
std::vector<ChoiceNode> choices_in(Graph& graph);
/// Whether a loop's body holds such a node: its choices cannot be fetched.
bool has_choices_in_loops(Graph& graph);

/// What a node chose in a step.
struct Chosen {
  std::string name, dim;
  Array scores, indices;
};
/// How two runs of a step chose otherwise.
struct Flips {
  std::string name;   ///< the first node whose choices differ; "": all are the same
  int64_t count = 0;  ///< of that node's choices
  int64_t of = 0;     ///< how many it makes
  double margin = 0;  ///< the largest difference of the two scores, over the larger one
};
/// Compares with the reference's scores. Only the first node that differs counts: it changes what
/// later ones see.
Flips flips_of(const std::vector<Chosen>& reference, const std::vector<Chosen>& other);

}  // namespace tessera::cli
