// What a model builds several times, as copies or as the body of a loop: layers, iterations and
// microbatches.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// A repetition that is being built, such as layer 3 of 12: copy 3, or the body of a loop over 12.
struct Repeat {
  std::string dim;
  int64_t count = 0;
  int64_t index = 0;  ///< of the copy; 0 in a loop
  int loop = -1;      ///< the loop whose body it is; -1: it is a copy
  /// A layer has parameters of its own. Iterations and microbatches share theirs.
  enum class Of { layer, iteration, microbatch } of = Of::layer;
  int64_t instance = 0;     ///< tells apart repetitions that follow each other
  bool contiguous = false;  ///< of a microbatch: LoopOptions::contiguous
};

/// Repetitions that are being built, outermost first.
const std::vector<Repeat>& open_repeats(const Graph& graph);
/// The microbatch that is being built, or null.
const Repeat* open_microbatch(const Graph& graph);
/// Repeat::instance of the next repetition.
int64_t new_instance(Graph& graph);
/// The copies that the current Scopes are.
const std::vector<Repeat>& copies_of_scopes(const Graph& graph);
/// The full name `name` without the numbers of these copies, for what is the same in all of them.
std::string name_in_copies(const Graph& graph, const std::string& name);

/// What `make` returns. Microbatch 1 uses the parameters of microbatch 0: copy 0 calls `make`, and
/// a further copy gets what copy 0 got for the same use of `name` in this scope. Throws a usage
/// error if copy 0 had no such use.
int64_t once_for_all(Graph& graph, const std::string& name, const std::function<int64_t()>& make);
/// `made`, an input or a stored tensor that was given `name`. Throws a usage error with both lines
/// if another input or stored tensor has it.
Tensor declared(Tensor made, const std::string& name);
/// The slice of `whole` that belongs to `repeat`, along the dim `dim` of repeat.count elements.
Tensor slice_of(const Repeat& repeat, Tensor whole, const std::string& dim, Loc at);
/// The input `name` of the open microbatch: its examples of the input of the whole batch.
Tensor microbatch_input(Graph& g, const std::string& name, const Shape& shape, DType dtype, Loc at);

/// Adds a stored tensor. In a layer that is repeated it is the layer's slice of a tensor for all
/// layers.
Tensor add_stored(Graph& g, const std::string& name, const Shape& shape, const Initializer& init,
                  DType dtype, Purpose purpose, bool trainable, Loc at);

}  // namespace tessera
