// Every flow value becomes a view of a buffer on this rank. A slice is a view with a shift, so it
// costs nothing; an op asks its record for the step (Op::emit), from the local sizes and offsets of
// its factors.
#include <algorithm>

#include "base/fail.h"
#include "lower/choose.h"
#include "lower/collective_step.h"
#include "lower/interval.h"
#include "lower/localizer.h"

namespace tessera {

Program Localizer::run() {
  for (const FlowFunction& f : flow_.functions) localize(f);
  return std::move(program_);
}

int Localizer::scalar(const std::string& name) {
  auto it = std::find(program_.scalars.begin(), program_.scalars.end(), name);
  if (it == program_.scalars.end()) it = program_.scalars.insert(it, name);
  return static_cast<int>(it - program_.scalars.begin());
}

IntExpr Localizer::extent(const Dim& dim) {
  IntExpr expr;
  if (dim.is_bounded) {
    expr.scalar = scalar(dim.name);
  } else {
    expr.constant = dim.size;
  }
  return expr;
}

IntExpr Localizer::offset(const std::vector<int>& axes, int64_t local) const {
  return slice_begin(homes_.mesh(), axes, local);
}

View Localizer::new_view(const FlowValue& v, ArenaKind arena) {
  return new_view(v.name, v.shape, v.dtype, v.layout, arena, v.intervals);
}

View Localizer::new_view(const std::string& name, const Shape& shape, DType dtype,
                         const TensorLayout& layout, ArenaKind arena,
                         const std::vector<Interval>& intervals) {
  View view{static_cast<int>(program_.buffers.size()), dtype, {}, {}, 0, {}};
  view.sizes = slice_sizes(slicing_of(homes_, shape, layout, intervals), program_.axis_sizes);
  view.strides.resize(view.sizes.size());
  int64_t stride = 1;
  for (size_t d = view.sizes.size(); d-- > 0; stride *= view.sizes[d]) view.strides[d] = stride;
  program_.buffers.push_back({name, arena, view.elements() * size_of(dtype), 0});
  return view;
}

int Localizer::add_port(const std::string& name, const View& view, const Shape& shape,
                        const TensorLayout& layout) {
  Port port{name, view, shape.names(), {}, {}, layout.dims};
  for (const Dim& d : shape) {
    port.sizes.push_back(d.size);
    port.scalars.push_back(d.is_bounded ? scalar(d.name) : -1);
  }
  program_.ports.push_back(std::move(port));
  return static_cast<int>(program_.ports.size()) - 1;
}

void Localizer::add_stored(const Stored& s) {
  const Value& v = graph_.value(s.value);
  const TensorLayout layout = homes_.storage(graph_, s);
  const View view = new_view(v.name, v.shape, v.dtype, layout, ArenaKind::persistent);
  program_.stored.push_back(add_port(v.name, view, v.shape, layout));
}

void Localizer::localize(const FlowFunction& f) {
  Function function{f.name, {}, {}, {}, f.name != "init" && !f.updates.empty(), 0};
  function_ = &function;
  add_nodes(f.nodes);
  for (const auto& [name, value] : f.outputs) {
    const FlowValue& v = flow_.values[value];
    View view = views_[value];
    if (!view.is_contiguous() || program_.buffers[view.buffer].arena != ArenaKind::transient)
      view = copy_of(value);
    function.outputs.push_back(add_port(name, view, v.shape, v.layout));
  }
  add_updates(f);
  program_.functions.push_back(std::move(function));
}

void Localizer::add_nodes(const std::vector<FlowNode>& nodes) {
  for (const FlowNode& node : nodes) {
    switch (node.kind) {
      case FlowKind::input:
        add_input(node);
        break;
      case FlowKind::stored:
        views_[node.out[0]] = program_.ports[program_.stored[node.stored]].view;
        break;
      case FlowKind::op:
        add_op(node);
        break;
      case FlowKind::slice:
        add_slice(node);
        break;
      case FlowKind::loop:
        add_loop(node);
        break;
      case FlowKind::mask:
      case FlowKind::first_only:
        add_mask(node);
        break;
      default:
        add_collective(node);
        break;
    }
  }
}

void Localizer::add_input(const FlowNode& node) {
  const FlowValue& v = flow_.values[node.out[0]];
  for (size_t p = 0; p < program_.ports.size(); ++p) {
    if (inputs_.count(v.name) && inputs_[v.name] == static_cast<int>(p)) {
      views_[node.out[0]] = program_.ports[p].view;
      function().inputs.push_back(static_cast<int>(p));
      return;
    }
  }
  views_[node.out[0]] = new_view(v, ArenaKind::persistent);
  inputs_[v.name] = add_port(v.name, views_[node.out[0]], v.shape, v.layout);
  function().inputs.push_back(inputs_[v.name]);
}

void Localizer::add_updates(const FlowFunction& f) {
  std::vector<std::pair<int, View>> sources;
  for (const auto& [stored, value] : f.updates) {
    const bool aside = program_.buffers[views_[value].buffer].arena != ArenaKind::transient;
    sources.emplace_back(stored, aside ? copy_of(value) : views_[value]);
  }
  function().first_update = static_cast<int>(function().steps.size());
  for (const auto& [stored, source] : sources) {
    const Port& port = program_.ports[program_.stored[stored]];
    copy_step(source, port.view, {port.name, "", "update"});
  }
}

void Localizer::copy_step(const View& from, const View& to, const Origin& origin) {
  Step step;
  step.kernel = "copy";
  step.in = {from};
  step.out = {to};
  step.origin = origin;
  function().steps.push_back(std::move(step));
}

View Localizer::copy_of(int value) {
  const FlowValue& v = flow_.values[value];
  const View view = new_view(v, ArenaKind::transient);
  copy_step(views_[value], view, {v.name, "", "contiguous copy"});
  return view;
}

View Localizer::result_view(int value) {
  const auto place = places_.find(value);
  return place == places_.end() ? new_view(flow_.values[value], ArenaKind::transient)
                                : place->second;
}

View Localizer::contiguous(int value) {
  return views_[value].is_contiguous() ? views_[value] : copy_of(value);
}

void Localizer::add_op(const FlowNode& node) {
  std::vector<ValueType> in, out;
  for (int v : node.in) in.push_back({flow_.values[v].shape, flow_.values[v].dtype});
  for (int v : node.out) out.push_back({flow_.values[v].shape, flow_.values[v].dtype});
  const OpCall op_call{*node.op, in, out, node.attrs};
  Step step;
  step.origin = node.origin;
  EmitCall call{op_call, node.space,       {}, {}, {},   {},       {},
                {},      node.origin.name, 1,  0,  step, counters_};
  for (int v : node.in) call.in.push_back(node.op->contiguous ? contiguous(v) : views_[v]);
  fill_factors(node, call);
  for (int v : node.out) {
    views_[v] = result_view(v);
    call.out.push_back(views_[v]);
  }
  if (node.op->pointwise) {
    emit_pointwise(call);
  } else {
    step.kernel = std::string(node.op->name);
    step.attrs = node.attrs;
    const auto emit = node.op->host ? emit_host : node.op->emit ? node.op->emit : emit_aligned;
    emit(call);
  }
  step.flops = node.op->flops ? node.op->flops(op_call) : out[0].shape.elements();
  std::vector<bool> used(program_.axis_sizes.size(), false);
  for (const auto& axes : node.splits) {
    for (int axis : axes) {
      step.flops /= program_.axis_sizes[axis];
      used[axis] = true;
    }
  }
  for (int v : node.in) {
    for (int axis : flow_.values[v].layout.partial) used[axis] = true;
  }
  for (size_t a = 0; a < used.size(); ++a) {
    if (!used[a] && program_.axis_sizes[a] > 1) step.unused.push_back(static_cast<int>(a));
  }
  function().steps.push_back(std::move(step));
}

void Localizer::fill_factors(const FlowNode& node, EmitCall& call) {
  for (size_t f = 0; f < node.space.factors.size(); ++f) {
    if (node.space.factors[f].role == Role::related) {
      fill_related(node, static_cast<int>(f), call);
      continue;
    }
    int64_t local = padded_factor(call.call, node.space, homes_, static_cast<int>(f));
    for (int axis : node.splits[f]) local /= program_.axis_sizes[axis];
    call.local.push_back(local);
    call.logical.push_back(node.space.factors[f].size);
    call.offset.push_back(offset(node.splits[f], local));
    call.extent.push_back(factor_extent(node, static_cast<int>(f)));
  }
}

void Localizer::fill_related(const FlowNode& node, int factor, EmitCall& call) {
  for (size_t i = 0; i < node.in.size(); ++i) {
    for (size_t d = 0; d < node.space.in[i].size(); ++d) {
      if (node.space.in[i][d] != std::vector<int>{factor}) continue;
      const FlowValue& v = flow_.values[node.in[i]];
      call.local.push_back(call.in[i].sizes[d]);
      call.logical.push_back(node.space.factors[factor].size);
      call.offset.push_back(offset(v.layout.dims[d], call.local.back()));
      for (const Interval& interval : v.intervals) {
        if (interval.dim == static_cast<int>(d)) call.offset.back() = interval.begin;
      }
      call.extent.push_back(factor_extent(node, factor));
      return;
    }
  }
  fail(ErrorKind::internal, "[{}] related factor '{}' is in no operand", node.op->name,
       node.space.factors[factor].name);
}

IntExpr Localizer::factor_extent(const FlowNode& node, int factor) {
  auto find = [&](const std::vector<int>& values,
                  const std::vector<std::vector<std::vector<int>>>& operands, IntExpr& result) {
    for (size_t i = 0; i < operands.size(); ++i) {
      for (size_t d = 0; d < operands[i].size(); ++d) {
        if (operands[i][d].size() != 1 || operands[i][d][0] != factor) continue;
        result = extent(flow_.values[values[i]].shape[static_cast<int>(d)]);
        return true;
      }
    }
    return false;
  };
  IntExpr result;
  result.constant = node.space.factors[factor].size;
  if (find(node.out, node.space.out, result) || find(node.in, node.space.in, result)) return result;
  if (!node.attrs.has("bounded")) return result;
  const auto& names =
      node.attrs.get<std::vector<std::string>>("dims");  // dim_size: the dim is in no operand
  for (size_t d = 0; d < names.size(); ++d) {
    if (names[d] != node.space.factors[factor].name ||
        !node.attrs.get<std::vector<int64_t>>("bounded")[d])
      continue;
    result = {};
    result.scalar = scalar(names[d]);
  }
  return result;
}

void Localizer::emit_pointwise(EmitCall& call) {
  Step& step = call.step;
  step.kernel = "pointwise";
  std::vector<int> factors;
  for (const auto& dim : call.space.out[0]) factors.insert(factors.end(), dim.begin(), dim.end());
  Instr instr;
  instr.code = call.call.op.code;
  instr.dtype = call.call.out[0].dtype;
  int* operands[] = {&instr.a, &instr.b, &instr.c};
  for (size_t i = 0; i < call.in.size(); ++i) {
    step.in.push_back(align(call, call.in[i], call.space.in[i], factors));
    Instr load;
    load.code = Code::load;
    load.dtype = call.in[i].dtype;
    load.slot = static_cast<int>(i);
    step.pointwise.code.push_back(load);
    *operands[i] = static_cast<int>(i);
  }
  step.pointwise.code.push_back(instr);
  step.pointwise.outputs = {static_cast<int>(call.in.size())};
  step.out = {align(call, call.out[0], call.space.out[0], factors)};
  if (call.call.op.emit) call.call.op.emit(call);
}

void Localizer::add_slice(const FlowNode& node) {
  const int d = node.to;
  View view = views_[node.in[0]];
  for (int axis : node.axes) view.sizes[d] /= program_.axis_sizes[axis];
  for (const auto& [axis, factor] : offset(node.axes, view.sizes[d]).axis_terms) {
    view.shift.axis_terms.emplace_back(axis, factor * view.strides[d]);
  }
  views_[node.out[0]] = view;
}

void Localizer::add_mask(const FlowNode& node) {
  const FlowValue& v = flow_.values[node.out[0]];
  const View in = views_[node.in[0]];
  views_[node.out[0]] = result_view(node.out[0]);
  Step step;
  step.kernel = "pointwise";
  step.origin = node.origin;
  step.in = {in};
  step.out = {views_[node.out[0]]};
  Instr load;
  load.code = Code::load;
  load.dtype = v.dtype;
  load.slot = 0;
  step.pointwise.code.push_back(load);
  auto add = [&](int slot, IntExpr expr) {
    Instr mask;
    mask.code = Code::mask;
    mask.dtype = v.dtype;
    mask.a = static_cast<int>(step.pointwise.code.size()) - 1;
    mask.slot = slot;
    mask.expr = static_cast<int>(step.exprs.size());
    mask.imm = node.fill;
    step.pointwise.code.push_back(mask);
    step.exprs.push_back(std::move(expr));
  };
  for (int d : node.dims) {  // valid elements here: clamp(size - offset, 0, local)
    IntExpr valid = extent(v.shape[d]);
    for (const auto& [axis, factor] : offset(v.layout.dims[d], in.sizes[d]).axis_terms) {
      valid.axis_terms.emplace_back(axis, -factor);
    }
    valid.lo = 0;
    valid.hi = in.sizes[d];
    add(d, valid);
  }
  if (node.kind == FlowKind::first_only) {
    IntExpr first;
    first.constant = 1;
    for (int axis : node.axes) first.axis_terms.emplace_back(axis, -1);
    first.lo = 0;
    first.hi = 1;
    add(-1, first);
  }
  step.pointwise.outputs = {static_cast<int>(step.pointwise.code.size()) - 1};
  function().steps.push_back(std::move(step));
}

void Localizer::add_collective(const FlowNode& node) {
  Step step;
  step.kind = StepKind::collective;
  step.kernel = to_string(node.kind);
  step.axes = node.axes;
  step.combiner = node.combiner;
  step.origin = node.origin;
  step.number = next_collective_++;
  step.in = {contiguous(node.in[0])};
  views_[node.out[0]] = result_view(node.out[0]);
  step.out = {views_[node.out[0]]};
  describe_collective(flow_, homes_, node, step);
  Step wait;
  wait.kind = StepKind::wait;
  wait.number = step.number;
  function().steps.push_back(std::move(step));
  function().steps.push_back(std::move(wait));
}

Program localize(const Graph& graph, const Flow& flow, const HomeLayouts& homes) {
  return Localizer(graph, flow, homes).run();
}

}  // namespace tessera
