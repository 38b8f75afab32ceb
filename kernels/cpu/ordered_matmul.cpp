// Contractions in the canonical order of sums. Operands are packed into panels: all terms of up to
// 96 rows, and all terms of as many columns as fit into 4 MB. A tile of rows and columns is summed
// over all of its terms while it is in registers (ordered_gemm.h).
#include <algorithm>
#include <cstring>

#include "base/isa.h"
#include "kernels/common/gemm_plan.h"
#include "kernels/common/types.h"
#include "kernels/cpu/ordered_gemm.h"
#include "kernels/cpu/ordered_places.h"

namespace tessera::cpu {

using namespace kernels;

std::span<const OrderedOps* const> usable_ordered_ops() {
  static constexpr const OrderedOps* kAll[] = {&kOrderedBaseOps, &kOrderedAvx2Ops,
                                               &kOrderedAvx512Ops};
  return {kAll, static_cast<size_t>(cpu_isa()) + 1};
}

namespace {

constexpr int64_t kRowsOfPanel = 96, kBytesOfPanel = 4 << 20;
constexpr size_t kDeepest = 64;         ///< open subtrees
constexpr int64_t kFewColumnTiles = 4;  ///< of columns, for which rows are not packed
constexpr int64_t kMostTileRows = 16;   ///< of a tile

template <class T>
const OrderedTile<T>& best_tile() {
  const OrderedOps& ops = *usable_ordered_ops().back();
  if constexpr (std::is_same_v<T, double>)
    return ops.float64;
  else
    return ops.float32;
}

/// How a step's dims are walked: the batch, and the offsets of rows and columns in A or B and C.
struct Walk {
  Nest batch;
  std::vector<int64_t> rows_in, rows_out, columns_in, columns_out;
  bool swapped = false;  ///< the columns are those of the first operand
};

int64_t size_of_dim(const std::vector<int64_t>& a, const std::vector<int64_t>& b, size_t d) {
  return std::max(a[d], b[d]);
}

/// The offsets of all elements of some dims, in the order of `sizes`.
void add_offsets(const std::vector<std::pair<int64_t, std::array<int64_t, 2>>>& dims,
                 std::vector<int64_t>& in, std::vector<int64_t>& out) {
  in = out = {0};
  for (const auto& [size, strides] : dims) {
    std::vector<int64_t> more_in, more_out;
    for (size_t k = 0; k < in.size(); ++k) {
      for (int64_t i = 0; i < size; ++i) {
        more_in.push_back(in[k] + i * strides[0]);
        more_out.push_back(out[k] + i * strides[1]);
      }
    }
    in = std::move(more_in);
    out = std::move(more_out);
  }
}

/// Of operands and result: sizes and strides along the step's dims.
Walk walk_of(const std::vector<matmul_kinds::DimKind>& kinds,
             const std::vector<int64_t> (&sizes)[3], const std::vector<int64_t> (&strides)[3]) {
  Walk walk;
  walk.batch.strides.resize(3);
  std::vector<std::pair<int64_t, std::array<int64_t, 2>>> free[2];  // of A, and of B
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kSum) continue;
    const int64_t size = sizes[kC][d];
    if (kinds[d] == kBatch) {
      walk.batch.add_dim(size, {strides[kA][d], strides[kB][d], strides[kC][d]});
    } else {
      const bool is_row = kinds[d] == kRow;
      free[is_row ? 0 : 1].push_back({size, {strides[is_row ? kA : kB][d], strides[kC][d]}});
    }
  }
  for (auto& dims : free) {  // the densest of the result last
    std::stable_sort(dims.begin(), dims.end(),
                     [](const auto& a, const auto& b) { return a.second[1] > b.second[1]; });
  }
  add_offsets(free[0], walk.rows_in, walk.rows_out);
  add_offsets(free[1], walk.columns_in, walk.columns_out);
  const auto is_dense = [](const auto& dims) {
    return !dims.empty() && dims.back().second[1] == 1;
  };
  constexpr size_t kFew = 8;
  const size_t rows = walk.rows_in.size(), columns = walk.columns_in.size();
  walk.swapped =
      columns < kFew ? rows > columns : rows >= kFew && is_dense(free[0]) && !is_dense(free[1]);
  if (walk.swapped) {
    std::swap(walk.rows_in, walk.columns_in);
    std::swap(walk.rows_out, walk.columns_out);
  }
  return walk;
}

/// Sizes of the panels, in elements.
struct Panels {
  int64_t terms = 0, rows = 0, columns = 0;  ///< multiples of the tile
  int64_t elements(int64_t tile) const {
    return terms * (rows + columns) + static_cast<int64_t>(kDeepest) * tile;
  }
};

template <class T>
Panels panels_of(int64_t terms, int64_t rows, int64_t columns) {
  const OrderedTile<T>& tile = best_tile<T>();
  const auto up = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; };
  const int64_t most =
      kBytesOfPanel / static_cast<int64_t>(sizeof(T)) / std::max<int64_t>(1, terms);
  Panels p;
  p.terms = terms;
  p.rows = up(std::min(rows, kRowsOfPanel), tile.rows);
  p.columns = up(std::min(columns, std::max(most, tile.columns)), tile.columns);
  return p;
}

