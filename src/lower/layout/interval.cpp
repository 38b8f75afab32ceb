// Solves the relation in = stride * out + dilation * window - lo for the interval of one factor.
//
// For `in`: slices [o, o + n) of out and [k, k + m) of the window need the elements from
// stride * o + dilation * k - lo to stride * (o + n - 1) + dilation * (k + m - 1) - lo. With a
// stride below 0 the last element of out needs the first one of them.
//
// For `out`: slices [i, i + n) of in and [k, k + m) of the window need every element of out whose
// window meets them, from ceil((i + lo - dilation * (k + m - 1)) / stride) to
// floor((i + n - 1 + lo - dilation * k) / stride). Their number depends on i - dilation * k modulo
// the stride; the interval has the largest.
#include "lower/layout/interval.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/fail.h"
#include "lower/layout/choose.h"

namespace tessera {

AffineExpr slice_begin(const Mesh& mesh, const std::vector<int>& axes, int64_t local) {
  AffineExpr expr;
  int64_t factor = local;
  for (size_t k = axes.size(); k-- > 0; factor *= mesh.axes()[axes[k]].size) {
    expr.axis_terms.insert(expr.axis_terms.begin(), {axes[k], factor});
  }
  return expr;
}

Slicing slicing_of(const RuleLayouts& rule_layouts, const Shape& shape, const TensorLayout& layout,
                   const std::vector<Interval>& intervals) {
  Slicing slicing{{}, layout.dims, intervals};
  for (const Dim& d : shape) slicing.sizes.push_back(rule_layouts.padded(d));
  return slicing;
}

Numbering numbering_of(const RuleLayouts& rule_layouts, const Shape& shape,
                       const TensorLayout& layout, int turns) {
  Numbering numbering{slicing_of(rule_layouts, shape, layout), {}, turns};
  for (const Dim& d : shape) numbering.extents.push_back(d.size);
  return numbering;
}

std::vector<int> sizes_of_axes(const Mesh& mesh) {
  std::vector<int> sizes;
  for (const MeshAxis& axis : mesh.axes()) sizes.push_back(axis.size);
  return sizes;
}

std::string describe(const std::vector<Interval>& intervals, const Shape& shape, const Mesh& mesh) {
  std::string text;
  for (const Interval& i : intervals) {
    std::string begin;
    for (const auto& [axis, factor] : i.begin.axis_terms)
      begin += fmt::format("{}*{}", factor, mesh.axes()[axis].name) + "+";
    begin += fmt::format("{}", i.begin.constant);
    if (i.begin.divisor != 1) begin = fmt::format("({})/{}", begin, i.begin.divisor);
    text += fmt::format("{}elements [{}, +{}) of '{}'", text.empty() ? "" : ", ", begin, i.size,
                        shape[i.dim].name);
  }
  return text;
}

namespace {

/// A rank's slice of a factor: elements [begin, begin + size).
struct Range {
  AffineExpr begin;
  int64_t size = 1;
  bool split = false;
};

void add(AffineExpr& sum, const AffineExpr& term, int64_t factor) {
  sum.constant += factor * term.constant;
  for (const auto& [axis, f] : term.axis_terms) sum.axis_terms.emplace_back(axis, factor * f);
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

class Solver {
 public:
  Solver(const OpCall& call, const IndexSpace& space, const std::vector<std::vector<int>>& splits,
         const RuleLayouts& rule_layouts)
      : call_(call), space_(space), splits_(splits), rule_layouts_(rule_layouts) {}

  /// Computes the interval of the related factor that a rank needs; false if it needs all of it.
  bool solve(int factor, Interval& interval) const {
    for (const Relation& r : space_.relations) {
      if (r.in != factor && r.out != factor) continue;
      const bool for_in = r.in == factor;
      const Range other = range(for_in ? r.out : r.in), window = range(r.window);
      if (!other.split && !window.split) return false;
      interval.extent = space_.factors[factor].size;
      interval.wraps = r.wraps;
      for_in ? solve_in(r, other, window, interval) : solve_out(r, other, window, interval);
      return !(interval.wraps && interval.size >= interval.extent);
    }
    fail(ErrorKind::internal, "[{}] no relation has the related factor '{}'", call_.op.name,
         space_.factors[factor].name);
  }

 private:
  Range range(int factor) const {
    Range range;
    if (factor < 0) return range;
    range.size = padded_factor(call_, space_, rule_layouts_, factor);
    for (int axis : splits_[factor]) range.size /= rule_layouts_.mesh().axes()[axis].size;
    range.begin = slice_begin(rule_layouts_.mesh(), splits_[factor], range.size);
    range.split = !splits_[factor].empty();
    return range;
  }

  static void solve_in(const Relation& r, const Range& out, const Range& window,
                       Interval& interval) {
    interval.begin.constant = -r.lo;
    add(interval.begin, out.begin, r.stride);
    add(interval.begin, window.begin, r.dilation);
    if (r.stride < 0) interval.begin.constant += r.stride * (out.size - 1);
    interval.size = std::abs(r.stride) * (out.size - 1) + r.dilation * (window.size - 1) + 1;
  }

  static void solve_out(const Relation& r, const Range& in, const Range& window,
                        Interval& interval) {
    const int64_t reach = r.dilation * (window.size - 1);
    interval.begin.constant = r.lo - reach + r.stride - 1;
    add(interval.begin, in.begin, 1);
    add(interval.begin, window.begin, -r.dilation);
    interval.begin.divisor = r.stride;
    int64_t step = r.stride;  // between the remainders that occur
    for (const auto& [axis, factor] : interval.begin.axis_terms) step = std::gcd(step, factor);
    interval.size = 1;
    for (int64_t i = 0; i < r.stride; i += step) {
      const int64_t first = floor_div(i + r.lo - reach + r.stride - 1, r.stride);
      const int64_t last = floor_div(i + in.size - 1 + r.lo, r.stride);
      interval.size = std::max(interval.size, last - first + 1);
    }
  }

  const OpCall& call_;
  const IndexSpace& space_;
  const std::vector<std::vector<int>>& splits_;
  const RuleLayouts& rule_layouts_;
};

/// True if every rank's slice of the dim, split over `axes`, contains its interval.
bool holds(const RuleLayouts& rule_layouts, const Dim& dim, const std::vector<int>& axes,
           const Interval& interval) {
  const std::vector<int> sizes = sizes_of_axes(rule_layouts.mesh());
  std::vector<int> used = axes;
  for (const auto& [axis, factor] : interval.begin.axis_terms) used.push_back(axis);
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  const Slicing own{{rule_layouts.padded(dim)}, {axes}, {}};
  Slicing needed{{rule_layouts.padded(dim)}, {{}}, {interval}};
  needed.intervals[0].dim = 0;
  std::vector<int> at(sizes.size(), 0);
  while (true) {
    const Box box = pieces_of(own, sizes, at).at(0).box;
    for (const Piece& piece : pieces_of(needed, sizes, at)) {
      if (piece.box.elements() != intersect(piece.box, box).elements()) return false;
    }
    size_t k = used.size();
    while (k > 0 && ++at[used[k - 1]] == sizes[used[k - 1]]) at[used[--k]] = 0;
    if (k == 0) return true;
  }
}

bool disjoint(const TensorLayout& layout) {
  std::vector<int> seen = layout.partial;
  for (const auto& axes : layout.dims) {
    for (int axis : axes) {
      if (std::find(seen.begin(), seen.end(), axis) != seen.end()) return false;
      seen.push_back(axis);
    }
  }
  return true;
}

}  // namespace

OperandPlacement place_operand(const OpCall& call, const IndexSpace& space, int operand,
                               const TensorLayout& now, const TensorLayout& target,
                               const std::vector<std::vector<int>>& splits,
                               const RuleLayouts& rule_layouts, Resharder& resharder) {
  const ValueType& type = call.in[operand];
  auto way_to = [&](const TensorLayout& layout) -> OperandPlacement {
    const Path& path = resharder.path(type.shape, type.dtype, now, layout);
    return {layout, {}, path.bytes, path.latency};
  };
  OperandPlacement best = way_to(target);
  TensorLayout kept = target;
  std::vector<Interval> intervals;
  bool has_all = true;
  const Solver solver(call, space, splits, rule_layouts);
  const auto& dims = space.in[operand];
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].size() != 1 || space.factors[dims[d][0]].role != Role::related) continue;
    Interval interval;
    interval.dim = static_cast<int>(d);
    kept.dims[d] = now.dims[d];
    if (!solver.solve(dims[d][0], interval)) {
      has_all = has_all && now.dims[d].empty();
      continue;
    }
    has_all = has_all && holds(rule_layouts, type.shape[interval.dim], now.dims[d], interval);
    intervals.push_back(std::move(interval));
  }
  if (intervals.empty()) return best;
  if (has_all && disjoint(kept)) {
    const OperandPlacement left = way_to(kept);
    if (left.bytes <= best.bytes) best = left;
  }
  const int64_t bytes =
      kMoveBytes + mean_received(slicing_of(rule_layouts, type.shape, now),
                                 slicing_of(rule_layouts, type.shape, target, intervals),
                                 sizes_of_axes(rule_layouts.mesh()), size_of(type.dtype));
  if (bytes < best.bytes) best = {target, std::move(intervals), bytes, kMoveBytes};
  return best;
}

}  // namespace tessera
