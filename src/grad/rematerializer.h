// Rematerialization: what backward recomputes instead of reading it from forward.
#pragma once

#include <unordered_map>
#include <vector>

#include "tessera/ops.h"

namespace tessera {

/// Recomputes the scopes that GradientOptions names. If one is "block3", its nodes are copied when
/// the sweep comes to the last of them, and their gradients read the copies.
class Rematerializer {
 public:
  Rematerializer() = default;  ///< recomputes nothing
  virtual ~Rematerializer() = default;
  /// Looks for the scopes among the nodes that value `y` depends on. Throws a usage error for a
  /// glob without a match.
  Rematerializer(const Graph& g, int y, const GradientOptions& options);

  /// To be called when the sweep comes to node `n`: copies its scope if that is to be recomputed.
  virtual void reach(Graph& g, int n);
  /// What the gradient of node `n` reads in place of `value`, its operand or result; n = -1: what
  /// anything else reads.
  virtual int value(int n, int value);
  /// Node::recompute_group of the gradient of node `n`.
  virtual int recompute_group(int n);
  /// Whether each iteration of the gradient's loop recomputes the results of `n`, a node in a loop.
  virtual bool recomputes(int n) const;
  /// Loop -> the loop of its gradient, which recomputes its values.
  const std::unordered_map<int, int>& loops() const { return loops_; }

 protected:
  std::unordered_map<int, int> loops_;

 private:
  struct Group {
    std::vector<int> nodes;
    bool recompute = false;
    int recompute_group = 0;            ///< of the copies; 0 before it is reached
    std::unordered_map<int, int> copy;  ///< value of a node of the group -> its copy
  };
  Group* group_of(int n);
  std::vector<Group> groups_;
  std::vector<int> group_of_;   ///< by node; -1: none
  std::vector<bool> in_loops_;  ///< by node: in a loop, and to be recomputed there
};

}  // namespace tessera
