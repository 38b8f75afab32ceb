// What is built several times, or once for all iterations of a loop: microbatches, layers.
#pragma once

#include "tessera/graph.h"

namespace tessera {

/// While it lives, nothing is repeated and no loop is open: for what belongs to the whole model.
class OutsideScope {
 public:
  explicit OutsideScope(Graph& graph);
  ~OutsideScope();
  OutsideScope(const OutsideScope&) = delete;
  /// What was repeated.
  const std::vector<Repeat>& repeats() const { return repeats_; }

 private:
  Graph& graph_;
  int open_loop_;
  std::vector<Repeat> repeats_;
  std::unordered_map<std::string, std::vector<int64_t>> first_copy_;
  std::unordered_map<std::string, size_t> copy_uses_;
};

/// The microbatch that is being built, or null.
const Repeat* part_of(const Graph& g);
/// The part's examples of the input `name`, which is fed with those of all parts. Only where a part
/// is being built.
Tensor part_of_input(Graph& g, const std::string& name, const Shape& shape, DType dtype, Loc at);
/// `made`, an input or a stored tensor that was given `name`. Throws a usage error with both lines
/// if another input or stored tensor has it.
Tensor declared(Tensor made, const std::string& name);
/// The slice of `whole` that belongs to the copy or iteration `repeat`, along the dim `dim` of
/// repeat.count elements.
Tensor slice_of(const Repeat& repeat, Tensor whole, const std::string& dim, Loc at);

}  // namespace tessera
