// Which part of a graph a function computes.
#pragma once

#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// What a function assigns at its end: nothing, unless it stores updates.
std::vector<Update> updates_of(const Graph& graph, const FunctionSpec& function);

/// The values that a function asks for: its outputs, then the values of the updates if it has any.
std::vector<int> roots_of(const Graph& graph, const FunctionSpec& function);

/// Per result of a loop's node, 1 if its iterations have to make it: it is a carry, or something
/// reads it. `read`: per value, 1 if something reads it.
std::vector<char> needed_results(const Graph& graph, const Node& loop,
                                 const std::vector<char>& read);

/// Per node, 1 if any of the values `roots` depends on it.
std::vector<char> needed_nodes(const Graph& graph, const std::vector<int>& roots);

}  // namespace tessera
