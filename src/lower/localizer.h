// From flow to Program: what localize.cpp and localize_loop.cpp share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/emit.h"
#include "lower/passes.h"

namespace tessera {

class Localizer {
 public:
  Localizer(const Graph& graph, const Flow& flow, const HomeLayouts& homes)
      : graph_(graph),
        flow_(flow),
        homes_(homes),
        views_(flow.values.size()),
        counters_(graph.loops().size(), -1) {
    for (const MeshAxis& axis : homes.mesh().axes()) {
      program_.axis_names.push_back(axis.name);
      program_.axis_sizes.push_back(axis.size);
    }
    program_.scalars = {"step", "seed"};
    for (const Stored& s : graph.stored()) add_stored(s);
  }

  Program run();

 private:
  int scalar(const std::string& name);
  IntExpr extent(const Dim& dim);
  IntExpr offset(const std::vector<int>& axes, int64_t local) const;
  View new_view(const FlowValue& v, ArenaKind arena);
  View new_view(const std::string& name, const Shape& shape, DType dtype,
                const TensorLayout& layout, ArenaKind arena,
                const std::vector<Interval>& intervals = {});
  int add_port(const std::string& name, const View& view, const Shape& shape,
               const TensorLayout& layout);
  void add_stored(const Stored& s);
  void localize(const FlowFunction& f);
  void add_nodes(const std::vector<FlowNode>& nodes);
  Function& function() { return *function_; }

  void add_input(const FlowNode& node);

  /// All values are computed before any is assigned: a value that is itself stored is copied aside
  /// first.
  void add_updates(const FlowFunction& f);
  void copy_step(const View& from, const View& to, const Origin& origin);
  View copy_of(int value);

  /// Where a result goes: a buffer of its own, or its place in what a loop leaves.
  View result_view(int value);
  View contiguous(int value);
  void add_op(const FlowNode& node);
  void fill_factors(const FlowNode& node, EmitCall& call);

  /// A related factor is a dim of one operand: as that was brought, or as it lies.
  void fill_related(const FlowNode& node, int factor, EmitCall& call);
  IntExpr factor_extent(const FlowNode& node, int factor);
  void emit_pointwise(EmitCall& call);
  void add_slice(const FlowNode& node);
  void add_mask(const FlowNode& node);
  void add_collective(const FlowNode& node);
  const Graph& graph_;
  const Flow& flow_;
  const HomeLayouts& homes_;
  Program program_;
  std::vector<View> views_;
  std::map<std::string, int> inputs_;
  Function* function_ = nullptr;  ///< what is added to
  std::map<int, View> places_;    ///< values of a trip that are made where the loop leaves them
  std::map<int, View> sums_;      ///< stacked by a loop, in a trip of one that adds it up: that sum
  std::vector<int> counters_;     ///< by loop of the graph: its scalar, or -1
  int next_collective_ = 0;

  // localize_loop.cpp
  void add_loop(const FlowNode& node);
  View place_in(View whole, int dim, int counter);
  void fill_with_zeros(const View& view, const Origin& origin);
  void add_to_sum(const View& sum, const View& value, const Origin& origin);
  void begin_loop(const FlowNode& node, int counter);
  void end_trip(const FlowNode& node, int counter);
  void step_of_loop(const FlowNode& node, int counter, Function body);
};

}  // namespace tessera
