#include "lower/flow/program_builder.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "ir/loop.h"
#include "lower/layout/interval.h"

namespace tessera {

ProgramBuilder::ProgramBuilder(const Graph& graph, const Flow& flow,
                               const RuleLayouts& rule_layouts)
    : flow_(flow),
      rule_layouts_(rule_layouts),
      views_(flow.values.size()),
      counters_(loops_of(graph).size(), -1) {
  for (const MeshAxis& axis : rule_layouts.mesh().axes()) {
    program_.axis_names.push_back(axis.name);
    program_.axis_sizes.push_back(axis.size);
  }
  program_.scalars = {"step", "seed"};
  for (const Stored& s : graph.stored()) add_stored(graph, s);
}

Function* ProgramBuilder::set_function(Function* function) {
  return std::exchange(function_, function);
}

int ProgramBuilder::scalar(const std::string& name) {
  auto it = std::find(program_.scalars.begin(), program_.scalars.end(), name);
  if (it == program_.scalars.end()) it = program_.scalars.insert(it, name);
  return static_cast<int>(it - program_.scalars.begin());
}

int ProgramBuilder::counter(const FlowLoop& loop) {
  int& counter = counters_[static_cast<size_t>(loop.number)];
  if (counter < 0) {
    counter = static_cast<int>(program_.scalars.size());
    program_.scalars.push_back(fmt::format("iteration of {}", loop.name));
  }
  return counter;
}

AffineExpr ProgramBuilder::extent(const Dim& dim) {
  AffineExpr expr;
  if (dim.is_bounded) {
    expr.scalar = scalar(dim.name);
  } else {
    expr.constant = dim.size;
  }
  return expr;
}

AffineExpr ProgramBuilder::offset(const std::vector<int>& axes, int64_t local) const {
  return slice_begin(rule_layouts_.mesh(), axes, local);
}

View ProgramBuilder::new_view(const FlowValue& v, ArenaKind arena) {
  View view{static_cast<int>(program_.buffers.size()), v.dtype, {}, {}, 0, {}};
  view.sizes =
      slice_sizes(slicing_of(rule_layouts_, v.shape, v.layout, v.intervals), program_.axis_sizes);
  view.strides.resize(view.sizes.size());
  int64_t stride = 1;
  for (size_t d = view.sizes.size(); d-- > 0; stride *= view.sizes[d]) view.strides[d] = stride;
  program_.buffers.push_back({v.name, arena, view.elements() * size_of(v.dtype), 0});
  return view;
}

int ProgramBuilder::add_port(const std::string& name, const View& view, const Shape& shape,
                             const TensorLayout& layout) {
  Port port{name, view, shape.names(), {}, {}, layout.dims};
  for (const Dim& d : shape) {
    port.sizes.push_back(d.size);
    port.scalars.push_back(d.is_bounded ? scalar(d.name) : -1);
  }
  program_.ports.push_back(std::move(port));
  return static_cast<int>(program_.ports.size()) - 1;
}

void ProgramBuilder::add_stored(const Graph& graph, const Stored& s) {
  const Value& v = graph.value(s.value);
  const TensorLayout layout = rule_layouts_.storage(graph, s);
  const View view = new_view({v.shape, v.dtype, layout, v.name}, ArenaKind::persistent);
  program_.stored.push_back(add_port(v.name, view, v.shape, layout));
}

View ProgramBuilder::result_view(int value) {
  const auto place = places_.find(value);
  return place == places_.end() ? new_view(flow_.values[value], ArenaKind::transient)
                                : place->second;
}

void ProgramBuilder::add_step(Step step) { function_->steps.push_back(std::move(step)); }

void ProgramBuilder::add_copy(const View& from, const View& to, const Origin& origin) {
  Step step;
  step.kernel = KernelKind::copy;
  step.in = {from};
  step.out = {to};
  step.origin = origin;
  add_step(std::move(step));
}

View ProgramBuilder::copy_of(int value) {
  const FlowValue& v = flow_.values[value];
  const View view = new_view(v, ArenaKind::transient);
  add_copy(views_[value], view, {v.name, "", "contiguous copy"});
  return view;
}

View ProgramBuilder::contiguous(int value) {
  return views_[value].is_contiguous() ? views_[value] : copy_of(value);
}

Instr load_instr(int slot, DType dtype) {
  Instr load;
  load.code = PointwiseOp::load;
  load.dtype = dtype;
  load.slot = slot;
  return load;
}

}  // namespace tessera
