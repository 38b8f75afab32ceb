// What attention, attention of a part of the keys, and attention by slices share.
#pragma once

#include <string>
#include <vector>

#include "ir/emit.h"
#include "tessera/op.h"
#include "tessera/ops.h"

namespace tessera {

/// Query, key, value first: dims and dtypes. The result: query's type.
std::vector<ValueType> infer_attention(const OpCall& call);

/// length, memory_length, key_dim, causal, scale.
Attrs attention_attrs(const Tensor& query, const AttentionOptions& options);

/// [dims of the query without length and key_dim, length, memory_length].
Shape logit_shape(const std::vector<Tensor>& in, const Attrs& attrs);

/// Views over all factors, which of them are the three dims, and where a rank's slices of queries
/// and keys begin.
void emit_attention(EmitCall& call);

/// What a query's weights sum to: query's shape without key_dim, float32 or float64.
ValueType sums_type(const OpCall& call);
void require_positions(const OpCall& call, size_t input, const char* what);

/// Where a query sees a key, of the whole without positions of the first query and key; keys at
/// `memory` and beyond are not there, if `key_start` is given. Empty: everywhere.
Tensor visible(const std::vector<Tensor>& in, const Attrs& attrs, const Tensor& query_start = {},
               const Tensor& key_start = {});
/// -1e30 elsewhere.
Tensor only_where(const Tensor& seen, const Tensor& logits);
/// Scaled products of queries and keys [logit_shape()]; only where they are seen, if that is given.
Tensor attention_logits(const std::vector<Tensor>& in, const Attrs& attrs, const Tensor& seen);

/// {out, log_sum}: gradients of query, key and value. `starts`: query_start, then key_start, if
/// there are any.
std::vector<Tensor> attention_gradients(const GradCall& call, const std::vector<Tensor>& starts);

/// Of so many products of query and key length with key_dim.
template <int products>
int64_t attention_flops(const OpCall& call) {
  const int64_t n = 2 * products * call.in[0].shape.elements();
  return n * call.in[1].shape.dim(call.attrs.get<std::string>("memory_length")).size;
}

/// Query, key, value: {the result, log_sum}.
extern const Op kAttention;
/// attention_part(): query, key, value, query_start, key_start.
extern const Op kAttentionPart;
/// Gradients of query, key and value. Query, key, value, gradient of the whole result, that result
/// and its log_sum, gradient times result summed over key_dim (libraries take the result instead);
/// then query_start, if the queries are a part of them all, and key_start, if the keys are, with
/// how many there are in all as `memory`.
extern const Op kAttentionGrad;

/// Op::by_slices of attention and its gradient: keys and values go round the ranks. Of the gradient
/// also where ranks have slices of the queries and all keys.
std::vector<Tensor> attention_by_slices(const OpCall& call, const std::vector<Tensor>& in,
                                        const std::string& dim, const std::string& like,
                                        int64_t slices);
std::vector<Tensor> attention_grad_by_slices(const OpCall& call, const std::vector<Tensor>& in,
                                             const std::string& dim, const std::string& like,
                                             int64_t slices);

}  // namespace tessera
