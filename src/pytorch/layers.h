// Layers that are alike: instances of modules that follow one another, each of which reads what the
// one before made, and that compute the same with parameters of their own. They may be of several
// kinds in turn.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pytorch/program.h"

namespace tessera::pytorch {

struct Stack {
  int64_t count = 0, shift = 1;         ///< iterations, and how many layers of one path each has
  size_t begin = 0, end = 0;            ///< nodes of the graph that it consists of
  std::vector<const Node*> nodes;       ///< of the first layer
  std::string in, out;                  ///< what the first layer reads and makes
  std::string last;                     ///< what the last one makes
  std::vector<std::string> parameters;  ///< values of the first iteration's own
  std::vector<std::vector<std::string>> of_layer;  ///< for each of them those of all
};

/// The path of a module in the loop: "model.layers.mlp" of "model.layers.0.mlp". Layers that do not
/// begin at 0, or not all, have them in it: "model.layers.from1by2.mlp" of every second.
std::string stacked_path(const std::string& module, const Stack& stack);

/// `is_computed`: whether a node is part of the model, and no constant. `are_equal`: whether two
/// constants have the same elements.
std::vector<Stack> find_stacks(
    const ExportedProgram& program, const std::function<bool(const Node&)>& is_computed,
    const std::function<bool(const std::string&, const std::string&)>& are_equal);

}  // namespace tessera::pytorch
