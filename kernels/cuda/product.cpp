// Dims of one kind that all operands walk as one are merged, in any order. If one row, one column
// and one summed dim are left and every matrix is dense along one of its two, the operands are used
// where they lie, transposed or not; else some are packed, which merges their dims. Of the batch
// dims the largest becomes the library's batch, the others are calls.
#include "kernels/cuda/product.h"

#include <algorithm>
#include <limits>

#include "base/fail.h"
#include "kernels/cpu/contract_plan.h"

namespace tessera::cuda {

namespace {

using cpu::kA;
using cpu::kB;
using cpu::kBatch;
using cpu::kC;
using cpu::kColumn;
using cpu::kRow;
using cpu::kSum;
using cpu::Nest;

struct Dims {
  Nest of[4];  ///< by kind, operands a, b, c
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

Dims dims_of(const Step& step) {
  const auto& kinds = step.attrs.get<std::vector<int64_t>>("kinds");
  Dims dims;
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

/// Makes operand x dense: batch dims, then rows, then columns of its matrix.
int64_t pack(Dims& dims, int x, Packed& packed) {
  packed.used = true;
  int64_t stride = 1;
  const int64_t second = x == kA ? kSum : kColumn, first = x == kB ? kSum : kRow;
  for (int64_t kind : {second, first, int64_t{kBatch}}) {
    Nest& nest = dims.of[kind];
    for (int d = nest.rank() - 1; d >= 0; --d) {
      const auto at = static_cast<size_t>(d);
      int64_t& s = nest.strides[static_cast<size_t>(x)][at];
      if (s == 0) continue;  // repeated: read again and again
      packed.sizes.push_back(nest.sizes[at]);
      packed.from.push_back(s);
      packed.to.push_back(stride);
      s = stride;
      stride *= nest.sizes[at];
    }
  }
  return stride;
}

/// A matrix with `rows` x `columns` elements and these strides, as the library wants it.
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

bool make_matrices(const Dims& dims, ProductPlan& plan) {
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

void make_calls(Nest batch, ProductPlan& plan) {
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
  cpu::for_each<3>(batch, batch.rank(), [&](const auto& at) {
    plan.calls.push_back({at[0], at[1], at[2]});
  });
}

}  // namespace

ProductPlan plan_product(const Step& step) {
  const auto operand = [&](int x) -> const View& {
    return x == kC ? step.out.at(0) : step.in.at(static_cast<size_t>(x));
  };
  const Dims dims = dims_of(step);
  ProductPlan best;
  bool empty = false;
  for (const Nest& nest : dims.of) empty = empty || nest.elements() == 0;
  if (!is_floating(operand(kA).dtype) || empty) return best;
  auto cost = std::make_pair(std::numeric_limits<int>::max(), int64_t{0});
  for (int mask = 0; mask < 8; ++mask) {
    Dims trial = dims;
    ProductPlan plan;
    for (int x = 0; x < 3; ++x) {
      if ((mask >> x & 1) == 0) continue;
      plan.packed[x].offset = plan.workspace;
      plan.workspace +=
          (pack(trial, x, plan.packed[x]) * size_of(operand(x).dtype) + 255) / 256 * 256;
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
