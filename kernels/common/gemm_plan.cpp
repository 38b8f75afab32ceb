// Dims of one kind that both of their operands walk as one are merged, in any order. Of the merged
// dims one row, one column and one contracted dim form the matmul; the others are loops
// around it. Operands whose strides BLAS cannot take are packed: copied densely, which also merges
// all their dims. Every way to pack and every choice of dims is priced with a simple model of time;
// the cheapest wins.
#include "kernels/common/gemm_plan.h"

#include <algorithm>

namespace tessera::kernels {
namespace {

/// Merges pairs of dims that all operands walk as one, until there are none.
void merge_any(Nest& nest) {
  for (bool changed = true; changed;) {
    changed = false;
    for (int outer = 0; outer < nest.rank() && !changed; ++outer) {
      for (int inner = 0; inner < nest.rank() && !changed; ++inner) {
        if (outer == inner) continue;
        changed = std::all_of(nest.strides.begin(), nest.strides.end(), [&](const auto& s) {
          return s[outer] == s[inner] * nest.sizes[inner];
        });
        if (!changed) continue;
        nest.sizes[inner] *= nest.sizes[outer];
        nest.remove_dim(outer);
      }
    }
  }
}

bool has(Operand operand, int64_t kind) {
  if (kind == kBatch) return true;
  if (operand == kA) return kind != kColumn;
  return operand == kB ? kind != kRow : kind != kSum;
}

struct Dims {
  Nest of[4];  ///< by kind; operands A, B, C
};

/// Replaces the strides of a packed operand by those of its dense copy: rows before columns;
/// contracted dims last in A and first in B.
void pack(Dims& dims, Operand operand, GemmPlan& plan) {
  static constexpr int64_t kOrder[3][2] = {{kRow, kSum}, {kSum, kColumn}, {kRow, kColumn}};
  plan.packed[operand] = true;
  int64_t stride = 1;
  for (int i = 1; i >= 0; --i) {
    Nest& nest = dims.of[kOrder[operand][i]];
    for (int d = nest.rank() - 1; d >= 0; --d) {
      plan.pack_sizes[operand].push_back(nest.sizes[d]);
      plan.pack_from[operand].push_back(nest.strides[operand][d]);
      plan.pack_to[operand].push_back(stride);
      nest.strides[operand][d] = stride;
      stride *= nest.sizes[d];
    }
  }
}

int64_t packed_elements(const Dims& dims, Operand operand) {
  int64_t n = 1;
  for (int64_t kind : {kRow, kColumn, kSum}) {
    if (has(operand, kind)) n *= dims.of[kind].elements();
  }
  return n;
}

/// True if BLAS accepts a matrix of these sizes and strides.
bool fits(int64_t rows, int64_t columns, int64_t row, int64_t column) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (rows > kMax || columns > kMax || row > kMax || column > kMax || row < 0 || column < 0)
    return false;
  return (column == 1 && (rows == 1 || row >= columns)) ||
         (row == 1 && (columns == 1 || column >= rows)) || (rows == 1 && columns == 1) ||
         (columns == 1 && row >= 1) || (rows == 1 && column >= 1);
}

bool fits(const Gemm& g) {
  return fits(g.m, g.k, g.a_row, g.a_column) && fits(g.k, g.n, g.b_row, g.b_column) &&
         fits(g.m, g.n, g.c_row, g.c_column);
}

struct Choice {
  int row = -1, column = -1, sum = -1;
};

Gemm gemm_of(const Dims& dims, const Choice& choice) {
  Gemm g;
  auto take = [&](int64_t kind, int d, int64_t& size, Operand x, int64_t& sx, Operand y,
                  int64_t& sy) {
    size = d < 0 ? 1 : dims.of[kind].sizes[d];
    sx = d < 0 ? 1 : dims.of[kind].strides[x][d];
    sy = d < 0 ? 1 : dims.of[kind].strides[y][d];
  };
  take(kRow, choice.row, g.m, kA, g.a_row, kC, g.c_row);
  take(kColumn, choice.column, g.n, kB, g.b_column, kC, g.c_column);
  take(kSum, choice.sum, g.k, kA, g.a_column, kB, g.b_row);
  return g;
}

/// Seconds of all products of one batch index: calls, plus arithmetic at a rate that is lower for
/// thin matrices.
double price(const Dims& dims, const Gemm& g) {
  const double total =
      double(dims.of[kRow].elements()) * dims.of[kColumn].elements() * dims.of[kSum].elements();
  const double calls = total / (double(g.m) * g.n * g.k);
  const double thin = (1.0 + 6.0 / g.m) * (1.0 + 6.0 / g.n) * (1.0 + 12.0 / g.k);
  return calls * 1.5e-7 + total * 2.0 / 1e11 * thin;
}

/// Finds the best choice of dims and returns its price; infinity if there is none.
double choose(const Dims& dims, Choice& best) {
  double least = std::numeric_limits<double>::infinity();
  auto candidates = [&](int64_t kind) { return std::max(1, dims.of[kind].rank()); };
  for (int r = 0; r < candidates(kRow); ++r) {
    for (int c = 0; c < candidates(kColumn); ++c) {
      for (int s = 0; s < candidates(kSum); ++s) {
        const Choice choice{dims.of[kRow].rank() > 0 ? r : -1, dims.of[kColumn].rank() > 0 ? c : -1,
                            dims.of[kSum].rank() > 0 ? s : -1};
        const Gemm g = gemm_of(dims, choice);
        if (!fits(g)) continue;
        const double p = price(dims, g);
        if (p < least) {
          least = p;
          best = choice;
        }
      }
    }
  }
  return least;
}

}  // namespace

