// Walks the nodes of each function in order. For each node it
//   takes the operands in their present layouts,
//   chooses the factors along which the op is split (LayoutChooser),
//   moves the operands to where that split needs them and adds the op (FlowEmitter),
//   and moves the results to their rule layouts, unless they stay partial.
// A loop's iteration is walked once (LoopWalker). A composite without a kernel is replaced by its
// body, which is walked by the same rules in a frame of its own (CompositeExpander).
#include "lower/partition/partition.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/body.h"
#include "ir/needed.h"
#include "ir/source_ops.h"
#include "lower/layout/renumber.h"
#include "lower/partition/composite_expander.h"
#include "lower/partition/flow_emitter.h"
#include "lower/partition/frame.h"
#include "lower/partition/layout_chooser.h"
#include "lower/partition/loop_walker.h"
#include "lower/partition/strict_sums.h"

namespace tessera {

namespace {

/// True for a cast to a smaller dtype: its result is moved rather than its operand.
bool is_narrowing(const OpCall& call) {
  return call.op.pointwise && call.in.size() == 1 &&
         size_of(call.out[0].dtype) < size_of(call.in[0].dtype);
}

/// True if ranks would add up float16 values that each has rounded: their range is so small that a
/// part may overflow where the sum does not.
bool sums_float16(const OpCall& call, const IndexSpace& space, const Choice& choice) {
  if (call.out[0].dtype != DType::float16 || call.op.host != nullptr || call.attrs.has("float8"))
    return false;
  for (size_t f = 0; f < space.factors.size(); ++f) {
    const Factor& factor = space.factors[f];
    const bool sums = factor.combiner == Combiner::sum || factor.combiner == Combiner::prod;
    if (factor.role == Role::reduce && sums && !choice.splits[f].empty()) return true;
  }
  return false;
}

std::vector<ValueType> widened(std::vector<ValueType> types) {
  for (ValueType& type : types) {
    if (type.dtype == DType::float16) type.dtype = DType::float32;
  }
  return types;
}

class Partitioner {
 public:
  Partitioner(const Graph& graph, const RuleLayouts& rule_layouts,
              const std::set<const Op*>& kernels, const PartitionOptions& options)
      : graph_(graph),
        rule_layouts_(rule_layouts),
        reads_counts_(options.reads_counts),
        build_(rule_layouts),
        layouts_(rule_layouts, options, build_),
        emit_(graph, build_, layouts_),
        strict_(rule_layouts, options.strict_chunks, emit_),
        loops_(rule_layouts, emit_, layouts_, [this](Frame& frame) { walk(frame); }),
        composites_(rule_layouts, kernels, options, emit_, layouts_,
                    [this](Frame& frame) { walk(frame); }) {}

  void run(const FunctionSpec& spec) {
    emit_.start(spec.name, FunctionKind::user);
    Frame frame(graph_, roots_of(graph_, spec));
    walk(frame);
    emit_.set_recompute_group(0);
    for (const Tensor& t : spec.outputs) {
      TESSERA_REQUIRE(
          graph_.producer(t.id()).loop < 0,
          "function '{}' returns '{}', which is made by each iteration of a loop; return it "
          "from the iterations as a carry, stacked or summed ({})",
          spec.name, t.name(), graph_.producer(t.id()).at.to_string());
      emit_.function().outputs.emplace_back(t.name(), emit_.operand(frame, t.id(), Purpose::none));
    }
    for (const Update& u : updates_of(graph_, spec)) finish_update(frame, u.stored, u.value);
  }

  void run_init() {
    require_stored_layouts();
    emit_.start("init", FunctionKind::init);
    std::vector<int> roots;
    for (const Stored& s : graph_.stored()) roots.push_back(s.init);
    Frame frame(graph_, roots);
    walk(frame);
    for (const Stored& s : graph_.stored()) finish_update(frame, s.value, s.init);
  }

  Flow take() { return build_.take(); }

