// Which part of a graph a function computes.
#pragma once

#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// The values that a function asks for: its outputs, then the values of the updates if it has any.
std::vector<int> roots_of(const Graph& graph, const FunctionSpec& function);

/// Of the results of a loop's node, which ones its iterations have to make, if `read` says of each
/// value whether anything reads it: the carries, and what is read.
std::vector<char> needed_results(const Graph& graph, const Node& loop,
                                 const std::vector<char>& read);

/// Per node, 1 if any of the values `roots` depends on it.
std::vector<char> needed_nodes(const Graph& graph, const std::vector<int>& roots);

}  // namespace tessera
