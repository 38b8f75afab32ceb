// The scopes of the library; those of a model's author are in tessera/graph.h.
#pragma once

#include <string>
#include <vector>

#include "ir/graph_internals.h"

namespace tessera {

/// New nodes are of a recompute group (Node::recompute_group).
struct RecomputeScope : BuildScope {
  RecomputeScope(Graph& graph, int group);
};

/// New nodes belong to a loop, even if a loop within it is open.
struct LoopScope : BuildScope {
  LoopScope(Graph& graph, int loop);
};

/// A copy or the body of a loop is built. Copy 0 comes first, and all are alike.
struct RepeatScope : BuildScope {
  RepeatScope(Graph& graph, const Repeat& repeat);
};

/// Nothing is repeated and no loop is open: for what belongs to the whole model, such as a
/// parameter that a layer makes.
struct OutsideScope : BuildScope {
  explicit OutsideScope(Graph& graph);
};

/// New nodes report the line `at`, unless an outer scope says another: what the library makes for a
/// line of the model.
struct LineScope : BuildScope {
  LineScope(Graph& graph, Loc at);
  LineScope(Graph& graph, const SourceLine& line);
};

/// New nodes stand for the user's node `node` (gradients, bodies). They report its source line, are
/// called "<its name><suffix>.<op>" and prefer `prefer`.
struct SourceScope : BuildScope {
  SourceScope(Graph& graph, const Node& node, const std::vector<std::string>& prefer,
              const std::string& suffix);
};

}  // namespace tessera
