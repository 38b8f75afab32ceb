#include "kernels/cpu/ordered_product.h"

#include "base/isa.h"

namespace tessera::cpu {

std::span<const OrderedOps* const> usable_ordered_ops() {
  static constexpr const OrderedOps* kAll[] = {&kOrderedBaseOps, &kOrderedAvx2Ops,
                                               &kOrderedAvx512Ops};
  return {kAll, static_cast<size_t>(cpu_isa()) + 1};
}

int64_t step_of(const std::vector<int64_t>& at) {
  const int64_t step = at.size() < 2 ? 0 : at[1] - at[0];
  for (size_t k = 1; k < at.size(); ++k) {
    if (at[k] - at[k - 1] != step) return -1;
  }
  return step;
}

std::vector<PlaceTerms> terms_of(const OrderedPlaces& places) {
  TESSERA_CHECK(places.depth <= kDeepest, "{} open subtrees", places.depth);
  std::vector<PlaceTerms> result;
  for (const OrderedPlace& from : places.places) {
    PlaceTerms& place = result.emplace_back();
    place.joins = from.joins;
    size_t run = 0;
    for (const int64_t end : from.ends) {
      for (; run < static_cast<size_t>(end); ++run) {
        for (int64_t i = 0; i < from.runs[run].count; ++i) {
          for (int x : {kA, kB})
            place.at[x].push_back(from.runs[run].at[x] + i * places.strides[x]);
        }
      }
      place.ends.push_back(std::ssize(place.at[kA]));
    }
    for (const int x : {kA, kB}) place.step[x] = step_of(place.at[x]);
  }
  return result;
}

namespace {

/// The offsets of all elements of some dims, in their order.
ProductLines lines_of(Operand operand,
                      const std::vector<std::pair<int64_t, std::array<int64_t, 2>>>& dims) {
  ProductLines lines{operand, {0}, {0}};
  for (const auto& [size, strides] : dims) {
    ProductLines more{operand, {}, {}};
    for (size_t k = 0; k < lines.in.size(); ++k) {
      for (int64_t i = 0; i < size; ++i) {
        more.in.push_back(lines.in[k] + i * strides[0]);
        more.out.push_back(lines.out[k] + i * strides[1]);
      }
    }
    lines = std::move(more);
  }
  return lines;
}

}  // namespace

ProductWalk::ProductWalk(const std::vector<matmul_kinds::DimKind>& kinds,
                         const std::vector<int64_t>& sizes,
                         const std::vector<int64_t> (&strides)[3]) {
  batch.strides.resize(3);
  std::vector<std::pair<int64_t, std::array<int64_t, 2>>> free[2];  // of A, and of B
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kSum) continue;
    if (kinds[d] == kBatch) {
      batch.add_dim(sizes[d], {strides[kA][d], strides[kB][d], strides[kC][d]});
    } else {
      const bool is_row = kinds[d] == kRow;
      free[is_row ? 0 : 1].push_back({sizes[d], {strides[is_row ? kA : kB][d], strides[kC][d]}});
    }
  }
  for (auto& dims : free) {  // the densest of the result last
    std::stable_sort(dims.begin(), dims.end(),
                     [](const auto& a, const auto& b) { return a.second[1] > b.second[1]; });
  }
  rows = lines_of(kA, free[0]);
  columns = lines_of(kB, free[1]);
  const auto is_dense = [](const auto& dims) {
    return !dims.empty() && dims.back().second[1] == 1;
  };
  constexpr size_t kFew = 8;
  const size_t m = rows.in.size(), n = columns.in.size();
  if (n < kFew ? m > n : m >= kFew && is_dense(free[0]) && !is_dense(free[1]))
    std::swap(rows, columns);
}

ProductSizes::ProductSizes(const SumOrder& order, const std::vector<matmul_kinds::DimKind>& kinds,
                           const std::vector<int64_t>& sizes) {
  for (const SumOrder::Along& a : order.along)
    terms *= std::min(a.size, sizes[static_cast<size_t>(a.dim)]);
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kRow) rows *= sizes[d];
    if (kinds[d] == kColumn) columns *= sizes[d];
  }
}

int64_t ProductSizes::workspace(DType dtype) const {
  const auto bytes = [&](auto zero, int64_t m, int64_t n) {
    using T = decltype(zero);
    const OrderedTile<T>& tile = best_tile<T>();
    const Panels p = panels_of<T>(terms, m, n);
    const int64_t elements =
        p.terms * (p.rows + p.columns) + (kDeepest + 1) * tile.rows * tile.columns;
    return static_cast<int64_t>(sizeof(T)) * elements;
  };
  if (dtype == DType::float64)
    return std::max(bytes(double{}, rows, columns), bytes(double{}, columns, rows));
  return std::max(bytes(float{}, rows, columns), bytes(float{}, columns, rows));
}

}  // namespace tessera::cpu