 private:
  /// First, so that two dims that claim one axis are told of the parameter and not of a node of its
  /// initializer.
  void require_stored_layouts() const {
    for (const Stored& s : graph_.stored()) {
      try {
        rule_layouts_.storage(graph_, s);
      } catch (const Contradiction& e) {
        throw Contradiction(
            fmt::format("{} ({})", e.what(), graph_.producer(s.value).at.to_string()));
      }
    }
  }

  void walk(Frame& frame) {
    for (size_t n = 0; n < frame.graph.nodes().size(); ++n) {
      const Node& node = frame.graph.nodes()[n];
      if (frame.needed[n] && node.loop == frame.loop && frame.env[node.out[0]] < 0)
        visit(frame, node);
    }
  }

  void visit(Frame& frame, const Node& node) {
    if (node.op == &kInput || node.op == &kStored) return add_source(frame, node);
    if (node.op == &kLoop) return loops_.add_loop(frame, node);
    const CallTypes types = call_types(frame.graph, node);
    const OpCall call{*node.op, types.in, types.out, node.attrs};
    emit_.set_recompute_group(frame.recompute_group_of(node));
    const Purpose purpose = frame.graph.value(node.out[0]).purpose;
    const bool narrows = is_narrowing(call);
    std::vector<int> in;
    for (int v : node.in) in.push_back(narrows ? frame.env[v] : emit_.operand(frame, v, purpose));
    if (node.op->counts_rows) return add_ragged(frame, node, in);
    if (!composites_.expand(frame, node, call, in)) compute(frame, node, call, std::move(in));
  }

  void add_source(Frame& frame, const Node& node) {
    const Value& v = frame.graph.value(node.out[0]);
    FlowNode flow;
    flow.origin = frame.origin(node);
    FlowValue value{v.shape, v.dtype, layouts_.rule_layout(frame, node.out[0]), v.name, -1};
    flow.kind = FlowKind::input;
    if (const Stored* record = frame.graph.find_stored(node.out[0])) {
      flow.kind = FlowKind::stored;
      flow.stored = static_cast<int>(record - graph_.stored().data());
      value.layout = rule_layouts_.storage(graph_, *record);
    }
    flow.out = {emit_.add_value(std::move(value))};
    frame.env[node.out[0]] = flow.out[0];
    emit_.add_node(std::move(flow));
  }

  /// The rows are those of the operand. What is new is that they are counted, for the next move.
  void add_ragged(Frame& frame, const Node& node, const std::vector<int>& in) {
    const Origin from = frame.origin(node);
    if (reads_counts_)
      emit_.note_counts(
          in[0], {in[1], node.attrs.get<std::string>("dim"), node.attrs.get<double>("used")});
    frame.env[node.out[0]] =
        emit_.settle(frame, node.out[0], in[0], layouts_.rule_layout(frame, node.out[0]), from);
  }

  void compute(Frame& frame, const Node& node, const OpCall& call, std::vector<int> in) {
    const Origin from = frame.origin(node);
    const IndexSpace& space = layouts_.space(call);
    if (space.same_order && !nests(space)) in[0] = emit_.reduced(in[0], from);
    std::vector<TensorLayout> layouts, result_layouts;
    for (int v : in) layouts.push_back(emit_.value(v).layout);
    for (int v : node.out) result_layouts.push_back(layouts_.result_layout(frame, node, v));
    const Choice& choice = layouts_.choose(frame, node, call, layouts, result_layouts);
    if (space.same_order &&
        better_renumbered(call, space, layouts[0], result_layouts[0], choice, rule_layouts_)) {
      frame.env[node.out[0]] = emit_.renumber(
          in[0], {call.out[0].shape, call.out[0].dtype, result_layouts[0], from.name, -1}, from);
      return;
    }
    const bool wide = sums_float16(call, space, choice);
    for (size_t i = 0; i < in.size(); ++i) {
      const bool is_interval = !choice.in[i].intervals.empty();  // the whole is cast before
      const bool casts = wide && call.in[i].dtype == DType::float16;
      if (casts && is_interval) in[i] = emit_.cast(in[i], DType::float32, frame, node);
      in[i] = emit_.move(in[i], choice.in[i], from);
      if (casts && !is_interval) in[i] = emit_.cast(in[i], DType::float32, frame, node);
    }
    emit_.count_once(frame, node, choice, in);
    FlowNode flow;
    flow.op = node.op;
    flow.attrs = node.attrs;
    flow.in = in;
    flow.splits = choice.splits;
    flow.space = space;
    flow.origin = from;
    if (strict_.is_on()) {
      flow.order = strict_.order_of(call, space, choice, from);
      if (flow.order.is_split()) {
        const int sum =
            strict_.add(std::move(flow), call, choice,
                        frame.prefix + frame.graph.value(node.out[0]).name, result_layouts[0]);
        frame.env[node.out[0]] = emit_.move(sum, result_layouts[0], from);
        return;
      }
    }
    if (wide) return add_wide(frame, node, call, choice, std::move(flow), result_layouts);
    const std::vector<int> out = emit_.add_op(std::move(flow), call, choice, frame, node);
    for (size_t i = 0; i < node.out.size(); ++i)
      frame.env[node.out[i]] = emit_.settle(frame, node.out[i], out[i], result_layouts[i], from);
  }

