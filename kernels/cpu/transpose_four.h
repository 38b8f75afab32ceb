// A transpose of four lines of four numbers in registers.
#pragma once

#include <cstdint>
#include <cstring>

namespace tessera::cpu {

typedef float FourFloats __attribute__((vector_size(16)));

/// terms[i]: term i of each of four lines, whose terms are one behind the other.
inline void transpose_four(const float* const* lines, FourFloats* terms) {
  FourFloats x[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&x[i], lines[i], sizeof(FourFloats));
  const FourFloats a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5),
                   b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5),
                   c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7),
                   d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  terms[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  terms[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  terms[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
  terms[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

/// Writes n terms of four lines as [term][line], `unit` elements from a term to the next.
inline void transpose_lines(const float* (&lines)[4], int64_t n, float* to, int64_t unit) {
  int64_t k = 0;
  for (; k + 4 <= n; k += 4, to += 4 * unit) {
    FourFloats terms[4];
    transpose_four(lines, terms);
    for (int i = 0; i < 4; ++i) std::memcpy(to + i * unit, &terms[i], sizeof(FourFloats));
    for (const float*& line : lines) line += 4;
  }
  for (; k < n; ++k, to += unit) {
    for (int i = 0; i < 4; ++i) to[i] = *lines[i]++;
  }
}

}  // namespace tessera::cpu