int64_t terms_of(const Step& step) {
  int64_t terms = 1;
  for (const SumOrder::Along& a : step.order.along) {
    const auto d = static_cast<size_t>(a.dim);
    terms *= std::min(a.size, size_of_dim(step.in[0].sizes, step.in[1].sizes, d));
  }
  return terms;
}

template <class T, class W>
class OrderedMatmul final : public Kernel {
 public:
  explicit OrderedMatmul(const KernelArgs& args)
      : args_(args),
        is_wide_(args.out[0].dtype != args.in[0].dtype),
        all_places_(args.step->order.places),
        is_complete_(!args.step->order.is_split()),
        stride_(args.step->order.stride) {
    const std::vector<int64_t> sizes[3] = {args.in[0].sizes, args.in[1].sizes, args.out[0].sizes};
    const std::vector<int64_t> strides[3] = {args.in[0].strides, args.in[1].strides,
                                             args.out[0].strides};
    walk_ = walk_of(args.step->as<MatmulSpec>().kinds, sizes, strides);
    const OrderedPlaces places = ordered_places(args, {strides[kA], strides[kB]});
    TESSERA_CHECK(places.depth <= static_cast<int64_t>(kDeepest), "{} open subtrees", places.depth);
    for (const OrderedPlace& from : places.places) {
      Place& place = places_.emplace_back();
      place.joins = from.joins;
      size_t run = 0;
      for (const int64_t end : from.ends) {
        for (; run < static_cast<size_t>(end); ++run) {
          for (int64_t i = 0; i < from.runs[run].count; ++i) {
            for (int x : {kA, kB})
              place.at[x].push_back(from.runs[run].at[x] + i * places.strides[x]);
          }
        }
        place.ends.push_back(static_cast<int64_t>(place.at[kA].size()));
      }
      for (const int x : {kA, kB}) place.step[x] = step_of(place.at[x]);
    }
    dense_columns_ = step_of(walk_.columns_out) == 1;
    panels_ =
        panels_of<W>(terms_of(*args.step), std::ssize(walk_.rows_in), std::ssize(walk_.columns_in));
    TESSERA_CHECK(args.workspace != nullptr, "a matmul in order needs its workspace");
    rows_ = static_cast<W*>(args.workspace);
    columns_ = rows_ + panels_.terms * panels_.rows;
    stack_ = columns_ + panels_.terms * panels_.columns;
  }

  void run() override {
    for_each<3>(walk_.batch, walk_.batch.rank(), [&](const auto& at) {
      const T* a = static_cast<const T*>(args_.in[0].data) + at[kA];
      const T* b = static_cast<const T*>(args_.in[1].data) + at[kB];
      for (int64_t p = 0; p < all_places_; ++p) {
        const int64_t to = at[kC] + p * stride_;
        const Place* place = p < std::ssize(places_) ? &places_[static_cast<size_t>(p)] : nullptr;
        if (is_wide_) {
          multiply(place, a, b, static_cast<W*>(args_.out[0].data) + to);
        } else {
          multiply(place, a, b, static_cast<T*>(args_.out[0].data) + to);
        }
      }
    });
  }

 private:
  struct Place {
    std::vector<int64_t> at[2], ends, joins;  ///< offsets of the terms in A and B
    int64_t step[2] = {-1, -1};               ///< between terms, if it is always the same
  };

  /// A complete sum has no negative zero.
  template <class Out>
  Out rounded(W x) const {
    if (is_complete_) x += W(0);
    if constexpr (std::is_same_v<Out, W>)
      return x;
    else
      return store_as<Out>(x);
  }

  /// The difference of all neighbours, or -1.
  static int64_t step_of(const std::vector<int64_t>& at) {
    const int64_t step = at.size() < 2 ? 0 : at[1] - at[0];
    for (size_t k = 1; k < at.size(); ++k) {
      if (at[k] - at[k - 1] != step) return -1;
    }
    return step;
  }

  template <class Out>
  void multiply(const Place* place, const T* a, const T* b, Out* c) {
    if (place == nullptr) {
      for (const int64_t row : walk_.rows_out) {
        for (const int64_t column : walk_.columns_out)
          c[row + column] = rounded<Out>(static_cast<W>(kNoTerms));
      }
      return;
    }
    const int x = walk_.swapped ? kB : kA, y = walk_.swapped ? kA : kB;
    const T *of_rows = walk_.swapped ? b : a, *of_columns = walk_.swapped ? a : b;
    const OrderedTile<W>& tile = best_tile<W>();
    const int64_t rows = std::ssize(walk_.rows_in), columns = std::ssize(walk_.columns_in);
    for (int64_t j = 0; j < columns; j += panels_.columns) {
      const int64_t width = std::min(panels_.columns, columns - j);
      pack(of_columns, place->at[y], walk_.columns_in.data() + j, width, tile.columns, columns_);
      for (int64_t i = 0; i < rows; i += panels_.rows) {
        const int64_t height = std::min(panels_.rows, rows - i);
        if constexpr (std::is_same_v<T, W>) {
          if (place->step[x] >= 0 && width <= kFewColumnTiles * tile.columns) {
            add_strided(*place, of_rows + place->at[x][0], place->step[x], c, i, height, j, width);
            continue;
          }
        }
        pack(of_rows, place->at[x], walk_.rows_in.data() + i, height, tile.rows, rows_);
        for (int64_t l = 0; l < width; l += tile.columns) {
          for (int64_t k = 0; k < height; k += tile.rows)
            add_tile(*place, c, i + k, std::min(tile.rows, height - k), j + l,
                     std::min(tile.columns, width - l), rows_ + k * panels_.terms,
                     columns_ + l * panels_.terms);
        }
      }
    }
  }

