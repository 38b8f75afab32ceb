// One walk per function. The `dirty` bits of a value say in which dims its padding may be nonzero.
// An op that is jointly linear in all its operands keeps zero padding zero; any other op may spoil
// it.
#include "lower/flow/insert_padding_masks.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/fail.h"
#include "base/identity.h"
#include "lower/layout/choose.h"

namespace tessera {

namespace {

/// What the padding must hold in a dim that `factor` reduces: the identity. For a sort, which needs
/// the dim whole: the value that is ordered after all elements.
double padding_for(const Factor& factor, DType dtype) {
  const bool is_order = factor.role == Role::whole &&
                        (factor.combiner == Combiner::max || factor.combiner == Combiner::min);
  return is_order ? last_in_order(dtype, factor.combiner == Combiner::min)
                  : identity_of(factor.combiner, dtype);
}

class MaskPass {
 public:
  MaskPass(Flow& flow, const RuleLayouts& rule_layouts)
      : flow_(flow), rule_layouts_(rule_layouts) {}

  void run(FlowFunction& function) {
    nodes_.clear();
    known_.clear();
    run(function.nodes);
    for (auto& [stored, value] : function.updates) {
      const uint64_t dirty = flow_.values[value].layout.dirty;
      if (dirty)
        value = mask(value, dirty, 0,
                     {flow_.values[value].name, "", "stored tensors have zero padding"});
    }
    function.nodes = std::move(nodes_);
  }

 private:
  void run(std::vector<FlowNode>& nodes) {
    for (FlowNode& node : nodes) {
      if (node.kind == FlowKind::op) mask_operands(node);
      if (node.loop) run_iteration(*node.loop);
      set_dirty(node);
      push(std::move(node));
    }
  }

  /// The padding of carries may hold anything. A slice is dirty in the dims where the whole tensor
  /// is.
  void run_iteration(FlowLoop& loop) {
    for (const FlowLoop::Carry& carry : loop.carries) {
      FlowValue& value = flow_.values[carry.value];
      value.layout.dirty = padded_dims(value.shape);
    }
    for (const FlowLoop::Slice& slice : loop.slices) {
      const uint64_t whole = flow_.values[slice.whole].layout.dirty;
      const uint64_t below = whole & ((uint64_t{1} << slice.dim) - 1);
      flow_.values[slice.value].layout.dirty =
          below | ((whole ^ below) >> (slice.dim + 1) << slice.dim);
    }
    auto outside = std::exchange(nodes_, {});
    const auto known = known_;
    run(loop.body);
    loop.body = std::exchange(nodes_, std::move(outside));
    known_ = known;
  }

  void push(FlowNode node) {
    for (int v : node.out) flow_.values[v].node = static_cast<int>(nodes_.size());
    nodes_.push_back(std::move(node));
  }

  int mask(int value, uint64_t dims, double fill, const Origin& origin) {
    auto [it, is_new] =
        known_.emplace(std::make_tuple(value, dims, std::bit_cast<uint64_t>(fill)), -1);
    if (!is_new) return it->second;
    FlowNode node;
    node.kind = FlowKind::mask;
    node.in = {value};
    node.origin = origin;
    node.fill = fill;
    FlowValue masked = flow_.values[value];
    for (int d = 0; d < masked.shape.rank(); ++d) {
      if (dims >> d & 1) node.dims.push_back(d);
    }
    masked.layout.dirty &= ~dims;
    if (fill != 0) masked.layout.dirty |= dims;  // clean means zero
    flow_.values.push_back(std::move(masked));
    node.out = {it->second = static_cast<int>(flow_.values.size()) - 1};
    push(std::move(node));
    return it->second;
  }

  static bool is_tied(const IndexSpace& space, int f) {
    return std::any_of(space.relations.begin(), space.relations.end(),
                       [&](const Relation& r) { return r.in == f || r.out == f || r.window == f; });
  }

  /// The factor of a dim whose elements the op reduces or orders, or null. Factors of an index
  /// relation do not count: such ops know where each slice begins and ends and skip padding
  /// themselves.
  static const Factor* reduced_factor(const IndexSpace& space, const std::vector<int>& dim) {
    for (int f : dim) {
      if (is_tied(space, f)) continue;
      const Role role = space.factors[f].role;
      if (role == Role::reduce || role == Role::whole) return &space.factors[f];
    }
    return nullptr;
  }

