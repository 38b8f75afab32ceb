// The Program of a flow while it is built: buffers, ports, the view of each flow value, and simple
// steps.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"
#include "program/program.h"

namespace tessera {

class ProgramBuilder {
 public:
  /// Adds the ports of all stored tensors. Keeps references.
  ProgramBuilder(const Graph& graph, const Flow& flow, const RuleLayouts& rule_layouts);

  Program& program() { return program_; }
  /// Steps are added to this function.
  Function& function() { return *function_; }
  /// Returns the function that was current.
  Function* set_function(Function* function);
  const FlowValue& value(int id) const { return flow_.values[id]; }
  /// The view of a flow value, once it has one.
  View& view(int value) { return views_[value]; }

  /// The number of a run-time scalar, which is added if it is new.
  int scalar(const std::string& name);
  /// The scalar that counts the iterations of a loop; all functions share it.
  int counter(const FlowLoop& loop);
  /// By loop of the graph: its counter, or -1.
  const std::vector<int>& counters() const { return counters_; }
  /// The size of a dim: a constant, or the scalar of a bounded dim.
  IntExpr extent(const Dim& dim);
  /// Where the slice of a rank begins, if slices over `axes` have `local` elements.
  IntExpr offset(const std::vector<int>& axes, int64_t local) const;

  /// A buffer of its own for a value.
  View new_view(const FlowValue& v, ArenaKind arena);
  int add_port(const std::string& name, const View& view, const Shape& shape,
               const TensorLayout& layout);
  /// Where a step writes a result: a buffer of its own, or the place given by set_place().
  View result_view(int value);
  /// `value` is computed in place there, instead of in a buffer of its own.
  void set_place(int value, View place) { places_.emplace(value, std::move(place)); }
  const std::map<int, View>& places() const { return places_; }
  void set_places(std::map<int, View> places) { places_ = std::move(places); }

  void add_step(Step step);
  void add_copy(const View& from, const View& to, const Origin& origin);
  /// A contiguous copy in a buffer of its own.
  View copy_of(int value);
  /// The view of the value, or that of a copy if it is not contiguous.
  View contiguous(int value);

 private:
  void add_stored(const Graph& graph, const Stored& s);

  const Flow& flow_;
  const RuleLayouts& rule_layouts_;
  Program program_;
  Function* function_ = nullptr;
  std::vector<View> views_;     ///< by flow value
  std::map<int, View> places_;  ///< by flow value: see set_place()
  std::vector<int> counters_;
};

/// An instruction that loads operand `slot`.
Instr load_instr(int slot, DType dtype);

}  // namespace tessera
