// Every flow value becomes a view of a buffer on this rank. A slice is a view with a shift, so it
// costs nothing. Op::emit makes the step of an op, from the local sizes and offsets of the op's
// factors. A collective is a step with its wait right after it; later passes move them apart.
#include "lower/flow/localize.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "ir/emit.h"
#include "lower/flow/collective_step.h"
#include "lower/flow/loop_localizer.h"
#include "lower/flow/program_builder.h"
#include "lower/layout/choose.h"

namespace tessera {

namespace {

class Localizer {
 public:
  Localizer(const Graph& graph, const Flow& flow, const RuleLayouts& rule_layouts)
      : flow_(flow),
        rule_layouts_(rule_layouts),
        build_(graph, flow, rule_layouts),
        loops_(build_, [this](const std::vector<FlowNode>& nodes) { add_nodes(nodes); }) {}

  Program run() {
    for (const FlowFunction& f : flow_.functions) add_function(f);
    return std::move(build_.program());
  }

 private:
  const FlowValue& value(int id) const { return flow_.values[id]; }
  View& view(int id) { return build_.view(id); }
  ArenaKind arena_of(const View& v) { return build_.program().buffers[v.buffer].arena; }
  int ranks_of(int axis) { return build_.program().axis_sizes[axis]; }

  void add_function(const FlowFunction& f) {
    Function function{f.name, {}, {}, {}, f.kind == FunctionKind::user && !f.updates.empty(), 0};
    function.kind = f.kind;
    function.by_microbatches = f.by_microbatches;
    build_.set_function(&function);
    add_nodes(f.nodes);
    for (const auto& [name, id] : f.outputs) {
      View out = view(id);
      if (!out.is_contiguous() || arena_of(out) != ArenaKind::transient) out = build_.copy_of(id);
      function.outputs.push_back(build_.add_port(name, out, value(id).shape, value(id).layout));
    }
    add_updates(f);
    build_.program().functions.push_back(std::move(function));
  }

