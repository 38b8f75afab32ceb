// Layers that are alike: instances of one module that follow one another, each of which reads what
// the one before made, and that compute the same with parameters of their own.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pytorch/program.h"

namespace tessera::pytorch {

struct Stack {
  std::string path;  ///< of the modules, without their number: "model.layers"
  int64_t first = 0, count = 0;
  size_t begin = 0, end = 0;                       ///< nodes of the graph that it consists of
  std::vector<const Node*> nodes;                  ///< of the first layer
  std::string in, out;                             ///< what the first layer reads and makes
  std::string last;                                ///< what the last one makes
  std::vector<std::string> parameters;             ///< values of the first layer's own
  std::vector<std::vector<std::string>> of_layer;  ///< for each of them those of all layers

  /// The scope of its parameters: `path` if it has all layers.
  std::string scope() const;
};

/// The path of a module in a stack of `path`: "model.layers.mlp" of "model.layers.3.mlp".
std::string stacked_path(const std::string& module, const Stack& stack);

/// `is_computed`: whether a node is part of the model, and no constant. `are_equal`: whether two
/// constants have the same elements.
std::vector<Stack> find_stacks(
    const ExportedProgram& program, const std::function<bool(const Node&)>& is_computed,
    const std::function<bool(const std::string&, const std::string&)>& are_equal);

}  // namespace tessera::pytorch
