// The inner loops of the pointwise interpreter: one function per (code, type), in one copy per
// instruction set. All copies compute the same bits.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace tessera::cpu {

/// Operands of one instruction on one block of n elements. Registers are dense arrays of float (for
/// float32 and 16-bit types), double, int64_t, int32_t or uint8_t (for uint8 and bool).
struct BlockArgs {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* out = nullptr;
  int64_t n = 0;
  int64_t row = 0;  ///< for a loop by rows: elements per row
};
using BlockFn = void (*)(const BlockArgs&);
/// out[r] = the reduction of row r of a; rows have n elements.
using RowFn = void (*)(const void* a, void* out, int64_t rows, int64_t n);
/// Which operand of a binary operation has one number per row.
enum class PerRow : uint8_t { a, b };

/// An operation of a chain on its value t. Binary ones take a register as second operand; rsub and
/// rdiv as first.
enum class Link : uint8_t { none, add, sub, rsub, mul, div, rdiv, square, sqrt, exp, affine };
/// A chain is one pass over its operands: t = (x + s0) r0, then `first` with y, then `second` with
/// z or, if that is affine, t = (t + s1) r1. If scaled, t = (t + s1) r1 comes before a binary
/// `second`, and the operands are y ry and z rz. Every operation is rounded as it would be alone.
/// The result is t of every element, or its sum over each row in the order of row_sum.
struct ChainShape {
  Link first = Link::none, second = Link::none;
  bool scaled = false, sum = false;
};
/// One number per row, `step` apart (0: one number for all), perhaps negated.
struct RowNumbers {
  const void* numbers = nullptr;  ///< null: neutral
  int64_t step = 0;
  bool negative = false;
};
struct ChainArgs {
  const void *x = nullptr, *y = nullptr, *z = nullptr;  ///< dense, rows * n elements
  RowNumbers s0, r0, ry, s1, r1, rz;
  void* out = nullptr;  ///< may be one of the operands
  int64_t rows = 0, n = 0;
};
using ChainFn = void (*)(const ChainArgs&);

/// Partial sums per row of softmax.
constexpr int64_t kRowLanes = 16;

struct BlockOps {
  const char* name;  ///< "base", "avx2", "avx512"
  /// The loop for `code` with operands (for where: the last one) of type `operand`; null if there
  /// is none.
  BlockFn (*find)(PointwiseOp code, DType operand, DType result);
  /// The same with one number per row for one operand; rows have BlockArgs::row elements.
  BlockFn (*find_by_rows)(PointwiseOp code, DType type, PerRow operand);
  /// The loop of a chain; null if there is none.
  ChainFn (*find_chain)(const ChainShape& shape, DType type);
  /// The loop of a row instruction; null if there is none.
  RowFn (*find_row)(PointwiseOp code, DType type);
  /// Conversion from a 16-bit type in memory to float, and back.
  BlockFn (*widen)(DType narrow);
  BlockFn (*narrow)(DType narrow);
  /// memcpy with non-temporal stores; _mm_sfence makes them visible to other threads.
  void (*stream)(void* to, const void* from, int64_t bytes);
  /// Words of Philox counters first, first + 1, ...: 4 * groups int64 values.
  void (*random)(int64_t* out, uint64_t first, uint64_t stream, uint64_t seed, int64_t groups);
  /// x = softmax(scale x) of a row of n > 0 elements, a multiple of kRowLanes. Returns the log of
  /// the sum of exp(scale x).
  float (*softmax_float)(float* x, int64_t n, float scale);
  double (*softmax_double)(double* x, int64_t n, double scale);
  /// For such a row of products x: x = exp(scale x - log_sum), at most 1, then g = scale x (g -
  /// inner).
  void (*attention_grad_float)(float* x, float* g, int64_t n, float scale, float log_sum,
                               float inner);
  void (*attention_grad_double)(double* x, double* g, int64_t n, double scale, double log_sum,
                                double inner);
};

extern const BlockOps kBaseOps;
extern const BlockOps kAvx2Ops;
extern const BlockOps kAvx512Ops;

/// The instruction sets that this processor can run, the best one last.
std::span<const BlockOps* const> usable_block_ops();

}  // namespace tessera::cpu
