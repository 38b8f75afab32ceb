// Layouts of single tensors as scoped rules.
#pragma once

#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// A tensor of a graph and the layout that it should have.
struct WantedLayout {
  int value = -1;
  TensorLayout layout;
  double gain = 1;  ///< what it is worth; > 0
};

/// Scoped rules that bring the tensors of a graph nearer to the layouts wanted: the rule that
/// brings most of them there (by worth, less what it leads away), then the next, at most `most`.
/// `rules` are in force before. A rule names the tensors by a word of their names:
/// "@/*norm*/ length:model". Empty if no such rule does.
std::vector<std::string> rules_towards(const Graph& graph, const Mesh& mesh,
                                       const std::string& rules,
                                       const std::vector<WantedLayout>& wanted, size_t most);

}  // namespace tessera