  void add_nodes(const std::vector<FlowNode>& nodes) {
    for (const FlowNode& node : nodes) {
      switch (node.kind) {
        case FlowKind::input:
          add_input(node);
          break;
        case FlowKind::stored:
          view(node.out[0]) = stored_port(node.stored).view;
          break;
        case FlowKind::op:
          add_op(node);
          break;
        case FlowKind::slice:
          add_slice(node);
          break;
        case FlowKind::tree_sum:
          add_tree_sum(node);
          break;
        case FlowKind::loop:
          loops_.add_loop(node);
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

  const Port& stored_port(int stored) {
    const Program& program = build_.program();
    return program.ports[program.stored[stored]];
  }

  /// Inputs of one name share a port, also between functions.
  void add_input(const FlowNode& node) {
    const FlowValue& v = value(node.out[0]);
    const auto known = inputs_.find(v.name);
    if (known == inputs_.end()) {
      view(node.out[0]) = build_.new_view(v, ArenaKind::persistent);
      inputs_[v.name] = build_.add_port(v.name, view(node.out[0]), v.shape, v.layout);
    } else {
      view(node.out[0]) = build_.program().ports[known->second].view;
    }
    build_.function().inputs.push_back(inputs_[v.name]);
  }

  /// All values are computed before any is stored, so a value that is itself a stored tensor is
  /// copied first.
  void add_updates(const FlowFunction& f) {
    std::vector<std::pair<int, View>> sources;
    for (const auto& [stored, id] : f.updates) {
      const bool is_stored = arena_of(view(id)) != ArenaKind::transient;
      sources.emplace_back(stored, is_stored ? build_.copy_of(id) : view(id));
    }
    build_.function().first_update = static_cast<int>(build_.function().steps.size());
    for (const auto& [stored, source] : sources) {
      const Port& port = stored_port(stored);
      build_.add_copy(source, port.view, {port.name, "", "update"});
    }
  }

  void add_op(const FlowNode& node) {
    std::vector<ValueType> in, out;
    for (int v : node.in) in.push_back({value(v).shape, value(v).dtype});
    for (int v : node.out) out.push_back({value(v).shape, value(v).dtype});
    if (node.order.is_split()) out[0].shape = out[0].shape.without({out[0].shape[0].name});
    const OpCall op_call{*node.op, in, out, node.attrs};
    Step step;
    step.origin = node.origin;
    EmitCall call{op_call, node.space,       {}, {}, {}, {}, {}, {}, node.origin.name, 1, 0,
                  step,    build_.counters()};
    for (int v : node.in) call.in.push_back(node.op->contiguous ? build_.contiguous(v) : view(v));
    fill_factors(node, call);
    for (int v : node.out) {
      view(v) = build_.result_view(v);
      call.out.push_back(view(v));
    }
    step.order = node.order;
    if (node.order.is_split()) {  // the dim in front has the places of the subtrees
      View& first = call.out[0];
      step.order.stride = first.strides[0];
      first.sizes.erase(first.sizes.begin());
      first.strides.erase(first.strides.begin());
    }
    if (node.op->pointwise) {
      emit_pointwise(call);
    } else {
      step.kernel = node.op->kernel;
      if (step.kernel == KernelKind::none) step.host.op = node.op->name;
      if (node.op->host) step.host.attrs = node.attrs;
      const auto emit = node.op->host ? emit_host : node.op->emit ? node.op->emit : emit_aligned;
      emit(call);
    }
    if (node.order.is_strict()) step.order.expr = std::ssize(step.exprs);
    for (const SumOrder::Along& a : node.order.along)
      step.exprs.push_back(build_.offset(node.splits[static_cast<size_t>(a.dim)], 1));
    step.flops = node.op->flops ? node.op->flops(op_call) : default_flops(node, out[0].shape);
    share_work(node, step);
    build_.add_step(std::move(step));
  }

  /// One for each element that the op makes; if it reduces, one for each that it reduces, wherever
  /// that goes: the rows of a scatter_add are added once, not to each row of the result.
  static int64_t default_flops(const FlowNode& node, const Shape& out) {
    int64_t reduced = 1, fresh = 1;
    for (const Factor& factor : node.space.factors) {
      if (factor.role == Role::reduce) reduced *= factor.size;
      if (factor.role == Role::fresh) fresh *= factor.size;
    }
    return reduced == 1 ? out.elements() : out.elements() / fresh * reduced;
  }

  /// Divides the op's flops by the ranks it is split over. Notes the axes it leaves unused.
  void share_work(const FlowNode& node, Step& step) {
    std::vector<bool> used(build_.program().axis_sizes.size(), false);
    for (const auto& axes : node.splits) {
      for (int axis : axes) {
        step.flops /= ranks_of(axis);
        used[axis] = true;
      }
    }
    for (int axis : build_.stage_axes()) used[axis] = true;
    for (int v : node.in) {
      for (int axis : value(v).layout.partial) used[axis] = true;
    }
    for (int axis = 0; axis < std::ssize(used); ++axis) {
      if (!used[axis] && ranks_of(axis) > 1) step.unused.push_back(axis);
    }
  }

  void fill_factors(const FlowNode& node, EmitCall& call) {
    for (size_t f = 0; f < node.space.factors.size(); ++f) {
      if (node.space.factors[f].role == Role::related) {
        fill_related(node, static_cast<int>(f), call);
        continue;
      }
      int64_t local = padded_factor(call.call, node.space, rule_layouts_, static_cast<int>(f));
      for (int axis : node.splits[f]) local /= ranks_of(axis);
      call.local.push_back(local);
      call.logical.push_back(node.space.factors[f].size);
      call.offset.push_back(build_.offset(node.splits[f], local));
      call.extent.push_back(factor_extent(node, call.call, static_cast<int>(f)));
    }
  }

  /// Local size and offset of a related factor, taken from the operand dim it is: the offset of its
  /// interval if it was exchanged, else that of its slice.
  void fill_related(const FlowNode& node, int factor, EmitCall& call) {
    for (size_t i = 0; i < node.in.size(); ++i) {
      for (size_t d = 0; d < node.space.in[i].size(); ++d) {
        if (node.space.in[i][d] != std::vector<int>{factor}) continue;
        const FlowValue& v = value(node.in[i]);
        call.local.push_back(call.in[i].sizes[d]);
        call.logical.push_back(node.space.factors[factor].size);
        call.offset.push_back(build_.offset(v.layout.dims[d], call.local.back()));
        for (const Interval& interval : v.intervals) {
          if (interval.dim == static_cast<int>(d)) call.offset.back() = interval.begin;
        }
        call.extent.push_back(factor_extent(node, call.call, factor));
        return;
      }
    }
    fail(ErrorKind::internal, "[{}] related factor '{}' is in no operand", node.op->name,
         node.space.factors[factor].name);
  }

  AffineExpr factor_extent(const FlowNode& node, const OpCall& call, int factor) {
    const auto find = [&](const std::vector<ValueType>& values,
                          const std::vector<std::vector<std::vector<int>>>& operands,
                          AffineExpr& result) {
      for (size_t i = 0; i < operands.size(); ++i) {
        for (size_t d = 0; d < operands[i].size(); ++d) {
          if (operands[i][d].size() != 1 || operands[i][d][0] != factor) continue;
          result = build_.extent(values[i].shape[static_cast<int>(d)]);
          return true;
        }
      }
      return false;
    };
    AffineExpr result;
    result.constant = node.space.factors[factor].size;
    if (find(call.out, node.space.out, result) || find(call.in, node.space.in, result))
      return result;
    if (!node.attrs.has("bounded")) return result;
    const auto& names =
        node.attrs.get<std::vector<std::string>>("dims");  // dim_size: the dim is in no operand
    for (size_t d = 0; d < names.size(); ++d) {
      if (names[d] != node.space.factors[factor].name ||
          !node.attrs.get<std::vector<int64_t>>("bounded")[d])
        continue;
      result = {};
      result.scalar = build_.scalar(names[d]);
    }
    return result;
  }

  static void emit_pointwise(EmitCall& call) {
    Step& step = call.step;
    step.kernel = KernelKind::pointwise;
    std::vector<int> factors;
    for (const auto& dim : call.space.out[0]) factors.insert(factors.end(), dim.begin(), dim.end());
    Instr instr;
    instr.code = call.call.op.code;
    instr.dtype = call.call.out[0].dtype;
    int* operands[] = {&instr.a, &instr.b, &instr.c};
    for (size_t i = 0; i < call.in.size(); ++i) {
      step.in.push_back(align(call, call.in[i], call.space.in[i], factors));
      step.pointwise.code.push_back(load_instr(static_cast<int>(i), call.in[i].dtype));
      *operands[i] = static_cast<int>(i);
    }
    step.pointwise.code.push_back(instr);
    step.pointwise.outputs = {static_cast<int>(call.in.size())};
    step.out = {align(call, call.out[0], call.space.out[0], factors)};
    if (call.call.op.emit) call.call.op.emit(call);
  }

  void add_slice(const FlowNode& node) {
    const int d = node.to;
    View slice = view(node.in[0]);
    for (int axis : node.axes) slice.sizes[d] /= ranks_of(axis);
    for (const auto& [axis, factor] : build_.offset(node.axes, slice.sizes[d]).axis_terms)
      slice.shift.axis_terms.emplace_back(axis, factor * slice.strides[d]);
    view(node.out[0]) = slice;
  }

  void add_tree_sum(const FlowNode& node) {
    Step step;
    step.kernel = KernelKind::tree_sum;
    step.combiner = node.combiner;
    step.origin = node.origin;
    step.spec = node.tree_sum;
    step.in = {view(node.in[0])};
    view(node.out[0]) = build_.result_view(node.out[0]);
    step.out = {view(node.out[0])};
    step.flops = step.in[0].elements();
    build_.add_step(std::move(step));
  }

  void add_mask(const FlowNode& node) {
    const FlowValue& v = value(node.out[0]);
    const View in = view(node.in[0]);
    view(node.out[0]) = build_.result_view(node.out[0]);
    Step step;
    step.kernel = KernelKind::pointwise;
    step.origin = node.origin;
    step.in = {in};
    step.out = {view(node.out[0])};
    step.pointwise.code.push_back(load_instr(0, v.dtype));
    const auto add = [&](int slot, AffineExpr expr) {
      Instr mask;
      mask.code = PointwiseOp::mask;
      mask.dtype = v.dtype;
      mask.a = static_cast<int>(step.pointwise.code.size()) - 1;
      mask.slot = slot;
      mask.expr = static_cast<int>(step.exprs.size());
      mask.imm = node.fill;
      step.pointwise.code.push_back(mask);
      step.exprs.push_back(std::move(expr));
    };
    for (int d : node.dims) {  // valid elements here: clamp(size - offset, 0, local)
      AffineExpr valid = build_.extent(v.shape[d]);
      for (const auto& [axis, factor] : build_.offset(v.layout.dims[d], in.sizes[d]).axis_terms)
        valid.axis_terms.emplace_back(axis, -factor);
      valid.lo = 0;
      valid.hi = in.sizes[d];
      add(d, valid);
    }
    if (node.kind == FlowKind::first_only) {
      AffineExpr first;
      first.constant = 1;
      for (int axis : node.axes) first.axis_terms.emplace_back(axis, -1);
      first.lo = 0;
      first.hi = 1;
      add(-1, first);
    }
    step.pointwise.outputs = {static_cast<int>(step.pointwise.code.size()) - 1};
    build_.add_step(std::move(step));
  }

  void add_collective(const FlowNode& node) {
    Step step;
    step.kind = StepKind::collective;
    step.collective = collective_of(node.kind);
    step.axes = node.axes;
    step.combiner = node.combiner;
    step.origin = node.origin;
    step.number = next_collective_++;
    step.in = {build_.contiguous(node.in[0])};
    if (node.kind == FlowKind::all_to_all && node.in.size() > 1)  // counts of rows
      step.in.push_back(build_.contiguous(node.in[1]));
    view(node.out[0]) = build_.result_view(node.out[0]);
    step.out = {view(node.out[0])};
    describe_collective(flow_, rule_layouts_, node, step);
    Step wait;
    wait.kind = StepKind::wait;
    wait.number = step.number;
    build_.add_step(std::move(step));
    build_.add_step(std::move(wait));
  }

  const Flow& flow_;
  const RuleLayouts& rule_layouts_;
  ProgramBuilder build_;
  LoopLocalizer loops_;
  std::map<std::string, int> inputs_;  ///< ports by name
  int next_collective_ = 0;
};

}  // namespace

Program localize(const Graph& graph, const Flow& flow, const RuleLayouts& rule_layouts) {
  return Localizer(graph, flow, rule_layouts).run();
}

}  // namespace tessera
