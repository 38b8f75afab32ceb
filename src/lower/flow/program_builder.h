// Builds the Program of a Flow: buffers, ports, the view of each flow value, and simple steps.
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
  /// Adds a port for every stored tensor. Keeps references.
  ProgramBuilder(const Graph& graph, const Flow& flow, const RuleLayouts& rule_layouts);

  Program& program() { return program_; }
  /// The function to which steps are added.
  Function& function() { return *function_; }
  /// Makes `function` the current one and returns the one before it.
  Function* set_function(Function* function);
  const FlowValue& value(int id) const { return flow_.values[id]; }
  /// The view of a flow value; empty until it is set.
  View& view(int value) { return views_[value]; }

  /// The index of a run-time scalar; adds the scalar if it is new.
  int scalar(const std::string& name);
  /// The scalar that counts the iterations of a loop; shared by all functions.
  int counter(const FlowLoop& loop);
  /// Axes whose ranks are stages that share the work of the current function.
  std::vector<int>& stage_axes() { return stage_axes_; }
  /// By loop of the graph: its counter, or -1.
  const std::vector<int>& counters() const { return counters_; }
  /// The size of a dim: a constant, or the scalar of a bounded dim.
  AffineExpr extent(const Dim& dim);
  /// The global offset of a rank's slice, if slices over `axes` have `local` elements.
  AffineExpr offset(const std::vector<int>& axes, int64_t local) const;

  /// A new buffer for a value.
  View new_view(const FlowValue& v, ArenaKind arena);
  int add_port(const std::string& name, const View& view, const Shape& shape,
               const TensorLayout& layout);
  /// Where a step writes a result: the place given by set_place(), else a new buffer.
  View result_view(int value);
  /// Lets `value` be computed in `place` instead of in a buffer of its own.
  void set_place(int value, View place) { places_.emplace(value, std::move(place)); }
  const std::map<int, View>& places() const { return places_; }
  void set_places(std::map<int, View> places) { places_ = std::move(places); }

  void add_step(Step step);
  void add_copy(const View& from, const View& to, const Origin& origin);
  /// Copies a value to a contiguous buffer.
  View copy_of(int value);
  /// The view of a value if it is contiguous, else that of a contiguous copy.
  View contiguous(int value);

 private:
  void add_stored(const Graph& graph, const Stored& s);

  const Flow& flow_;
  const RuleLayouts& rule_layouts_;
  Program program_;
  Function* function_ = nullptr;
  std::vector<View> views_;     ///< by flow value
  std::map<int, View> places_;  ///< by flow value, see set_place()
  std::vector<int> counters_, stage_axes_;
};

/// An instruction that loads operand `slot`.
Instr load_instr(int slot, DType dtype);

}  // namespace tessera
