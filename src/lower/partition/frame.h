// A graph during its walk, and questions about it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/loop.h"
#include "program/program.h"
#include "tessera/graph.h"

namespace tessera {

/// The model, or the body of a composite. `roots`: the values to compute.
struct Frame {
  explicit Frame(const Graph& graph, const std::vector<int>& roots, std::string prefix = {},
                 std::string source = {}, std::vector<std::string> prefer = {});

  const Graph& graph;
  std::string prefix;                  ///< of names
  std::string source;                  ///< source line of a body's nodes; "": each node's own
  std::vector<std::string> prefer;     ///< inherited by the nodes of a body
  std::vector<int> env;                ///< flow value of each graph value, or -1
  std::vector<std::vector<int>> uses;  ///< by value: the needed nodes that read it
  std::vector<char> escapes;           ///< by value: true for roots
  std::vector<char> needed;            ///< by node
  std::vector<char> read;              ///< by value: a needed node reads it, or it is a root
  int loop = -1;                       ///< the loop whose iteration is walked, or -1
  int recompute_group = 0;             ///< of the composite whose body this is; 0: each node's own
  const Frame* outer = nullptr;        ///< of a body: the frame of its composite
  /// Of a body: results that nothing inside reads, and the composite's results that they are.
  std::map<int, int> returned = {};
  std::string tensor = {};  ///< the model's tensor that a body computes, for error messages
  /// Results of a body that the composite's consumers read in another layout than the rule layout.
  std::map<int, TensorLayout> result_layouts = {};
  /// Memo of LayoutChooser::consumer_layout().
  mutable std::map<int, TensorLayout> consumer_layouts = {};

  Origin origin(const Node& node, std::string reason = "") const;
  int recompute_group_of(const Node& node) const {
    return recompute_group ? recompute_group : node.recompute_group;
  }
  /// If `value` is only used as a result of its loop, of this kind: that result of the loop; else
  /// -1.
  int only_result(int value, Loop::Result kind) const;
  /// If `value` is only used to be summed over the iterations of a loop, perhaps stacked or widened
  /// first: that sum. Else -1. Gradient accumulation is found this way.
  int summed_later(int value) const;
  /// True if that is so for a value, or for what linear pointwise ops make of it, or for the
  /// composite's result that it is.
  bool is_summed_later(int value) const;
};

/// True for a cast to a wider dtype.
bool widens(const Graph& graph, const Node& node);
/// True for a cast to a narrower one.
bool narrows(const Graph& graph, const Node& node);

}  // namespace tessera
