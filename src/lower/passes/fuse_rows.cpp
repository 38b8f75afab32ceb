// A reduction along a dense dim joins pointwise steps as an instruction with one result per row. A
// step with one element per row is widened to the rows' elements: its operands and results get
// stride 0 along the row. Softmax, the norms and their gradients become one step each.
#include "lower/passes/fuse_rows.h"

#include <algorithm>

namespace tessera {

namespace {

/// A block of threads works on a long row. Fewer rows leave a GPU idle; "reduce" divides them.
constexpr int64_t kLongRow = 4096, kFewestLongRows = 64;

bool may_walk(const View& all, size_t dim, const FuseLimits& limits) {
  const int64_t row = all.sizes[dim];
  return row <= limits.longest_row && (row <= kLongRow || all.elements() / row >= kFewestLongRows);
}

bool is_combined(Combiner combiner) {
  return combiner == Combiner::sum || combiner == Combiner::prod || combiner == Combiner::max ||
         combiner == Combiner::min;
}

PointwiseOp row_code(Combiner combiner) {
  if (combiner == Combiner::sum) return PointwiseOp::row_sum;
  if (combiner == Combiner::prod) return PointwiseOp::row_prod;
  return combiner == Combiner::max ? PointwiseOp::row_max : PointwiseOp::row_min;
}

/// True if every operand and result is dense along `dim`, or has stride 0 there.
bool walks_rows(const Step& step, size_t dim) {
  auto dense = [dim](const View& v) { return v.strides[dim] == 0 || v.strides[dim] == 1; };
  return std::all_of(step.in.begin(), step.in.end(), dense) &&
         std::all_of(step.out.begin(), step.out.end(), dense);
}

}  // namespace

std::optional<Step> row_step(const Step& step, const FuseLimits& limits) {
  if (step.kind != StepKind::compute || step.kernel != KernelKind::reduce) return {};
  const View &in = step.in[0], &out = step.out[0];
  if (!is_floating(in.dtype) || !is_combined(step.combiner)) return {};
  int dim = -1;
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (in.sizes[d] == out.sizes[d]) continue;
    if (dim >= 0) return {};
    dim = static_cast<int>(d);
  }
  if (dim < 0) return {};
  const size_t d = static_cast<size_t>(dim);
  if (in.strides[d] != 1 || in.sizes[d] < 2 || !may_walk(in, d, limits)) return {};
  Step result = step;
  result.kernel = KernelKind::pointwise;
  result.combiner = Combiner::sum;
  result.out[0].sizes[d] = in.sizes[d];
  result.out[0].strides[d] = 0;
  Instr load, reduce;
  load.code = PointwiseOp::load;
  load.dtype = reduce.dtype = in.dtype;
  load.slot = 0;
  reduce.code = row_code(step.combiner);
  reduce.a = 0;
  reduce.slot = dim;
  result.pointwise = {{load, reduce}, {1}};
  return result;
}

std::optional<Step> along_row(const Step& step, const Step& rows) {
  const int dim = row_dim(rows.pointwise);
  if (dim < 0 || row_dim(step.pointwise) >= 0) return {};
  const size_t d = static_cast<size_t>(dim);
  const int64_t n = rows.out[0].sizes[d];
  std::vector<int64_t> kept = rows.out[0].sizes;
  kept.erase(kept.begin() + dim);
  if (step.out[0].sizes != kept) return {};
  Step result = step;
  for (Instr& instr : result.pointwise.code) {
    if (instr.code == PointwiseOp::random) return {};
    const bool by_dim = instr.code == PointwiseOp::index || instr.code == PointwiseOp::mask;
    if (by_dim && instr.slot >= dim) ++instr.slot;
  }
  auto widen = [&](View& v) {
    v.sizes.insert(v.sizes.begin() + dim, n);
    v.strides.insert(v.strides.begin() + dim, 0);
  };
  for (View& v : result.in) widen(v);
  for (View& v : result.out) widen(v);
  return result;
}

bool rows_agree(const Step& first, const Step& second, const FuseLimits& limits) {
  const int x = row_dim(first.pointwise), y = row_dim(second.pointwise);
  if (x < 0 && y < 0) return true;
  if (x >= 0 && y >= 0 && x != y) return false;
  const size_t dim = static_cast<size_t>(std::max(x, y));
  return may_walk(first.out[0], dim, limits) && walks_rows(first, dim) && walks_rows(second, dim);
}

}  // namespace tessera
