// Random models, meshes and layouts, built from a recipe that can be shortened.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/reference.h"
#include "tessera/graph.h"

namespace tessera::test {

/// One op to add: `kind` chooses it, `draws` its operands and dims, each modulo what there is to
/// choose from. So a recipe stays valid when steps are taken out of it.
struct RecipeStep {
  int kind = 0;
  std::vector<uint32_t> draws;
};

struct Recipe {
  std::vector<int64_t> sizes;  ///< of the dims p, q, r, ...
  /// Of a bounded dim: its size in the first run and in the second. {0, 0}: it is fixed.
  std::vector<std::array<int64_t, 2>> run_sizes;
  std::vector<RecipeStep> steps;
  int training = 0;  ///< 0: only values; 1: gradients of all operands; 2: sgd; 3: momentum; 4: adam
                     ///< with clipping
  uint64_t data_seed = 0;
  std::string mesh, layout;
  std::string device = "cpu";
  int64_t strict_chunks = 0;  ///< see CompileOptions; then bits are compared with one rank's
  bool mixed = false;         ///< float64, float32, bfloat16, int32, int64 and bool in one graph

  /// With 16 bits, values jump where what is rounded ties. Bits do not.
  bool compares_values() const { return !mixed || strict_chunks == 0; }
};

/// The model of a recipe with a value for every input and stored tensor.
struct RandomModel {
  Graph graph;
  std::vector<Tensor> outputs;
  std::vector<std::pair<Tensor, Whole>> fed, stored;  ///< fed: up to the bounds
  /// Of both runs: the sizes of all bounded dims, those that ops have made of others too.
  std::array<std::map<std::string, int64_t>, 2> sizes;
  std::vector<std::string> bounded;  ///< those that are set
};
void build(const Recipe& recipe, RandomModel& model);

/// Without mesh and layout.
Recipe draw_recipe(std::mt19937_64& random);
std::string draw_mesh(std::mt19937_64& random);
/// Rules of all kinds for the dims and names of the graph; they may claim one axis twice.
std::string draw_layout(const Graph& graph, const std::string& mesh, std::mt19937_64& random);

/// What the builder draws with: a number below the argument.
using Draw = std::function<uint32_t(size_t)>;
/// A random op that sees all of one dim, or moves along it; its size stays, or the new name tells
/// it.
Tensor ordered(Tensor x, const Draw& draw);
/// A random convolution or pooling along one dim, whose size stays. `parameter` makes filters.
Tensor windowed(Tensor x, const Draw& draw, const std::function<Tensor(const Shape&)>& parameter);
/// Attention of x to itself with random structure, of operands in any order. `parameter` makes
/// sinks, biases and a scale.
Tensor attended(Tensor x, const Draw& draw, const std::function<Tensor(const Shape&)>& parameter);

}  // namespace tessera::test
