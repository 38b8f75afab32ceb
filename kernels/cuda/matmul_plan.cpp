// MatmulDims of one kind that all operands walk as one are merged, in any order. If then at most
// one row, column and contracted dim are left, and every matrix is dense along one of its two, the
// operands are used in place, transposed or not. Otherwise some are packed, which merges their
// dims. The largest batch dim becomes the library's batch; the others become separate calls.
#include "kernels/cuda/matmul_plan.h"

#include <algorithm>
#include <limits>

#include "base/fail.h"
#include "kernels/common/gemm_plan.h"
#include "kernels/cuda/generate.h"

namespace tessera::cuda {

namespace {

using kernels::kA;
using kernels::kB;
using kernels::kBatch;
using kernels::kC;
using kernels::kColumn;
using kernels::kRow;
using kernels::kSum;
using kernels::Nest;

struct MatmulDims {
  Nest of[4];  ///< by kind; operands a, b, c
};

bool has(int operand, int64_t kind) {
  if (kind == kBatch) return true;
  return operand == kA ? kind != kColumn : operand == kB ? kind != kRow : kind != kSum;
}

void merge_any(Nest& nest) {
  for (bool changed = true; changed;) {
    changed = false;
    for (int outer = 0; outer < nest.rank() && !changed; ++outer) {
      for (int inner = 0; inner < nest.rank() && !changed; ++inner) {
        if (outer == inner) continue;
        const auto o = static_cast<size_t>(outer), i = static_cast<size_t>(inner);
        changed = std::all_of(nest.strides.begin(), nest.strides.end(),
                              [&](const auto& s) { return s[o] == s[i] * nest.sizes[i]; });
        if (!changed) continue;
        nest.sizes[i] *= nest.sizes[o];
        nest.remove_dim(outer);
      }
    }
  }
}

MatmulDims dims_of(const Step& step) {
  const auto& kinds = step.as<MatmulSpec>().kinds;
  MatmulDims dims;
  for (Nest& nest : dims.of) nest.strides.resize(3);
  for (size_t d = 0; d < kinds.size(); ++d) {
    const View* views[3] = {&step.in.at(0), &step.in.at(1), &step.out.at(0)};
    int64_t size = 1;
    std::vector<int64_t> strides(3, 0);
    for (int x = 0; x < 3; ++x) {
      if (!has(x, kinds[d])) continue;
      if (views[x]->sizes[d] != 1) {
        size = views[x]->sizes[d];
        strides[static_cast<size_t>(x)] = views[x]->strides[d];
      }
    }
    if (size != 1) dims.of[kinds[d]].add_dim(size, strides);
  }
  return dims;
}

bool is_empty(const MatmulDims& dims) {
  return std::any_of(std::begin(dims.of), std::end(dims.of),
                     [](const Nest& nest) { return nest.elements() == 0; });
}

/// Packs operand x densely: batch dims, then dims of kind `first`, then of kind `second`.
int64_t pack_as(MatmulDims& dims, int x, int64_t first, int64_t second, Packed& packed) {
  packed.used = true;
  int64_t stride = 1;
  for (int64_t kind : {second, first, int64_t{kBatch}}) {
    Nest& nest = dims.of[kind];
    for (int d = nest.rank() - 1; d >= 0; --d) {
      const auto at = static_cast<size_t>(d);
      int64_t& s = nest.strides[static_cast<size_t>(x)][at];
      if (s == 0) continue;  // a repeated operand is read repeatedly
      packed.sizes.push_back(nest.sizes[at]);
      packed.from.push_back(s);
      packed.to.push_back(stride);
      s = stride;
      stride *= nest.sizes[at];
    }
  }
  return stride;
}

/// Packs operand x by rows of its matrix.
int64_t pack(MatmulDims& dims, int x, Packed& packed) {
  return pack_as(dims, x, x == kB ? kSum : kRow, x == kA ? kSum : kColumn, packed);
}

/// Describes a matrix of `rows` x `columns` with these strides for the library; false if it cannot.
bool lay_out(int64_t rows, int64_t columns, int64_t row, int64_t column, bool& transposed,
             int64_t& leading) {
  if (columns == 1 || column == 1) {
    transposed = false;
    leading = rows == 1 ? columns : row;
    if (leading >= columns) return true;
  }
  if (rows == 1 || row == 1) {
    transposed = true;
    leading = columns == 1 ? rows : column;
    return leading >= rows;
  }
  return false;
}

bool make_matrices(const MatmulDims& dims, MatmulPlan& plan) {
  int64_t size[4] = {1, 1, 1, 1}, stride[4][3] = {};
  for (int64_t kind : {kRow, kColumn, kSum}) {
    const Nest& nest = dims.of[kind];
    if (nest.rank() > 1) return false;
    if (nest.rank() == 0) continue;
    size[kind] = nest.sizes[0];
    for (int x = 0; x < 3; ++x) stride[kind][x] = nest.strides[static_cast<size_t>(x)][0];
  }
  Matrices& g = plan.matrices;
  bool transposed_c = false;
  if (!lay_out(size[kRow], size[kColumn], stride[kRow][kC], stride[kColumn][kC], transposed_c,
               g.ldc) ||
      !lay_out(size[kRow], size[kSum], stride[kRow][kA], stride[kSum][kA], g.transposed_a, g.lda) ||
      !lay_out(size[kSum], size[kColumn], stride[kSum][kB], stride[kColumn][kB], g.transposed_b,
               g.ldb))
    return false;
  g.m = size[kRow];
  g.n = size[kColumn];
  g.k = size[kSum];
  plan.swapped = transposed_c;
  if (transposed_c) {  // C^T = B^T A^T
    std::swap(g.m, g.n);
    std::swap(g.lda, g.ldb);
    const bool a = g.transposed_a;
    g.transposed_a = !g.transposed_b;
    g.transposed_b = !a;
  }
  return true;
}

void make_calls(Nest batch, MatmulPlan& plan) {
  Matrices& g = plan.matrices;
  int best = -1;
  for (int d = 0; d < batch.rank(); ++d) {
    const auto at = static_cast<size_t>(d);
    if (batch.strides[kC][at] == 0) continue;
    if (best < 0 || batch.sizes[at] > batch.sizes[static_cast<size_t>(best)]) best = d;
  }
  if (best >= 0) {
    const auto at = static_cast<size_t>(best);
    g.batch = batch.sizes[at];
    g.stride_a = batch.strides[plan.swapped ? kB : kA][at];
    g.stride_b = batch.strides[plan.swapped ? kA : kB][at];
    g.stride_c = batch.strides[kC][at];
    batch.remove_dim(best);
  }
  kernels::for_each<3>(batch, batch.rank(), [&](const auto& at) {
    plan.calls.push_back({at[0], at[1], at[2]});
  });
}

constexpr int64_t kAligned = 256;  // alignment of packed operands, bytes
int64_t aligned(int64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

/// What the library requires of 8-bit matmuls: multiples of 16, in elements and bytes.
bool suits_bytes(const MatmulPlan& plan, int64_t result_bytes) {
  const Matrices& g = plan.matrices;
  for (const int64_t x : {g.m, g.n, g.k, g.lda, g.ldb, g.stride_a, g.stride_b, g.ldc * result_bytes,
                          g.stride_c * result_bytes}) {
    if (x % 16 != 0) return false;
  }
  return std::all_of(plan.calls.begin(), plan.calls.end(), [&](const auto& call) {
    return call[0] % 16 == 0 && call[1] % 16 == 0 && call[2] * result_bytes % 16 == 0;
  });
}

}  // namespace

MatmulPlan plan_float8(const Step& step) {
  if (step.as<MatmulSpec>().float8.empty() || step.in.at(0).dtype == DType::float64) return {};
  const auto& formats = step.as<MatmulSpec>().float8;
  const MatmulDims dims = dims_of(step);
  if (is_empty(dims)) return {};
  const DType result = step.out.at(0).dtype;
  for (const bool packs_result : {false, true}) {
    MatmulDims trial = dims;
    MatmulPlan plan;
    bool fits = true;
    for (const int x : {kA, kB}) {
      Packed& p = plan.packed[x];
      p.offset = plan.workspace;
      plan.workspace += aligned(pack_as(trial, x, x == kA ? kRow : kColumn, kSum, p));
      fits = fits && can_store_float8(p.sizes, p.to, p.from);
    }
    if (packs_result) {
      plan.packed[kC].offset = plan.workspace;
      plan.workspace += aligned(pack(trial, kC, plan.packed[kC]) * size_of(result));
    }
    for (Nest& nest : trial.of) merge_any(nest);
    if (!fits || !make_matrices(trial, plan)) continue;
    make_calls(trial.of[kBatch], plan);
    if (!suits_bytes(plan, size_of(result))) continue;
    plan.possible = true;
    plan.float8 = {static_cast<Float8>(formats.at(0)), static_cast<Float8>(formats.at(1))};
    return plan;
  }
  return {};
}

MatmulPlan plan_matmul(const Step& step) {
  const auto operand = [&](int x) -> const View& {
    return x == kC ? step.out.at(0) : step.in.at(static_cast<size_t>(x));
  };
  const MatmulDims dims = dims_of(step);
  MatmulPlan best;
  if (!is_floating(operand(kA).dtype) || is_empty(dims)) return best;
  auto cost = std::make_pair(std::numeric_limits<int>::max(), int64_t{0});
  for (int mask = 0; mask < 8; ++mask) {
    MatmulDims trial = dims;
    MatmulPlan plan;
    for (int x = 0; x < 3; ++x) {
      if ((mask >> x & 1) == 0) continue;
      plan.packed[x].offset = plan.workspace;
      plan.workspace += aligned(pack(trial, x, plan.packed[x]) * size_of(operand(x).dtype));
    }
    const auto price =
        std::make_pair(__builtin_popcount(static_cast<unsigned>(mask)), plan.workspace);
    if (!(price < cost)) continue;
    for (Nest& nest : trial.of) merge_any(nest);
    if (!make_matrices(trial, plan)) continue;
    make_calls(trial.of[kBatch], plan);
    plan.possible = true;
    cost = price;
    best = std::move(plan);
  }
  return best;
}

}  // namespace tessera::cuda
