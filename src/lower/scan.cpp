// The scanned dim is taken as [slices, inner]: inner is scanned on each rank and summed up to one
// element; those of all slices are gathered, scanned, and each rank adds its own.
#include "lower/scan.h"

#include "base/fail.h"

namespace tessera {

extern const Op kReduceSum, k_add;

int split_scan(const IndexSpace& space, const std::vector<std::vector<int>>& splits) {
  for (size_t f = 0; f < splits.size(); ++f) {
    if (space.factors[f].role == Role::scan && !splits[f].empty()) return static_cast<int>(f);
  }
  return -1;
}

namespace {

class SplitScan {
 public:
  SplitScan(FlowBuilder& build, Resharder& resharder, const HomeLayouts& homes,
            const FlowNode& node, const OpCall& call, int factor)
      : build_(build), resharder_(resharder), node_(node), inner_(factor) {
    check(node.in.size() == 1 && node.op->scan_before != nullptr &&
              node.space.factors[factor].combiner == Combiner::sum,
          "[{}] cannot be scanned by slices", node.op->name);
    for (int axis : node.splits[factor]) slices_ *= homes.mesh().axes()[axis].size;
    axes_ = node.splits[factor];
    local_ = padded_factor(call, node.space, homes, factor) / slices_;
    const Shape& shape = call.in[0].shape;
    for (size_t d = 0; d < node.space.in[0].size(); ++d) {
      if (node.space.in[0][d] == std::vector<int>{factor}) dim_ = static_cast<int>(d);
    }
    rule_ = fmt::format("{}, slices of '{}' are scanned",
                        homes.rule_text(shape[dim_].name, axes_[0]), shape[dim_].name);
    std::vector<Dim> dims = shape.dims();
    dims[static_cast<size_t>(dim_)] = Dim(shape[dim_].name + "/slices", slices_);
    of_slices_ = Shape(dims);
  }

  int run(const TensorLayout& out) {
    const int operand = node_.in[0];
    const FlowValue in = build_.value(operand);
    const int scanned = add(node_.op, node_.attrs, {operand}, space(Role::scan, true, true),
                            {in.shape, in.dtype, out, in.name, -1});
    FlowValue total{of_slices_, in.dtype, in.layout, in.name + " by slices", -1};
    const int totals = add(&kReduceSum, {}, {operand}, space(Role::reduce, true, false), total);
    TensorLayout whole = in.layout;
    whole.dims[dim_].clear();
    const int gathered = move(totals, whole);
    total.layout = whole;
    total.layout.partial = out.partial;
    const int before = add(node_.op, node_.op->scan_before(node_.attrs), {gathered},
                           space(Role::scan, false, false), total);
    TensorLayout own = build_.value(before).layout;
    own.dims[dim_] = axes_;
    return add(&k_add, {}, {scanned, move(before, own)}, sum_space(),
               {in.shape, in.dtype, out, in.name, -1});
  }

 private:
  /// The node's space with the scanned dim as [slices, inner] where the operand or the result has
  /// both, else as [slices]; `role` is that of the last of them.
  IndexSpace space(Role role, bool inner_in, bool inner_out) const {
    IndexSpace s = node_.space;
    const int slices = static_cast<int>(s.factors.size());
    s.factors.push_back({s.factors[inner_].name, slices_, Role::map, Combiner::sum});
    s.factors[inner_].size = local_;
    if (inner_in) {
      s.factors[inner_].role = role;
      s.factors[slices].name += "/slices";
    } else {
      s.factors[slices].role = role;
      s.factors[inner_] = {s.factors[inner_].name + "/inner", 1, Role::map, Combiner::sum};
    }
    auto rewrite = [&](std::vector<std::vector<int>>& dims, bool both) {
      dims[dim_of(dims)] = both ? std::vector<int>{slices, inner_} : std::vector<int>{slices};
    };
    rewrite(s.in[0], inner_in);
    rewrite(s.out[0], inner_out);
    return s;
  }

  /// [slices, inner] + [slices]
  IndexSpace sum_space() const {
    IndexSpace s = space(Role::map, true, true);
    s.in.push_back(space(Role::map, true, false).out[0]);
    return s;
  }

  size_t dim_of(const std::vector<std::vector<int>>& dims) const {
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] == std::vector<int>{inner_}) return d;
    }
    fail(ErrorKind::internal, "[{}] a scanned dim is lost", node_.op->name);
  }

  int add(const Op* op, Attrs attrs, std::vector<int> in, IndexSpace space, FlowValue value) {
    FlowNode node;
    node.op = op;
    node.attrs = std::move(attrs);
    node.in = std::move(in);
    node.space = std::move(space);
    node.splits = node_.splits;
    node.splits[inner_].clear();
    // The totals are whole on every rank when they are scanned.
    const bool is_split = !build_.value(node.in[0]).layout.dims[dim_].empty();
    node.splits.push_back(is_split ? axes_ : std::vector<int>{});
    node.origin = node_.origin;
    const int result = build_.add_value(std::move(value));
    node.out = {result};
    build_.add_node(std::move(node));
    return result;
  }

  int move(int value, const TensorLayout& to) {
    Origin origin = node_.origin;
    origin.reason = rule_;
    return build_.move(value, to, origin, resharder_);
  }

  FlowBuilder& build_;
  Resharder& resharder_;
  const FlowNode& node_;
  int inner_, dim_ = -1;
  int64_t slices_ = 1, local_ = 1;
  std::vector<int> axes_;
  Shape of_slices_;
  std::string rule_;
};

}  // namespace

int add_split_scan(FlowBuilder& build, Resharder& resharder, const HomeLayouts& homes,
                   const FlowNode& node, const OpCall& call, int factor, const TensorLayout& out) {
  return SplitScan(build, resharder, homes, node, call, factor).run(out);
}

}  // namespace tessera
