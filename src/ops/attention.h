// Helpers shared by attention, attention over a part of the keys, and ring attention.
#pragma once

#include <string>
#include <vector>

#include "ir/emit.h"
#include "tessera/op.h"
#include "tessera/ops.h"

namespace tessera {

/// Checks query, key and value (the first operands). The result has query's type.
std::vector<ValueType> infer_attention(const OpCall& call);

/// Attributes length, memory_length, key_dim, causal, scale. If there are any: window, soft_cap,
/// and segments = 1, which are then the last two operands. A part may have `visible`: the share of
/// its pairs of queries and keys that a causal structure leaves to the rank which has most of them.
Attrs attention_attrs(const Tensor& query, const AttentionOptions& options);
/// Checks window, segments and soft cap.
void require_structure(const Tensor& query, const AttentionOptions& options, Loc at);
/// The segments of queries and keys; nothing without them.
std::vector<Tensor> segments_of(const AttentionOptions& options);
/// The operands of segments at the end.
size_t segment_operands(const Attrs& attrs);
/// Whether window or segments may hide all keys from a query.
bool may_hide_all(const Attrs& attrs);

/// [dims of the query without length and key_dim, length, memory_length].
Shape logit_shape(const std::vector<Tensor>& in, const Attrs& attrs);

/// Emits views over all factors, the factors of the three dims, and where this rank's slices of
/// queries and keys begin.
void emit_attention(EmitCall& call);

/// Type of log_sum: query's shape without key_dim, float32 or float64.
ValueType sums_type(const OpCall& call);
void require_positions(const OpCall& call, size_t input, const char* what);

/// The mask of keys that a query sees, or an empty Tensor if it sees all. query_start and
/// key_start: positions of the first query and key in the whole sequence; empty: 0. With
/// `key_start`, keys at positions from the attribute `memory` on are not seen.
Tensor visible(const std::vector<Tensor>& in, const Attrs& attrs, const Tensor& query_start = {},
               const Tensor& key_start = {});
/// logits where `seen`, else -1e30.
Tensor only_where(const Tensor& seen, const Tensor& logits);
/// The results of attention_part over the keys that are seen.
std::vector<Tensor> attention_where(const Tensor& seen, const std::vector<Tensor>& in,
                                    const Attrs& attrs);
/// Products of queries and keys, times the scale [logit_shape()].
Tensor scaled_products(const std::vector<Tensor>& in, const Attrs& attrs);
/// tanh(x / soft_cap) of scaled products.
Tensor squashed(const Tensor& products, const Attrs& attrs);
/// Scaled products, capped if there is a cap, masked by `seen` if it is given.
Tensor attention_logits(const std::vector<Tensor>& in, const Attrs& attrs, const Tensor& seen);

/// Gradients of query, key and value, for ops with the results {out, log_sum}. `starts`: empty, or
/// query_start, or query_start and key_start.
std::vector<Tensor> attention_gradients(const GradCall& call, const std::vector<Tensor>& starts);

/// Flops of `products` products of size query length * key length * key_dim.
template <int products>
int64_t attention_flops(const OpCall& call) {
  const int64_t n = 2 * products * call.in[0].shape.elements();
  return n * call.in[1].shape.dim(call.attrs.get<std::string>("memory_length")).size;
}

/// Operands: query, key, value. Results: {out, log_sum}.
extern const Op kAttention;
/// attention_part(). Operands: query, key, value, query_start, key_start.
extern const Op kAttentionPart;
/// Gradients of query, key and value. Operands: query, key, value; gradient of out; out; log_sum;
/// sum over key_dim of gradient times out (libraries use out instead). Optional: query_start if the
/// queries are a part of all queries; key_start if the keys are a part of all keys, whose number is
/// the attribute `memory`. All three ops: then segments of queries and keys, if there are any.
extern const Op kAttentionGrad;

/// Op::by_slices of attention and its gradient. Where the same ranks have slices
/// of queries and keys: ring_attention(). Where they have slices of the queries and all keys, a
/// form that tells the kernel where the queries begin.
std::vector<Tensor> attention_by_slices(const OpCall& call, const std::vector<Tensor>& in,
                                        const std::string& dim, const std::string& like,
                                        int64_t slices);
std::vector<Tensor> attention_grad_by_slices(const OpCall& call, const std::vector<Tensor>& in,
                                             const std::string& dim, const std::string& like,
                                             int64_t slices);

/// Ring attention: keys and values pass round the ranks. `balanced`: see AttentionCut.
std::vector<Tensor> ring_attention(const OpCall& call, const std::vector<Tensor>& in,
                                   int64_t slices, bool balanced);
std::vector<Tensor> ring_attention_grad(const OpCall& call, const std::vector<Tensor>& in,
                                        int64_t slices, bool balanced);

}  // namespace tessera
