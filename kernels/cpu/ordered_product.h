// Contractions in the canonical order of sums, of operands whose rows, columns and terms are lists
// of offsets. Operands are packed into panels: all terms of up to 96 rows, and all terms of as many
// columns as fit into 4 MB. A tile of rows and columns is summed over all of its terms while it is
// in registers (ordered_gemm.h).
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/common/gemm_plan.h"
#include "kernels/common/types.h"
#include "kernels/cpu/ordered_gemm.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/transpose_four.h"

namespace tessera::cpu {

using namespace kernels;

/// The terms of a place: their offsets in A and B, and how their sums are joined (OrderedTerms).
struct PlaceTerms {
  std::vector<int64_t> at[2], ends, joins;
  int64_t step[2] = {-1, -1};  ///< between terms, if it is always the same and known
};
/// The difference of all neighbours, or -1.
int64_t step_of(const std::vector<int64_t>& at);
std::vector<PlaceTerms> terms_of(const OrderedPlaces& places);

/// Rows or columns of the result: their offsets in an operand and in the result.
struct ProductLines {
  Operand operand = kA;
  std::vector<int64_t> in, out;
};

/// How the dims of a contraction are walked. Sizes and strides are those of A, B and C.
struct ProductWalk {
  ProductWalk(const std::vector<matmul_kinds::DimKind>& kinds, const std::vector<int64_t>& sizes,
              const std::vector<int64_t> (&strides)[3]);
  Nest batch;
  ProductLines rows, columns;  ///< columns are those that are dense in the result, or many
};

/// Sizes of a contraction on this rank, or upper bounds.
struct ProductSizes {
  int64_t terms = 1, rows = 1, columns = 1;
  /// terms: of `order`, where dims have these sizes here. The others: of the sizes of the result.
  ProductSizes(const SumOrder& order, const std::vector<matmul_kinds::DimKind>& kinds,
               const std::vector<int64_t>& sizes);
  int64_t workspace(DType dtype) const;
};

/// Sizes of the panels, in elements.
struct Panels {
  int64_t terms = 0, rows = 0, columns = 0;  ///< multiples of the tile
};

template <class T>
const OrderedKernels<T>& best_ordered() {
  const OrderedOps& ops = *usable_ordered_ops().back();
  if constexpr (std::is_same_v<T, double>)
    return ops.float64;
  else
    return ops.float32;
}
template <class T>
const OrderedTile<T>& best_tile() {
  return best_ordered<T>().tile;
}

template <class T>
Panels panels_of(int64_t terms, int64_t rows, int64_t columns) {
  constexpr int64_t kRowsOfPanel = 96, kBytesOfPanel = 4 << 20;
  const OrderedTile<T>& tile = best_tile<T>();
  const auto up = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; };
  const int64_t most =
      kBytesOfPanel / static_cast<int64_t>(sizeof(T)) / std::max<int64_t>(1, terms);
  return {terms, up(std::min(rows, kRowsOfPanel), tile.rows),
          up(std::min(columns, std::max(most, tile.columns)), tile.columns)};
}

template <class T>
class OrderedProduct {
  using W = Compute<T>;

 public:
  /// rows, columns: at most. workspace: of ProductSizes.
  OrderedProduct(const KernelArgs& args, int64_t terms, int64_t rows, int64_t columns,
                 void* workspace)
      : order_(args.step->order),
        result_(args.out[0].data),
        is_wide_(args.out[0].dtype != args.in[0].dtype),
        panels_(panels_of<W>(terms, rows, columns)) {
    TESSERA_CHECK(workspace != nullptr, "a product in order needs its workspace");
    rows_ = static_cast<W*>(workspace);
    columns_ = rows_ + panels_.terms * panels_.rows;
    stack_ = columns_ + panels_.terms * panels_.columns;
    tile_ = stack_ + kDeepest * best_tile<W>().rows * best_tile<W>().columns;
  }

  /// Writes the sums of every place to offset `to` of the result. Those without terms are
  /// kNoTerms, and zero if they are the whole sum.
  void run(std::span<const PlaceTerms> places, const ProductLines& rows,
           const ProductLines& columns, const T* a, const T* b, int64_t to) const {
    for (int64_t p = 0; p < order_.places; ++p, to += order_.stride) {
      const PlaceTerms* place = nullptr;
      if (p < std::ssize(places) && !places[static_cast<size_t>(p)].ends.empty())
        place = &places[static_cast<size_t>(p)];
      if (is_wide_) {
        multiply(place, rows, columns, a, b, static_cast<W*>(result_) + to);
      } else {
        multiply(place, rows, columns, a, b, static_cast<T*>(result_) + to);
      }
    }
  }

 private:
  /// A complete sum has no negative zero.
  template <class Out>
  Out rounded(W x) const {
    if (!order_.is_split()) x += W(0);
    if constexpr (std::is_same_v<Out, W>)
      return x;
    else
      return store_as<Out>(x);
  }