  /// Packs `count` rows or columns, in groups of `unit`, as [group][term][unit].
  void pack(const T* from, const std::vector<int64_t>& terms, const int64_t* offsets, int64_t count,
            int64_t unit, W* to) const {
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
      for (int64_t i = 0; i < unit; ++i) {  // what is beyond the last one is not read
        const T* x = from + offsets[g + std::min(i, n - 1)];
        W* at = to + i;
        for (const int64_t term : terms) {
          *at = load_as(x[term]);
          at += unit;
        }
      }
    }
  }

  /// Tiles of rows where they are.
  template <class Out>
  void add_strided(const Place& place, const W* rows, int64_t step, Out* c, int64_t row,
                   int64_t height, int64_t column, int64_t width) {
    const OrderedTile<W>& tile = best_tile<W>();
    const W* at[kMostTileRows];
    for (int64_t k = 0; k < height; k += tile.rows) {
      for (int64_t r = 0; r < tile.rows; ++r)
        at[r] = rows + walk_.rows_in[static_cast<size_t>(row + std::min(k + r, height - 1))];
      for (int64_t l = 0; l < width; l += tile.columns) {
        tile.run_strided({place.ends, place.joins}, at, step, columns_ + l * panels_.terms, stack_);
        write_tile(c, row + k, std::min(tile.rows, height - k), column + l,
                   std::min(tile.columns, width - l));
      }
    }
  }

  template <class Out>
  void add_tile(const Place& place, Out* c, int64_t row, int64_t height, int64_t column,
                int64_t width, const W* rows, const W* columns) {
    const OrderedTile<W>& tile = best_tile<W>();
    tile.run({place.ends, place.joins}, rows, columns, stack_);
    write_tile(c, row, height, column, width);
  }

  template <class Out>
  void write_tile(Out* c, int64_t row, int64_t height, int64_t column, int64_t width) {
    const OrderedTile<W>& tile = best_tile<W>();
    for (int64_t i = 0; i < height; ++i) {
      Out* to = c + walk_.rows_out[static_cast<size_t>(row + i)];
      const int64_t* at = walk_.columns_out.data() + column;
      const W* __restrict from = stack_ + i * tile.columns;
      if (dense_columns_) {
        Out* __restrict dense = to + at[0];
        for (int64_t l = 0; l < width; ++l) dense[l] = rounded<Out>(from[l]);
      } else {
        for (int64_t l = 0; l < width; ++l) to[at[l]] = rounded<Out>(from[l]);
      }
    }
  }

  KernelArgs args_;
  bool is_wide_;  ///< sums of 16-bit operands are not rounded
  int64_t all_places_;
  bool is_complete_;
  int64_t stride_;  ///< from a place to the next
  Walk walk_;
  bool dense_columns_ = false;  ///< of the result
  std::vector<Place> places_;
  Panels panels_;
  W *rows_ = nullptr, *columns_ = nullptr, *stack_ = nullptr;
};

}  // namespace

int64_t ordered_matmul_workspace(const Step& step) {
  int64_t rows = 1, columns = 1;
  const auto& kinds = step.as<MatmulSpec>().kinds;
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kRow) rows *= step.out[0].sizes[d];
    if (kinds[d] == kColumn) columns *= step.out[0].sizes[d];
  }
  const auto bytes = [&](auto zero) {
    using T = decltype(zero);
    const OrderedTile<T>& tile = best_tile<T>();
    const int64_t of_tile = tile.rows * tile.columns, terms = terms_of(step);
    return static_cast<int64_t>(sizeof(T)) *
           std::max(panels_of<T>(terms, rows, columns).elements(of_tile),
                    panels_of<T>(terms, columns, rows).elements(of_tile));
  };
  return step.in[0].dtype == DType::float64 ? bytes(double{}) : bytes(float{});
}

std::unique_ptr<Kernel> bind_ordered_matmul(const KernelArgs& args) {
  const DType dtype = args.in[0].dtype;
  if (dtype == DType::float64) return std::make_unique<OrderedMatmul<double, double>>(args);
  if (dtype == DType::float32) return std::make_unique<OrderedMatmul<float, float>>(args);
  return with_narrow(dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<OrderedMatmul<decltype(zero), float>>(args);
  });
}

}  // namespace tessera::cpu
