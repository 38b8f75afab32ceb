// Helpers shared by attention, attention over a part of the keys, and ring attention.
#pragma once

#include <string>
#include <vector>

#include "ir/emit.h"
#include "tessera/op.h"
#include "tessera/ops.h"

namespace tessera {

/// Checks query, key and value (the first operands). The result has attended_shape() and query's
/// dtype.
std::vector<ValueType> infer_attention(const OpCall& call);

/// Attributes length, memory_length, key_dim, causal, scale. If there are any: window, soft_cap,
/// and segments = 1, which are then the last two operands. by_distance, the dim of the entries:
/// they are the operand before those. `slopes` = 1: they are the operand before all of these.
/// `prefix` = 1 and `sinks` = 1, of masked attention alone, say that these are the operands before,
/// in this order. If the value has a dim of its own in place of key_dim: value_dim. With dropout:
/// what dropout_attrs() has. A part may have `visible`: the share of its pairs of queries and keys
/// that a causal structure leaves to the rank which has most of them.
Attrs attention_attrs(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& options);
/// Checks window, segments, soft cap, prefix, sinks, slopes and biases by distance.
void require_structure(const Tensor& query, const AttentionOptions& options, Loc at);
/// The segments of queries and keys; nothing without them.
std::vector<Tensor> segments_of(const AttentionOptions& options);
/// The operands of segments at the end.
size_t segment_operands(const Attrs& attrs);
/// Those of slopes, biases by distance and segments, at the end of attention, attention_part and
/// attention_grad.
size_t structure_operands(const Attrs& attrs);
/// Those of the options: of slopes, as constants, and of biases by distance, both in the type of
/// sums, and of segments.
std::vector<Tensor> structure_of(const Tensor& query, const AttentionOptions& options);
/// Those of them that all positions share: slopes and biases by distance.
std::vector<Tensor> shared_structure(const std::vector<Tensor>& in, const Attrs& attrs);
/// attention() without mask, but with a prefix or sinks. `dropout`: dropout_attrs(), or none.
Tensor joined_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                        const AttentionOptions& options, const Attrs& dropout, Loc at);

/// The rate, and which random bits decide: those of the weights of all queries and keys, in
/// logit_shape(). `drawn_length` and `drawn_memory` name the dims of all queries and keys.
Attrs dropout_attrs(const std::vector<Tensor>& in, const Attrs& attrs, double rate);
void add(Attrs& to, const Attrs& more);
/// Which weights stay, [logit_shape()]; empty without dropout. Positions as of visible().
Tensor kept_weights(const std::vector<Tensor>& in, const Attrs& attrs,
                    const Tensor& query_start = {}, const Tensor& key_start = {});
/// x where `keep`, divided by the share that stays, else 0; x if `keep` is empty.
Tensor dropped(const Tensor& keep, const Tensor& x, const Attrs& attrs);
/// Whether window or segments may hide all keys from a query.
bool may_hide_all(const Attrs& attrs);

/// The dim of the values that the result has in place of key_dim: the attribute value_dim, or
/// key_dim.
const std::string& value_dim_of(const Attrs& attrs);
/// The result's shape for these shapes of query and value: the query's, if value_dim is key_dim.
Shape attended_shape(const Shape& query, const Shape& value, const Attrs& attrs);
/// [dims of the query without length and key_dim, length, memory_length].
Shape logit_shape(const std::vector<Tensor>& in, const Attrs& attrs);

/// Emits views over all factors, the factors of these dims, and where this rank's slices of
/// queries and keys begin.
void emit_attention(EmitCall& call);

/// Op::in_order of attention and its gradient. Few queries are cheaper by the definition.
bool attends_in_order(const OpCall& call, int64_t chunks);

/// Type of log_sum: query's shape without key_dim, float32 or float64.
ValueType sums_type(const OpCall& call);
void require_positions(const OpCall& call, size_t input, const char* what);

/// The operand that the attribute `name` (prefix, sinks, slopes or by_distance) tells of; empty if
/// it does not.
Tensor operand_of(const std::vector<Tensor>& in, const Attrs& attrs, const std::string& name);
/// The mask of keys that a query sees, or an empty Tensor if it sees all. query_start and
/// key_start: positions of the first query and key in the whole sequence; empty: 0. With
/// `key_start`, keys at positions from the attribute `memory` on are not seen.
Tensor visible(const std::vector<Tensor>& in, const Attrs& attrs, const Tensor& query_start = {},
               const Tensor& key_start = {});
