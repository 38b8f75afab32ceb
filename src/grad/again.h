// What backward makes again: the nodes of the scopes that GradientOptions names, copied when the
// sweep reaches the last of a scope.
#pragma once

#include <unordered_map>
#include <vector>

#include "tessera/ops.h"

namespace tessera {

class Again {
 public:
  /// Nothing.
  Again() = default;
  /// The scopes of the nodes that value `y` depends on. Throws a usage error for a glob without a
  /// match.
  Again(const Graph& g, int y, const GradientOptions& options);

  /// The sweep comes to node `n`, from behind: copies its scope if it is to be made again.
  void reach(Graph& g, int n);
  /// What the gradient of node `n` reads for its operand or result `value`.
  int value(int n, int value) const;
  /// Node::again of the gradient of node `n`.
  int number(int n) const;

 private:
  struct Group {
    std::vector<int> nodes;
    bool recompute = false;
    int number = 0;                     ///< 0 before it is reached
    std::unordered_map<int, int> copy;  ///< value of a node of the group -> its copy
  };
  std::vector<Group> groups_;
  std::vector<int> group_of_;  ///< by node; -1: none
};

}  // namespace tessera
