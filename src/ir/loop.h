// The loops of a graph.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// A loop. For example, repeat() over 12 layers makes a loop of 12 iterations, whose nodes are
/// those of one layer. They have its number as their Node::loop and may read values from outside.
/// `node` stands outside for the whole loop: its operands are what each iteration makes, its
/// results what the loop leaves.
struct Loop {
  enum class Result : int64_t {
    carry,  ///< the value of the last iteration
    stack,  ///< the values of all iterations, along `over` in front; zero where one did not run
    sum,    ///< the sum over the iterations that ran
  };
  Dim over;              ///< its size is the number of iterations
  bool reverse = false;  ///< the index counts down
  int parent = -1;       ///< the loop around this one
  int first = 0;         ///< the nodes of the iterations are among [first, node)
  int node = -1;
  std::optional<Dim> divides = {};  ///< of a loop over microbatches: the batch
  bool contiguous = false;          ///< LoopOptions::contiguous
  int condition = -1;  ///< a bool scalar: an iteration runs if it is true; -1: each one runs
  /// The values with which an iteration begins, in the order of the results.
  std::vector<int> carries;
  std::vector<Result> results = {};  ///< of `node`
  /// What is to be built behind the loop when it has ended.
  std::vector<std::function<void()>> behind = {};
  bool divided = false;  ///< IterationResults::divided
};

/// All loops; a loop's number is its position.
const std::deque<Loop>& loops_of(const Graph& graph);
/// The number of the loop whose node `node` is.
int loop_of(const Node& node);
/// The number of the loop that is being built, or -1.
int open_loop(const Graph& graph);
/// Whether what is being built may read the values of `loop`. -1 stands for no loop: always.
bool is_open(const Graph& graph, int loop);
/// Whether what a node with these attributes makes depends on the index of `loop` by itself: it is
/// that index, or bits that are drawn for each.
bool reads_index_of(const Attrs& attrs, int loop);
/// Changes the loops in the attributes of a copied node: old number -> new one.
void rename_loops(Attrs& attrs, const std::unordered_map<int, int>& copies);

}  // namespace tessera
