// What backward recomputes: the nodes of the scopes that GradientOptions names, copied when the
// sweep reaches the last of a scope.
#pragma once

#include <unordered_map>
#include <vector>

#include "tessera/ops.h"

namespace tessera {

class Recompute {
 public:
  /// Nothing.
  Recompute() = default;
  virtual ~Recompute() = default;
  /// The scopes of the nodes that value `y` depends on. Throws a usage error for a glob without a
  /// match.
  Recompute(const Graph& g, int y, const GradientOptions& options);

  /// The sweep comes to node `n`, from behind: copies its scope if it is to be recomputed.
  virtual void reach(Graph& g, int n);
  /// What the gradient of node `n` reads for its operand or result `value`; n = -1: what anything
  /// else reads.
  virtual int value(int n, int value);
  /// Node::recompute_group of the gradient of node `n`.
  virtual int number(int n) const;
  /// Of a node in a loop: its results are recomputed in each iteration of the gradient's loop.
  virtual bool recomputes(int n) const;
  /// The loops of the gradient in which values of other loops are recomputed: by those.
  virtual const std::unordered_map<int, int>& loops() const { return loops_; }

 protected:
  std::unordered_map<int, int> loops_;

 private:
  struct Group {
    std::vector<int> nodes;
    bool recompute = false;
    int number = 0;                     ///< 0 before it is reached
    std::unordered_map<int, int> copy;  ///< value of a node of the group -> its copy
  };
  std::vector<Group> groups_;
  std::vector<int> group_of_;   ///< by node; -1: none
  std::vector<bool> in_loops_;  ///< by node: in a loop, and to be recomputed there
};

}  // namespace tessera