  template <class Out>
  void multiply(const PlaceTerms* place, const ProductLines& rows, const ProductLines& columns,
                const T* a, const T* b, Out* c) const {
    if (place == nullptr) {
      for (const int64_t row : rows.out) {
        for (const int64_t column : columns.out)
          c[row + column] = rounded<Out>(static_cast<W>(kNoTerms));
      }
      return;
    }
    const OrderedTile<W>& tile = best_tile<W>();
    const OrderedTerms terms{place->ends, place->joins, !order_.is_split()};
    const int64_t all_rows = std::ssize(rows.in), all_columns = std::ssize(columns.in);
    const int64_t step = place->step[rows.operand];
    const T* of_rows = rows.operand == kA ? a : b;
    const bool is_dense = step_of(columns.out) == 1;
    for (int64_t j = 0; j < all_columns; j += panels_.columns) {
      const int64_t width = std::min(panels_.columns, all_columns - j);
      pack(columns.operand == kA ? a : b, place->at[columns.operand],
           place->step[columns.operand] == 1, columns.in.data() + j, width, tile.columns, columns_);
      // Whole tiles of a dense result are computed in place.
      W* to[kMostTileRows];
      const auto is_in_place = [&](int64_t row, int64_t height, int64_t l) {
        if constexpr (std::is_same_v<Out, W>) {
          if (is_dense && height >= tile.rows && width - l >= tile.columns) {
            for (int64_t r = 0; r < tile.rows; ++r)
              to[r] = c + rows.out[static_cast<size_t>(row + r)] +
                      columns.out[static_cast<size_t>(j + l)];
            return true;
          }
        }
        for (int64_t r = 0; r < tile.rows; ++r) to[r] = tile_ + r * tile.columns;
        return false;
      };
      const auto write_tile = [&](int64_t row, int64_t height, int64_t l) {
        write(c, rows.out.data() + row, std::min(tile.rows, height), columns.out.data() + j + l,
              std::min(tile.columns, width - l), is_dense);
      };
      for (int64_t i = 0; i < all_rows; i += panels_.rows) {
        const int64_t height = std::min(panels_.rows, all_rows - i);
        if constexpr (std::is_same_v<T, W>) {
          if (step >= 0 && width <= kFewColumnTiles * tile.columns) {  // rows where they are
            const W* at[kMostTileRows];
            for (int64_t k = 0; k < height; k += tile.rows) {
              for (int64_t r = 0; r < tile.rows; ++r)
                at[r] = of_rows + place->at[rows.operand][0] +
                        rows.in[static_cast<size_t>(i + std::min(k + r, height - 1))];
              for (int64_t l = 0; l < width; l += tile.columns) {
                const bool in_place = is_in_place(i + k, height - k, l);
                tile.run_strided(terms, at, step, columns_ + l * panels_.terms, stack_, to);
                if (!in_place) write_tile(i + k, height - k, l);
              }
            }
            continue;
          }
        }
        pack(of_rows, place->at[rows.operand], step == 1, rows.in.data() + i, height, tile.rows,
             rows_);
        for (int64_t l = 0; l < width; l += tile.columns) {
          for (int64_t k = 0; k < height; k += tile.rows) {
            const bool in_place = is_in_place(i + k, height - k, l);
            tile.run(terms, rows_ + k * panels_.terms, columns_ + l * panels_.terms, stack_, to);
            if (!in_place) write_tile(i + k, height - k, l);
          }
        }
      }
    }
  }

  /// Packs `count` rows or columns, in groups of `unit`, as [group][term][unit]. in_a_row: terms
  /// are one behind the other.
  void pack(const T* from, const std::vector<int64_t>& terms, bool in_a_row, const int64_t* offsets,
            int64_t count, int64_t unit, W* to) const {
    for (int64_t g = 0; g < count; g += unit, to += panels_.terms * unit) {
      const int64_t n = std::min(unit, count - g);
      bool dense = std::is_same_v<T, W>;
      for (int64_t i = 1; dense && i < n; ++i) dense = offsets[g + i] == offsets[g] + i;
      if (dense && n == unit) {
        W* at = to;
        for (const int64_t term : terms) {
          std::memcpy(at, from + term + offsets[g], static_cast<size_t>(unit) * sizeof(W));
          at += unit;
        }
        continue;
      }
      int64_t done = 0;
      if constexpr (std::is_same_v<T, float>) {
        for (; in_a_row && done + 4 <= n; done += 4) {
          const float* lines[4];
          for (int64_t i = 0; i < 4; ++i) lines[i] = from + terms[0] + offsets[g + done + i];
          transpose_lines(lines, std::ssize(terms), to + done, unit);
        }
      }
      for (int64_t i = done; i < unit; ++i) {  // what is beyond the last one is not read
        const T* x = from + offsets[g + std::min(i, n - 1)];
        W* at = to + i;
        for (const int64_t term : terms) {
          *at = load_as(x[term]);
          at += unit;
        }
      }
    }
  }

  template <class Out>
  void write(Out* c, const int64_t* rows, int64_t height, const int64_t* columns, int64_t width,
             bool is_dense) const {
    const int64_t stride = best_tile<W>().columns;
    for (int64_t i = 0; i < height; ++i) {
      Out* to = c + rows[i];
      const W* __restrict from = tile_ + i * stride;
      if (is_dense) {
        Out* __restrict dense = to + columns[0];
        for (int64_t l = 0; l < width; ++l) dense[l] = rounded<Out>(from[l]);
      } else {
        for (int64_t l = 0; l < width; ++l) to[columns[l]] = rounded<Out>(from[l]);
      }
    }
  }

  static constexpr int64_t kFewColumnTiles = 4;  ///< of columns, for which rows are not packed
  static constexpr int64_t kMostTileRows = 16;   ///< of a tile
  SumOrder order_;
  void* result_;
  bool is_wide_;  ///< sums of 16-bit operands are not rounded
  Panels panels_;
  W *rows_ = nullptr, *columns_ = nullptr, *stack_ = nullptr, *tile_ = nullptr;
};

/// Calls make(T{}) for the type of floating operands.
template <class Make>
std::unique_ptr<Kernel> make_ordered(DType dtype, Make&& make) {
  if (dtype == DType::float64) return make(double{});
  if (dtype == DType::float32) return make(float{});
  return with_narrow(dtype, [&](auto zero) { return make(zero); });
}

}  // namespace tessera::cpu