GemmPlan plan_gemm(const std::vector<matmul_kinds::DimKind>& kinds,
                   const std::vector<int64_t> (&sizes)[3], const std::vector<int64_t> (&strides)[3],
                   DType dtype, bool by_bfloat) {
  Dims dims;
  for (Nest& nest : dims.of) nest.strides.resize(3);
  for (size_t d = 0; d < kinds.size(); ++d) {
    const int64_t kind = kinds[d];
    int64_t size = 1;
    std::vector<int64_t> s(3, 0);
    for (Operand x : {kA, kB, kC}) {
      if (!has(x, kind)) continue;
      const bool first = size == 1;
      TESSERA_CHECK(first || sizes[x][d] == size || sizes[x][d] == 1, "matmul: dim {} is {} and {}",
                    d, size, sizes[x][d]);
      size = sizes[x][d] == 1 && !first ? size : sizes[x][d];
      s[x] = strides[x][d];
    }
    if (size != 1) dims.of[kind].add_dim(size, s);
  }
  GemmPlan plan;
  plan.compute = is_narrow(dtype) ? DType::float32 : dtype;
  plan.batch = dims.of[kBatch];
  plan.batch.order_by(kC);
  plan.batch.merge();
  const double matrix =
      double(dims.of[kRow].elements()) * dims.of[kColumn].elements() * dims.of[kSum].elements();
  const bool vector = dims.of[kRow].elements() == 1 || dims.of[kColumn].elements() == 1;
  const bool thin =
      dims.of[kSum].elements() <= 1 || matrix < (vector ? 4096 : 256) ||
      (vector && ((is_narrow(dtype) && !by_bfloat) || matrix == double(dims.of[kSum].elements())));
  plan.loops = !is_floating(dtype) || thin;
  plan.by_bfloat = by_bfloat;
  const GemmPlan start = plan;
  double least = std::numeric_limits<double>::infinity();
  for (int mask = 0; mask < 8 && !plan.loops; ++mask) {
    if (is_narrow(dtype) && !by_bfloat && mask != 7) continue;
    Dims trial = dims;
    GemmPlan candidate = start;
    double p = 0;
    for (Operand x : {kA, kB, kC}) {
      if ((mask >> x & 1) == 0) continue;
      pack(trial, x, candidate);
      candidate.offset[x] = candidate.workspace;
      const int64_t n = packed_elements(dims, x);
      const int64_t item = by_bfloat && x != kC ? size_of(dtype) : size_of(plan.compute);
      candidate.workspace += (n * item + 63) / 64 * 64;
      p += 2e-7 + 1e-9 * n;
    }
    for (int64_t kind : {kRow, kColumn, kSum}) merge_any(trial.of[kind]);
    Choice choice;
    p += choose(trial, choice);
    const bool adds = trial.of[kSum].rank() > (choice.sum >= 0 ? 1 : 0);
    if (!(p < least) || (by_bfloat && adds && !candidate.packed[kC])) continue;
    least = p;
    candidate.gemm = gemm_of(trial, choice);
    if (choice.row >= 0) trial.of[kRow].remove_dim(choice.row);
    if (choice.column >= 0) trial.of[kColumn].remove_dim(choice.column);
    if (choice.sum >= 0) trial.of[kSum].remove_dim(choice.sum);
    candidate.outer = trial.of[kRow];
    for (int d = 0; d < trial.of[kColumn].rank(); ++d) {
      const Nest& n = trial.of[kColumn];
      candidate.outer.add_dim(n.sizes[d], {n.strides[0][d], n.strides[1][d], n.strides[2][d]});
    }
    candidate.sums = trial.of[kSum];
    plan = std::move(candidate);
  }
  return plan;
}

}  // namespace tessera::kernels
