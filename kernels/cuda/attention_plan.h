// How an attention step becomes a cuDNN call. Decided from views and attributes only, so that
// compiling (the workspace) and binding come to the same plan.
#pragma once

#include <cstdint>
#include <string>

#include "program/program.h"

namespace tessera::cuda {

/// The operands of the library: query, key, value, result, log_sum, gradient of the result,
/// gradients of query, key and value.
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
/// kAttentionSpare: what a gradient's engine may need beyond attention_stored_bytes().
constexpr int64_t kAttentionAlign = 256, kAttentionSpare = 1 << 20;

struct AttentionPlan {
  std::string why_not;  ///< empty: the library can do it
  DType dtype = DType::bfloat16;
  bool backward = false, causal = false;
  double scale = 1;
  /// heads / key_heads consecutive heads share a key head.
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, width = 1;
  struct Lie {
    int64_t batch = 0, head = 0, position = 0;  ///< strides in elements
  } lie[kAttentionSides];
  /// The library needs log_sum dense as [batch, heads, queries]. If the step's is not: the bytes of
  /// a copy, and the step's own strides.
  int64_t copied = 0;
  Lie own_log_sum;
  int64_t library = 0;    ///< bytes of workspace for the library
  int64_t workspace = 0;  ///< the copy, then (aligned to kAttentionAlign) the library's
};

/// `step` is "attention" or "attention_grad". Not supported by the library: types of more than 16
/// bits, parts of queries or keys under a causal mask, operands whose rows it cannot load, more
/// than two dims of batch and heads.
AttentionPlan plan_attention(const Step& step);

/// The index of the operand in the step (inputs, then results); -1: none.
int attention_operand(const AttentionPlan& plan, int side);

/// Workspace of the library's gradient: the sums that it keeps per row, and what else it stores:
/// the logit gradients in tiles of 64 queries and 128 keys and, if heads share keys, each head's
/// gradients of keys and values.
constexpr int64_t attention_sums_bytes(int64_t batch, int64_t heads, int64_t queries) {
  return (batch * heads * queries * 4 + 255) / 256 * 256;
}
constexpr int64_t attention_stored_bytes(int64_t batch, int64_t heads, int64_t key_heads,
                                         int64_t queries, int64_t keys, int64_t width) {
  const int64_t logits = (queries + 63) / 64 * 64 * ((keys + 127) / 128 * 128);
  const int64_t shared = heads == key_heads ? 0 : 2 * keys * width;
  return batch * heads * (logits + shared) * 2 + 256;
}

/// True if the batch may be computed in this many parts: the sums of each part must be aligned to
/// 16 bytes.
constexpr bool attention_may_part(int64_t batch, int64_t parts, int64_t heads, int64_t queries) {
  return batch % parts == 0 && (parts == 1 || batch / parts * heads * queries % 4 == 0);
}

}  // namespace tessera::cuda