  /// Masks the operand dims whose padding the op would read.
  void mask_operands(FlowNode& node) {
    for (size_t i = 0; i < node.in.size(); ++i) {
      const FlowValue value = flow_.values[node.in[i]];
      std::map<uint64_t, uint64_t> fills;  // bits of the fill value (may be NaN) -> dims
      for (int d = 0; d < value.shape.rank(); ++d) {
        if (!rule_layouts_.has_padding(value.shape[d])) continue;
        const bool dirty = value.layout.dirty >> d & 1;
        if (node.op->zero_padding >> i & 1) {
          if (dirty) fills[std::bit_cast<uint64_t>(0.0)] |= uint64_t{1} << d;
          continue;
        }
        if (node.space.in.empty()) continue;
        const Factor* factor = reduced_factor(node.space, node.space.in[i][d]);
        if (factor == nullptr) continue;
        const double fill = padding_for(*factor, value.dtype);
        if (dirty || fill != 0) fills[std::bit_cast<uint64_t>(fill)] |= uint64_t{1} << d;
      }
      for (const auto& [fill, dims] : fills) {
        node.in[i] =
            mask(node.in[i], dims, std::bit_cast<double>(fill),
                 {value.name, node.origin.source, fmt::format("operand of {}", node.op->name)});
      }
    }
  }

  uint64_t padded_dims(const Shape& shape) const {
    uint64_t bits = 0;
    for (int d = 0; d < shape.rank(); ++d)
      bits |= rule_layouts_.has_padding(shape[d]) ? uint64_t{1} << d : 0;
    return bits;
  }

  void set_dirty(FlowNode& node) {
    for (size_t o = 0; o < node.out.size(); ++o) {
      FlowValue& value = flow_.values[node.out[o]];
      value.layout.dirty = 0;
      if (node.kind == FlowKind::input || node.kind == FlowKind::stored) continue;
      if (node.kind == FlowKind::loop) {
        value.layout.dirty = padded_dims(value.shape);
      } else if (node.kind == FlowKind::exchange &&
                 !(value.shape == flow_.values[node.in[0]].shape)) {
        value.layout.dirty = padded_dims(value.shape);
      } else if (node.kind == FlowKind::tree_sum) {
        value.layout.dirty = flow_.values[node.in[0]].layout.dirty >> 1;
      } else if (node.kind != FlowKind::op) {
        value.layout.dirty = flow_.values[node.in[0]].layout.dirty;
      } else {
        const int in_front = node.order.is_split() ? 1 : 0;
        value.layout.dirty = padded_dims(value.shape) & ~(clean_dims(node, o) << in_front);
      }
    }
  }

  /// The dims of a result whose padding is zero, because the op is linear in all its operands and
  /// their padding is zero. If only the result's dim is bounded, some of its padding is elements of
  /// the operand.
  uint64_t clean_dims(const FlowNode& node, size_t out) const {
    const Shape& shape = flow_.values[node.out[out]].shape;
    const uint32_t all = (1u << node.in.size()) - 1;
    if (node.in.empty() || node.space.out.empty() || linear_in(*node.op, all) == 0) return 0;
    uint64_t clean = 0;
    for (size_t d = 0; d < node.space.out[out].size(); ++d) {
      const auto& factors = node.space.out[out][d];
      // A running sum goes on into the padding.
      bool ok = factors.size() == 1 && (node.space.factors[factors[0]].role != Role::whole ||
                                        is_tied(node.space, factors[0]));
      for (size_t i = 0; ok && i < node.in.size(); ++i) {
        bool has = false;
        for (size_t e = 0; e < node.space.in[i].size(); ++e) {
          if (node.space.in[i][e] != factors) continue;
          const FlowValue& operand = flow_.values[node.in[i]];
          const bool becomes_bounded = shape[static_cast<int>(d)].is_bounded &&
                                       !operand.shape[static_cast<int>(e)].is_bounded;
          has = !becomes_bounded && !(operand.layout.dirty >> e & 1);
        }
        ok = has;
      }
      if (ok) clean |= uint64_t{1} << d;
    }
    return clean;
  }

  Flow& flow_;
  const RuleLayouts& rule_layouts_;
  std::vector<FlowNode> nodes_;
  std::map<std::tuple<int, uint64_t, uint64_t>, int> known_;
};

}  // namespace

void insert_padding_masks(Flow& flow, const RuleLayouts& rule_layouts) {
  MaskPass pass(flow, rule_layouts);
  for (FlowFunction& function : flow.functions) pass.run(function);
}

}  // namespace tessera
