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

/// Of so many products of query and key length with key_dim.
template <int products>
int64_t attention_flops(const OpCall& call) {
  const int64_t n = 2 * products * call.in[0].shape.elements();
  return n * call.in[1].shape.dim(call.attrs.get<std::string>("memory_length")).size;
}

/// Query, key, value, gradient of the result; perhaps query_start.
extern const Op kAttentionGrad;
/// attention_part(): query, key, value, query_start, key_start.
extern const Op kAttentionPart;
/// Gradients of query, key and value in a part. Query, key, value, query_start, key_start, gradient
/// of the whole result, log_sum of the whole, gradient times whole result summed over key_dim.
extern const Op kAttentionPartGrad;

/// Op::by_slices of attention and its gradient: keys and values go round the ranks. Of the gradient
/// also where ranks have slices of the queries and all keys.
std::vector<Tensor> attention_by_slices(const OpCall& call, const std::vector<Tensor>& in,
                                        const std::string& dim, const std::string& like,
                                        int64_t slices);
std::vector<Tensor> attention_grad_by_slices(const OpCall& call, const std::vector<Tensor>& in,
                                             const std::string& dim, const std::string& like,
                                             int64_t slices);

}  // namespace tessera
