// The loops of products of rows for AVX2 and FMA: sums of 6 rows by 16 columns are in registers
// during all terms. 16 columns of B are copied to a panel, which stays in the first cache while all
// rows multiply it. Standard headers come before the target pragma, so that none of their inline
// functions is compiled for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/row_gemm.h"
#include "kernels/cpu/strided_copy.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma")
#endif
#include "kernels/cpu/fused_multiply_add.h"

namespace tessera::cpu {

namespace {

constexpr int kTile = 6;  ///< rows
constexpr int64_t kPanel = 16;
constexpr int64_t kMostTerms = 512;
typedef float Eight __attribute__((vector_size(32)));

inline Eight eight_at(const float* at) {
  Eight v;
  std::memcpy(&v, at, sizeof(v));
  return v;
}

/// Of the last columns, which are fewer than a panel has.
__attribute__((noinline)) void add_columns(float* to, Eight y0, Eight y1, int64_t width,
                                           bool overwrite) {
  float columns[kPanel];
  std::memcpy(columns, &y0, sizeof(y0));
  std::memcpy(columns + 8, &y1, sizeof(y1));
  for (int64_t i = 0; i < width; ++i) to[i] = overwrite ? columns[i] : to[i] + columns[i];
}

/// R rows by a panel.
template <int R>
inline void tile(int64_t k, const float* const* a, const float* panel, float* const* c, int64_t j,
                 int64_t width, bool overwrite) {
  const float* x[R];
  for (int r = 0; r < R; ++r) x[r] = a[r];
  for (int r = 0; r < R; ++r) __builtin_prefetch(c[r] + j, 1);
  Eight sums[R][2] = {};
  for (int64_t l = 0; l < k; ++l) {
    const Eight y0 = eight_at(panel + l * kPanel), y1 = eight_at(panel + l * kPanel + 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      sums[r][0] += y0 * x[r][l];
      sums[r][1] += y1 * x[r][l];
    }
  }
  for (int r = 0; r < R; ++r) {
    float* to = c[r] + j;
    Eight y0 = sums[r][0], y1 = sums[r][1];
    if (width < kPanel) {
      add_columns(to, y0, y1, width, overwrite);
      continue;
    }
    if (!overwrite) {
      y0 += eight_at(to);
      y1 += eight_at(to + 8);
    }
    std::memcpy(to, &y0, sizeof(y0));
    std::memcpy(to + 8, &y1, sizeof(y1));
  }
}

/// Copies columns from j on to the panel, zeros after the last one.
void copy_panel(const RowGemm& g, int64_t j, int64_t width, float* panel) {
  const float* b = g.b + j * g.b_column;
  if (width < kPanel) {
    std::fill(panel, panel + g.k * kPanel, 0.0f);
    for (int64_t l = 0; l < g.k; ++l) {
      for (int64_t i = 0; i < width; ++i) panel[l * kPanel + i] = b[l * g.b_row + i * g.b_column];
    }
  } else if (g.b_column == 1) {
    for (int64_t l = 0; l < g.k; ++l)
      std::memcpy(panel + l * kPanel, b + l * g.b_row, kPanel * sizeof(float));
  } else {
    int64_t l = 0;
    for (; l + 4 <= g.k; l += 4) {
      for (int64_t i = 0; i < kPanel; i += 4)
        transpose_four(panel + l * kPanel + i, kPanel, b + l + i * g.b_column, g.b_column);
    }
    for (; l < g.k; ++l) {
      for (int64_t i = 0; i < kPanel; ++i) panel[l * kPanel + i] = b[l + i * g.b_column];
    }
  }
}

}  // namespace

void row_gemm_avx2(const RowGemm& g) {
  alignas(64) float panel[kMostTerms * kPanel];
  for (int64_t j = 0; j < g.n; j += kPanel) {
    const int64_t width = std::min(kPanel, g.n - j);
    copy_panel(g, j, width, panel);
    int64_t i = 0;
    const auto take = [&](auto count) {
      constexpr int R = decltype(count)::value;
      for (; i + R <= g.m; i += R) tile<R>(g.k, g.a + i, panel, g.c + i, j, width, g.overwrite);
    };
    take(std::integral_constant<int, kTile>());
    take(std::integral_constant<int, 4>());
    take(std::integral_constant<int, 2>());
    take(std::integral_constant<int, 1>());
  }
}

}  // namespace tessera::cpu
