// A graph while it is walked, and what can be asked of it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/loop.h"
#include "program/program.h"
#include "tessera/graph.h"

namespace tessera {

/// The model, or the body of a composite. `roots`: the values whose computation is walked.
struct Frame {
  explicit Frame(const Graph& graph, const std::vector<int>& roots, std::string prefix = {},
                 std::string source = {}, std::vector<std::string> prefer = {});

  const Graph& graph;
  std::string prefix;                  ///< of names
  std::string source;                  ///< overrides the nodes' lines in bodies
  std::vector<std::string> prefer;     ///< inherited by the nodes of a body
  std::vector<int> env;                ///< flow value of each graph value, or -1
  std::vector<std::vector<int>> uses;  ///< by value: the nodes that read it and are needed
  std::vector<char> escapes;           ///< by value: it is a root
  std::vector<char> needed;            ///< by node
  std::vector<char> read;              ///< by value: something needed reads it, or it escapes
  int loop = -1;                       ///< whose iteration is walked
  int recompute_group = 0;  ///< Node::recompute_group of the node whose body it is, if not 0
  std::string tensor = {};  ///< the model's tensor that a body computes, for messages
  /// Results of a body that the composite's consumers read in another layout than the rule layout.
  std::map<int, TensorLayout> result_layouts = {};
  /// Answers of LayoutChooser::consumer_layout().
  mutable std::map<int, TensorLayout> consumer_layouts = {};

  Origin origin(const Node& node, std::string reason = "") const;
  int recompute_group_of(const Node& node) const {
    return recompute_group ? recompute_group : node.recompute_group;
  }
  /// The loop's result of this kind if an iteration computes `value` for it alone; or -1.
  int only_result(int value, Loop::Result kind) const;
  /// If `value` is only used to be summed over the iterations of a loop, perhaps stacked and
  /// widened first: that sum; else -1.
  int summed_later(int value) const;
};

/// True for a cast to a wider dtype.
bool widens(const Graph& graph, const Node& node);

}  // namespace tessera
