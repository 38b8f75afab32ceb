// Copying between strided views, with or without conversion between float32 and narrower types.
#pragma once

#include "kernels/common/nest.h"
#include "kernels/common/types.h"

namespace tessera::cpu {

using namespace kernels;

/// A nest with operands (out, in), simplified at bind time. copy<To, From>(out, in) copies all
/// elements.
class StridedCopy {
 public:
  StridedCopy() = default;
  StridedCopy(const std::vector<int64_t>& sizes, const std::vector<int64_t>& out_strides,
              const std::vector<int64_t>& in_strides);

  template <class To, class From>
  void copy(To* out, const From* in) const;

 private:
  Nest nest_;
  bool transposed_ = false;  ///< `out` is dense along the last dim, `in` along the one before it
};

template <class To, class From>
inline To converted(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (kIsNarrow<To>)
    return narrowed(x, To{});
  else
    return static_cast<To>(load_as(x));
}

template <class To, class From>
void copy_row(To* out, int64_t out_stride, const From* in, int64_t in_stride, int64_t n) {
  if (out_stride == 1 && in_stride == 1) {
    if constexpr (std::is_same_v<To, From>) {
      __builtin_memcpy(out, in, static_cast<size_t>(n) * sizeof(To));
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = converted<To>(in[i]);
    }
  } else if (out_stride == 1 && in_stride == 0) {
    const To x = converted<To>(*in);
    for (int64_t i = 0; i < n; ++i) out[i] = x;
  } else {
    for (int64_t i = 0; i < n; ++i) out[i * out_stride] = converted<To>(in[i * in_stride]);
  }
}

/// Transposes a 4 x 4 block.
inline void transpose_four(float* out, int64_t out_row, const float* in, int64_t in_row) {
  using Four = float __attribute__((vector_size(16)));
  Four a, b, c, d;
  __builtin_memcpy(&a, in, 16);
  __builtin_memcpy(&b, in + in_row, 16);
  __builtin_memcpy(&c, in + 2 * in_row, 16);
  __builtin_memcpy(&d, in + 3 * in_row, 16);
  const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5),
             cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
             ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7),
             cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Four rows[4] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5),
                        __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
                        __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                        __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (int64_t i = 0; i < 4; ++i) __builtin_memcpy(out + i * out_row, &rows[i], 16);
}

/// out[i][j] = in[j][i] by tiles. Every cache line of `in` that a tile touches is used completely,
/// and pages of `in` are read one after another.
template <class To, class From>
void copy_transposed(To* out, int64_t out_row, const From* in, int64_t in_row, int64_t rows,
                     int64_t n) {
  constexpr int64_t kTile = 16;
  for (int64_t j = 0; j < n; j += kTile) {
    const int64_t width = n - j < kTile ? n - j : kTile;
    for (int64_t i = 0; i < rows; i += kTile) {
      const int64_t height = rows - i < kTile ? rows - i : kTile;
      To tile[kTile][kTile];
      if (height == kTile && width == kTile) {
        if constexpr (std::is_same_v<To, float> && std::is_same_v<From, float>) {
          for (int64_t y = 0; y < kTile; y += 4) {
            for (int64_t x = 0; x < kTile; x += 4)
              transpose_four(&tile[x][y], kTile, in + (j + y) * in_row + i + x, in_row);
          }
        } else {
          for (int64_t y = 0; y < kTile; ++y) {
            const From* row = in + (j + y) * in_row + i;
            for (int64_t x = 0; x < kTile; ++x) tile[x][y] = converted<To>(row[x]);
          }
        }
        for (int64_t x = 0; x < kTile; ++x) {
          __builtin_memcpy(out + (i + x) * out_row + j, tile[x], sizeof(tile[x]));
        }
      } else {
        for (int64_t x = 0; x < height; ++x) {
          copy_row(out + (i + x) * out_row + j, 1, in + j * in_row + i + x, in_row, width);
        }
      }
    }
  }
}

template <class To, class From>
void StridedCopy::copy(To* out, const From* in) const {
  const int rank = nest_.rank();
  if (nest_.elements() == 0) return;
  if (rank == 0) {
    *out = converted<To>(*in);
    return;
  }
  const auto& so = nest_.strides[0];
  const auto& si = nest_.strides[1];
  const int64_t n = nest_.sizes[rank - 1];
  if (transposed_) {
    for_each<2>(nest_, rank - 2, [&](const auto& at) {
      copy_transposed(out + at[0], so[rank - 2], in + at[1], si[rank - 1], nest_.sizes[rank - 2],
                      n);
    });
    return;
  }
  for_each<2>(nest_, rank - 1, [&](const auto& at) {
    copy_row(out + at[0], so[rank - 1], in + at[1], si[rank - 1], n);
  });
}

}  // namespace tessera::cpu