/// logits where `seen`, else -1e30.
Tensor only_where(const Tensor& seen, const Tensor& logits);
/// The results of attention_part over the keys that are seen. `keep`: of kept_weights().
std::vector<Tensor> attention_where(const Tensor& seen, const Tensor& bias, const Tensor& keep,
                                    const std::vector<Tensor>& in, const Attrs& attrs);
/// Products of queries and keys, times the scale [logit_shape()].
Tensor scaled_products(const std::vector<Tensor>& in, const Attrs& attrs);
/// tanh(x / soft_cap) of scaled products.
Tensor squashed(const Tensor& products, const Attrs& attrs);
/// What slopes and biases by distance add to the logits, in the type of sums; empty without them.
/// Positions as of visible().
Tensor bias_of_positions(const std::vector<Tensor>& in, const Attrs& attrs,
                         const Tensor& query_start = {}, const Tensor& key_start = {});
/// The entries of the biases by distance, int32 [length, memory_length].
Tensor entries_of_positions(const std::vector<Tensor>& in, const Attrs& attrs,
                            const Tensor& query_start = {}, const Tensor& key_start = {});
/// The entries' gradient that a step has: the query's dims but length and key_dim, and the entries.
Shape entries_grad_shape(const std::vector<Tensor>& in, const Attrs& attrs);
/// Scaled products, capped if there is a cap, with a bias if it is given, masked by `seen` if that
/// is.
Tensor attention_logits(const std::vector<Tensor>& in, const Attrs& attrs, const Tensor& bias,
                        const Tensor& seen);

/// Gradients of the operands, for ops with the results {out, log_sum}. `starts`: empty, or
/// query_start, or query_start and key_start.
std::vector<Tensor> attention_gradients(const GradCall& call, const std::vector<Tensor>& starts);

/// Flops of products of size query length * key length, times key_dim or times the values' dim.
template <int of_keys, int of_values>
int64_t attention_flops(const OpCall& call) {
  const Shape &query = call.in[0].shape, &value = call.in[2].shape;
  const Dim& width = query.dim(call.attrs.get<std::string>("key_dim"));
  const int64_t columns =
      of_keys * width.size + of_values * value.dim(value_dim_of(call.attrs)).size;
  return 2 * columns * query.without({width.name}).elements() *
         value.dim(call.attrs.get<std::string>("memory_length")).size;
}

/// Operands: query, key, value. Results: {out, log_sum}.
extern const Op kAttention;
/// attention_part(). Operands: query, key, value, query_start, key_start.
extern const Op kAttentionPart;
/// Gradients of query, key and value, and, with biases by distance, of the entries
/// [entries_grad_shape()]. Operands: query, key, value; gradient of out; out; log_sum;
/// sum over the values' dim of gradient times out (libraries use out instead). Optional:
/// query_start if the queries are a part of all queries; key_start if the keys are a part of all
/// keys, whose number is the attribute `memory`. All three ops: then slopes, then biases by
/// distance, then segments of queries and keys, if there are any.
extern const Op kAttentionGrad;

/// Op::sharded_body of attention and its gradient. Where the same ranks have slices
/// of queries and keys: ring_attention(). Where they have slices of the queries and all keys, a
/// form that tells the kernel where the queries begin.
std::vector<Tensor> attention_sharded(const OpCall& call, const std::vector<Tensor>& in,
                                      const std::string& dim, const std::string& like,
                                      int64_t slices);
std::vector<Tensor> attention_grad_sharded(const OpCall& call, const std::vector<Tensor>& in,
                                           const std::string& dim, const std::string& like,
                                           int64_t slices);

/// Ring attention: keys and values pass round the ranks. `balanced`: see AttentionCut.
std::vector<Tensor> ring_attention(const OpCall& call, const std::vector<Tensor>& in,
                                   int64_t slices, bool balanced);
std::vector<Tensor> ring_attention_grad(const OpCall& call, const std::vector<Tensor>& in,
                                        int64_t slices, bool balanced);

}  // namespace tessera