  /// Adds an op whose float16 sums are kept and sent in float32, and rounded when they are
  /// complete.
  void add_wide(Frame& frame, const Node& node, const OpCall& call, const Choice& choice,
                FlowNode flow, const std::vector<TensorLayout>& result_layouts) {
    const Origin from = flow.origin;
    const std::vector<ValueType> in = widened(call.in), results = widened(call.out);
    if (flow.attrs.has("dtype")) flow.attrs.set("dtype", static_cast<int64_t>(results[0].dtype));
    const OpCall wide{call.op, in, results, flow.attrs};
    const std::vector<int> out = emit_.add_op(flow, wide, choice, frame, node);
    for (size_t i = 0; i < node.out.size(); ++i) {
      const int v = node.out[i];
      const TensorLayout settled = layouts_.settled_layout(frame, v, out[i], result_layouts[i]);
      if (!settled.partial.empty() && is_only_widened(frame, v)) {
        frame.env[v] = emit_.move(out[i], settled, from);
        continue;
      }
      const int whole = emit_.move(out[i], result_layouts[i], from);
      frame.env[v] = call.out[i].dtype == DType::float16
                         ? emit_.cast(whole, DType::float16, frame, node)
                         : whole;
    }
  }

  /// True if all that becomes of `value` is a tensor of a wider dtype: it need not be rounded
  /// first.
  static bool is_only_widened(const Frame& frame, int value) {
    const auto widens = [&](int n) { return frame.graph.nodes()[n].op->converts; };
    return !frame.escapes[value] &&
           std::all_of(frame.uses[value].begin(), frame.uses[value].end(), widens);
  }

  /// Moves the new value of a stored tensor to its storage layout.
  void finish_update(const Frame& frame, int stored, int value) {
    const Stored& record = *graph_.find_stored(stored);
    const int moved = emit_.move(frame.env[value], rule_layouts_.storage(graph_, record),
                                 frame.origin(graph_.producer(value)));
    emit_.function().updates.emplace_back(static_cast<int>(&record - graph_.stored().data()),
                                          moved);
  }

  const Graph& graph_;
  const RuleLayouts& rule_layouts_;
  const bool reads_counts_;
  FlowBuilder build_;
  LayoutChooser layouts_;
  FlowEmitter emit_;
  StrictSums strict_;
  LoopWalker loops_;
  CompositeExpander composites_;
};

}  // namespace

Flow partition(const Graph& graph, const RuleLayouts& rule_layouts,
               const std::vector<FunctionSpec>& functions, const std::set<const Op*>& kernels,
               const PartitionOptions& options) {
  Partitioner partitioner(graph, rule_layouts, kernels, options);
  if (options.init && !graph.stored().empty()) partitioner.run_init();
  for (const FunctionSpec& spec : functions) partitioner.run(spec);
  return partitioner.take();
}

}  // namespace tessera
