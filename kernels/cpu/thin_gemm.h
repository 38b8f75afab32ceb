// Products with a matrix of few rows or columns, as the steps of a decoder have them: each element
// of the other one is used a few times, so that reading it takes the time.
#pragma once

#include <cstdint>
#include <span>

#include "base/float16.h"
#include "kernels/common/gemm.h"

namespace tessera::cpu {

using kernels::Gemm;

constexpr int64_t kFewRows = 8;

/// True for products that thin_gemm() takes: at most 8 rows or at most 8 columns, at least 16
/// terms, and both operands are dense along these, or the large one along its own rows or columns.
bool is_thin(const Gemm& g);

/// c += a b, or c = a b if `overwrite`, accumulated in float32. The order of a sum depends on the
/// number of terms and on which of the two forms it is: 16 lanes, or one term after the other.
void thin_gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite);
void thin_gemm(const Gemm& g, const BFloat16* a, const BFloat16* b, float* c, bool overwrite);
/// c = a b, rounded once.
void thin_gemm(const Gemm& g, const BFloat16* a, const BFloat16* b, BFloat16* c);

/// The loops of one instruction set. Rows of a are few.
struct ThinOps {
  const char* name;
  void (*float32)(const Gemm& g, const float* a, const float* b, float* c, bool overwrite);
  void (*bfloat16)(const Gemm& g, const BFloat16* a, const BFloat16* b, float* c, bool overwrite);
  void (*rounded)(const Gemm& g, const BFloat16* a, const BFloat16* b, BFloat16* c);
};

extern const ThinOps kThinBaseOps;
extern const ThinOps kThinAvx2Ops;
extern const ThinOps kThinAvx512Ops;

/// The instruction sets that this processor can run, the best one last.
std::span<const ThinOps* const> usable_thin_ops();

}  // namespace tessera::cpu
