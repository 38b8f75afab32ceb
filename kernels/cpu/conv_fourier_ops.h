// The inner loops of convolution through the Fourier domain, compiled once per instruction set.
// A number is complex and a vector: kFourierLanes real parts and as many imaginary ones, of as many
// channels (and images), that are computed alike.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::cpu {

constexpr int64_t kFourierLanes = 16;
/// Floats of a complex vector that lies in the workspace: real parts, then imaginary ones.
constexpr int64_t kFourierVector = 2 * kFourierLanes;

/// Where a transform reads or writes its vectors: vector i has its real parts at re + offsets[i],
/// its imaginary ones at im + offsets[i]. An offset < 0: it is zero, and is not written.
struct FourierLine {
  float *re = nullptr, *im = nullptr;
  const int64_t* offsets = nullptr;

  /// The same with real and imaginary parts swapped: a transform between swapped lines is the
  /// inverse one, but for the factor 1 / n.
  FourierLine swapped() const { return {im, re, offsets}; }
};

/// The factors of a length, in the order of the passes, and the factors of unity between them.
struct FourierLength {
  static constexpr int kMostPasses = 4;
  int64_t n = 1;
  int passes = 1;
  int radix[kMostPasses] = {1, 1, 1, 1};
  const float* twiddles[kMostPasses] = {};  ///< [p < m][1 <= j < radix][re, im]
};

/// c[row] (+)= sum over k of a[row][k] b[k], where a has scalars and b and c vectors.
struct FourierProduct {
  int64_t rows = 0, sums = 0;
  const float* a = nullptr;
  int64_t a_row = 0, a_sum = 0, a_im = 0;  ///< a_im: from real to imaginary parts
  const float* b = nullptr;
  int64_t b_sum = 0, b_im = 0;
  float* c = nullptr;
  int64_t c_row = 0, c_im = 0;
};

struct FourierOps {
  /// `scratch`: 2 * n vectors.
  void (*transform)(const FourierLength& length, const FourierLine& in, const FourierLine& out,
                    float* scratch);
  /// Of z = x + i y of n complex numbers, with x and y real, the first n / 2 + 1 vectors of p are
  /// the transform's frequencies k, those of q its frequencies -k (but for 0 and n / 2, which are
  /// their own negatives). Makes of them twice the frequencies k of x in p and of y in q; those
  /// that are their own negatives `own` times.
  void (*separate)(float* p, float* q, int64_t n, float own);
  /// The inverse, but for the factors.
  void (*join)(float* p, float* q, int64_t n);
  void (*product)(const FourierProduct& p);
  /// Adds the product with the conjugate of b.
  void (*add_conjugate)(const FourierProduct& p);
};

extern const FourierOps kFourierBase;
extern const FourierOps kFourierAvx2;
extern const FourierOps kFourierAvx512;

/// The copies that this processor can run, the best one last.
std::span<const FourierOps* const> usable_fourier_ops();

}  // namespace tessera::cpu
