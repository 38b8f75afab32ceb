// How attention becomes a call of cuDNN's: from views and attributes only, so that the
// compile half (the workspace) and the run half come to the same plan.
#pragma once

#include <cstdint>
#include <string>

#include "program/program.h"

namespace tessera::cuda {

/// What the library has of a step: query, key, value, result, logarithms of sums, gradient of the
/// result, gradients of query, key and value.
enum AttentionSide {
  kQuerySide,
  kKeySide,
  kValueSide,
  kOutSide,
  kLogSumSide,
  kGradSide,
  kQueryGradSide,
  kKeyGradSide,
  kValueGradSide
};
constexpr int kAttentionSides = 9;
/// Spare: what a gradient's engine may want beyond attention_stored_bytes().
constexpr int64_t kAttentionAlign = 256, kAttentionSpare = 1 << 20;

struct AttentionPlan {
  std::string why_not;  ///< empty: the library can do it
  DType dtype = DType::bfloat16;
  bool backward = false, causal = false;
  double scale = 1;
  /// Grouped queries: heads / key_heads consecutive heads share a key head.
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, width = 1;
  struct Lie {
    int64_t batch = 0, head = 0, position = 0;  ///< strides in elements
  } lie[kAttentionSides];
  /// The library wants log_sum dense [batch, heads, queries]. Where it lies otherwise: so many
  /// bytes of a copy, and how the step has it.
  int64_t copied = 0;
  Lie own_log_sum;
  int64_t library = 0;    ///< bytes that the library may use
  int64_t workspace = 0;  ///< for the copy, then the library, from a multiple of kAttentionAlign on
};

/// `step` is "attention" or "attention_grad". What the library cannot do: types of more than 16
/// bits, parts of queries or keys under a causal mask, operands without rows that it can load, more
/// than two dims of batch and heads.
AttentionPlan plan_attention(const Step& step);

/// The operand of the step: inputs, then results; or -1.
int attention_operand(const AttentionPlan& plan, int side);

/// Bytes of the sums that the library's gradient keeps of every row, and of what it stores besides:
/// the gradients of the logits in tiles of 64 queries and 128 keys and, where heads share keys,
/// each head's gradients of keys and values.
constexpr int64_t attention_sums_bytes(int64_t batch, int64_t heads, int64_t queries) {
  return (batch * heads * queries * 4 + 255) / 256 * 256;
}
constexpr int64_t attention_stored_bytes(int64_t batch, int64_t heads, int64_t key_heads,
                                         int64_t queries, int64_t keys, int64_t width) {
  const int64_t logits = (queries + 63) / 64 * 64 * ((keys + 127) / 128 * 128);
  const int64_t shared = heads == key_heads ? 0 : 2 * keys * width;
  return batch * heads * (logits + shared) * 2 + 256;
}

/// True if the library may work on `parts` equal parts of the batch one after the other: the sums
/// of each part begin at a multiple of 16 bytes.
constexpr bool attention_may_part(int64_t batch, int64_t parts, int64_t heads, int64_t queries) {
  return batch % parts == 0 && (parts == 1 || batch / parts * heads * queries % 4 == 0);
}

}  // namespace tessera::cuda
