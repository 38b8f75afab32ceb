// Attention over a part of the keys, and the helpers of attention.h.
#include <algorithm>
#include <cmath>

#include "ir/source_ops.h"
#include "ops/attention.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/random.h"

namespace tessera {

namespace {
using Tensors = std::vector<Tensor>;
constexpr double kNothing = -1e30;  // log of the sum over no keys
}  // namespace

namespace {
/// `positions`: the dim that the segments have, which those of keys do not share with the query.
void require_segments(const ValueType& type, const Shape& query, const char* what,
                      const std::string& positions, const std::string& key_dim) {
  TESSERA_REQUIRE(type.dtype == DType::int32, "the {} are {}; they must be int32", what,
                  to_string(type.dtype));
  require_dims(type.shape, {positions}, what);
  for (const Dim& d : type.shape)
    TESSERA_REQUIRE(
        d.name == positions || (d.name != key_dim && query.has(d.name)),
        "the {} {} have the dim '{}'; they have '{}' and some dims of the query {} besides "
        "'{}'",
        what, type.shape.to_string(), d.name, positions, query.to_string(), key_dim);
}
}  // namespace

std::vector<ValueType> infer_attention(const OpCall& call) {
  const auto& length = call.attrs.get<std::string>("length");
  const auto& memory = call.attrs.get<std::string>("memory_length");
  const auto& key_dim = call.attrs.get<std::string>("key_dim");
  TESSERA_REQUIRE(is_floating(call.in[0].dtype), "the query is {}; it must be floating",
                  to_string(call.in[0].dtype));
  TESSERA_REQUIRE(call.in[1].dtype == call.in[0].dtype && call.in[2].dtype == call.in[0].dtype,
                  "query, key and value are {}, {} and {}; they must agree",
                  to_string(call.in[0].dtype), to_string(call.in[1].dtype),
                  to_string(call.in[2].dtype));
  require_same_sizes(call);
  require_dims(call.in[0].shape, {length, key_dim}, "query");
  require_dims(call.in[1].shape, {memory, key_dim}, "key");
  require_dims(call.in[2].shape, {memory, value_dim_of(call.attrs)}, "value");
  TESSERA_REQUIRE(!call.in[0].shape.has(memory),
                  "the query has the key dim '{}'; rename its position dim '{}'", memory, length);
  if (segment_operands(call.attrs) > 0) {
    const size_t own = call.in.size() - 2;
    require_segments(call.in[own], call.in[0].shape, "segments", length, key_dim);
    require_segments(call.in[own + 1], call.in[0].shape, "memory_segments", memory, key_dim);
  }
  return {{attended_shape(call.in[0].shape, call.in[2].shape, call.attrs), call.in[0].dtype}};
}

namespace {
/// The only dim that the value alone has, if it lacks key_dim; else "".
std::string own_dim(const Shape& query, const Shape& key, const Shape& value,
                    const AttentionOptions& o) {
  std::string own;
  for (const Dim& d : value) {
    if (d.name == o.memory_length || query.has(d.name) || key.has(d.name)) continue;
    if (!own.empty()) return {};
    own = d.name;
  }
  return value.has(o.key_dim) ? "" : own;
}

/// The dim of the entries by distance.
std::string entries_dim(const Tensor& query, const Tensor& key, const Tensor& value,
                        const AttentionOptions& o) {
  const Shape own = o.by_distance.shape()
                        .without(query.shape().names())
                        .without(key.shape().names())
                        .without(value.shape().names());
  TESSERA_REQUIRE(
      own.rank() == 1 && own[0].size % 2 == 1,
      "the biases by distance are {}: besides dims of the query {} they have one of their own, "
      "with an odd number of entries, one for distance 0 and as many for keys behind the query "
      "as ahead of it",
      o.by_distance.shape().to_string(), query.shape().to_string());
  return own[0].name;
}
}  // namespace

const std::string& value_dim_of(const Attrs& attrs) {
  return attrs.get<std::string>(attrs.has("value_dim") ? "value_dim" : "key_dim");
}

Shape attended_shape(const Shape& query, const Shape& value, const Attrs& attrs) {
  const std::string& own = value_dim_of(attrs);
  if (query.has(own)) return query;
  return query.without({attrs.get<std::string>("key_dim")}).united(Shape{value.dim(own)});
}

Attrs attention_attrs(const Tensor& query, const Tensor& key, const Tensor& value,
                      const AttentionOptions& o) {
  const int d = query.shape().find(o.key_dim);
  const double scale = o.scale != 0 ? o.scale
                       : d < 0      ? 1
                                    : 1 / std::sqrt(static_cast<double>(query.shape()[d].size));
  Attrs attrs = {{"length", o.length},
                 {"memory_length", o.memory_length},
                 {"key_dim", o.key_dim},
                 {"causal", int64_t{o.causal}},
                 {"scale", scale}};
  // Positions are int32, and a larger window hides no key either.
  if (o.window) attrs.set("window", std::min(*o.window, int64_t{1} << 30));
  if (o.soft_cap > 0) attrs.set("soft_cap", o.soft_cap);
  if (!o.segments.empty()) attrs.set("segments", int64_t{1});
  if (!o.slopes.empty()) attrs.set("slopes", int64_t{1});
  if (!o.by_distance.empty()) attrs.set("by_distance", entries_dim(query, key, value, o));
  const std::string own = own_dim(query.shape(), key.shape(), value.shape(), o);
  if (!own.empty()) attrs.set("value_dim", own);
  return attrs;
}

void require_structure(const Tensor& query, const AttentionOptions& o, Loc at) {
  TESSERA_REQUIRE(!o.window || *o.window >= 1,
                  "[attention] a window of {} keys; a query sees at least itself: 1 or more ({})",
                  o.window.value_or(0), where(at));
  TESSERA_REQUIRE(o.soft_cap >= 0 && std::isfinite(o.soft_cap),
                  "[attention] a soft cap of {}; it is positive and finite, or 0 for none ({})",
                  o.soft_cap, where(at));
  TESSERA_REQUIRE(std::isfinite(o.scale),
                  "[attention] a scale of {}; it is finite, or 0 for 1 / sqrt(size of '{}') ({})",
                  o.scale, o.key_dim, where(at));
  const auto require_positions = [&](const Tensor& ids, const std::string& dim, const char* what) {
    TESSERA_REQUIRE(
        ids.empty() || ids.shape().has(dim),
        "[attention] the segments of the {} {} lack the dim '{}': each position has its own "
        "({})",
        what, ids.empty() ? "" : ids.shape().to_string(), dim, where(at));
  };
  require_positions(o.segments, o.length, "queries");
  require_positions(o.memory_segments, o.memory_length, "keys");
  const auto require_of_query = [&](const Tensor& t, const char* what, bool integer) {
    if (t.empty()) return;
    TESSERA_REQUIRE(integer ? t.dtype() == DType::int32 : is_floating(t.dtype()),
                    "[attention] {} {}; they must be {} ({})", what, to_string(t.dtype()),
                    integer ? "int32" : "floating", where(at));
    for (const Dim& d : t.shape())
      TESSERA_REQUIRE(
          d.name != o.length && d.name != o.memory_length && d.name != o.key_dim,
          "[attention] {} {}: they have dims of the query {} besides '{}' and '{}' ({})", what,
          t.shape().to_string(), query.shape().to_string(), o.length, o.key_dim, where(at));
  };
  require_of_query(o.prefix, "the sizes of prefixes are", true);
  require_of_query(o.sinks, "the sinks are", false);
  require_of_query(o.slopes, "the slopes are", false);
  require_of_query(o.by_distance, "the biases by distance are", false);
  TESSERA_REQUIRE(
      o.prefix.empty() || o.causal,
      "[attention] there is a prefix {}, but attention is not causal: every query sees all keys "
      "without it ({})",
      o.prefix.empty() ? "" : o.prefix.shape().to_string(), where(at));
  TESSERA_REQUIRE(
      o.memory_segments.empty() || !o.segments.empty(),
      "[attention] there are memory_segments {}, but no segments of the queries {} ({})",
      o.memory_segments.empty() ? "" : o.memory_segments.shape().to_string(),
      query.shape().to_string(), where(at));
}

Tensors segments_of(const AttentionOptions& o) {
  if (o.segments.empty()) return {};
  return {o.segments, o.memory_segments.empty() ? rename(o.segments, o.length, o.memory_length)
                                                : o.memory_segments};
}

size_t segment_operands(const Attrs& attrs) {
  return attrs.get<int64_t>("segments", 0) != 0 ? 2 : 0;
}

size_t structure_operands(const Attrs& attrs) {
  return segment_operands(attrs) + attrs.has("slopes") + attrs.has("by_distance");
}

Tensors structure_of(const Tensor& query, const AttentionOptions& o) {
  Tensors all;
  const DType dtype = is_narrow(query.dtype()) ? DType::float32 : query.dtype();
  if (!o.slopes.empty()) all.push_back(narrow(stop_gradient(o.slopes), dtype));
  if (!o.by_distance.empty()) all.push_back(narrow(o.by_distance, dtype));
  for (const Tensor& t : segments_of(o)) all.push_back(t);
  return all;
}

Tensors shared_structure(const Tensors& in, const Attrs& attrs) {
  return {in.end() - static_cast<std::ptrdiff_t>(structure_operands(attrs)),
          in.end() - static_cast<std::ptrdiff_t>(segment_operands(attrs))};
}

Tensor operand_of(const Tensors& in, const Attrs& attrs, const std::string& name) {
  size_t at = in.size() - segment_operands(attrs);
  for (const char* known : {"by_distance", "slopes", "sinks", "prefix"}) {
    at -= attrs.has(known);
    if (name == known) return attrs.has(known) ? in[at] : Tensor();
  }
  return {};
}

bool may_hide_all(const Attrs& attrs) { return attrs.has("window") || segment_operands(attrs) > 0; }

Shape logit_shape(const std::vector<Tensor>& in, const Attrs& attrs) {
  const auto& length = attrs.get<std::string>("length");
  const Shape rest = in[0].shape().without({length, attrs.get<std::string>("key_dim")});
  std::vector<Dim> dims = rest.dims();
  dims.push_back(in[0].dim(length));
  dims.push_back(in[1].dim(attrs.get<std::string>("memory_length")));
  return Shape(dims);
}

bool attends_in_order(const OpCall& call, int64_t chunks) {
  constexpr int64_t kFewQueries = 12;
  if (call.in[0].shape.dim(call.attrs.get<std::string>("length")).size < kFewQueries) return false;
  if (&call.op != &kAttentionGrad) return true;
  if (call.attrs.has("by_distance")) return false;  // the entries' gradient is a sum of its own
  // Heads that share keys are the outer dims of a sum, of one element a chunk.
  const Shape shared = call.in[0].shape.without(call.in[1].shape.names());
  return std::all_of(shared.begin(), shared.end(), [&](const Dim& d) {
    return d.size <= chunks || d.name == call.attrs.get<std::string>("length");
  });
}

ValueType sums_type(const OpCall& call) {
  const DType dtype = call.in[0].dtype;
  return {call.in[0].shape.without({call.attrs.get<std::string>("key_dim")}),
          is_narrow(dtype) ? DType::float32 : dtype};
}

void require_positions(const OpCall& call, size_t input, const char* what) {
  const ValueType& type = call.in.at(input);
  const auto& length = call.attrs.get<std::string>("length");
  const auto& key_dim = call.attrs.get<std::string>("key_dim");
  TESSERA_REQUIRE(type.dtype == DType::int32, "{} is {}; it must be int32", what,
                  to_string(type.dtype));
  for (const Dim& d : type.shape)
    TESSERA_REQUIRE(d.name != length && d.name != key_dim && call.in[0].shape.has(d.name),
                    "{} has dim '{}'; it has some dims of the query {} besides '{}' and '{}'", what,
                    d.name, call.in[0].shape.to_string(), length, key_dim);
}

Tensor visible(const Tensors& in, const Attrs& attrs, const Tensor& query_start,
               const Tensor& key_start) {
  Graph& g = in[0].graph();
  Tensor key = iota(g, in[1].dim(attrs.get<std::string>("memory_length"))), seen;
  const auto also = [&](const Tensor& t) { seen = seen.empty() ? t : logical_and(seen, t); };
  const auto number = [&](int64_t n) { return constant(g, static_cast<double>(n), DType::int32); };
  if (!key_start.empty()) {
    key = key_start + key;
    also(key < number(attrs.get<int64_t>("memory")));
  }
  const bool causal = attrs.get<int64_t>("causal") != 0;
  const int64_t window = attrs.get<int64_t>("window", 0);
  if (causal || window > 0) {
    Tensor query = iota(g, in[0].dim(attrs.get<std::string>("length")));
    if (!query_start.empty()) query = query_start + query;
    if (causal) also(query >= key);
    if (window > 0) also(query - key < number(window));
    if (window > 0 && !causal) also(key - query < number(window));
    if (const Tensor prefix = operand_of(in, attrs, "prefix"); !prefix.empty())
      seen = logical_or(seen, key < prefix);
  }
  if (segment_operands(attrs) > 0) {
    const Tensor &own = in[in.size() - 2], &theirs = in.back();
    also(logical_and(equal(own, theirs), not_equal(theirs, number(0))));
  }
  return seen;
}

// Masked logits are a large negative finite number: a row without any key gets uniform weights, not
// NaN.
Tensor only_where(const Tensor& seen, const Tensor& logits) {
  return where(seen, logits, constant(logits.graph(), kNothing, logits.dtype()));
}

Tensor scaled_products(const Tensors& in, const Attrs& attrs) {
  return wide(einsum({with_range(in[0]), with_range(in[1])}, logit_shape(in, attrs))) *
         attrs.get<double>("scale");
}

Tensor squashed(const Tensor& products, const Attrs& attrs) {
  return tanh(products / attrs.get<double>("soft_cap"));
}

namespace {
/// The position of each query minus that of each key, int32.
Tensor distances(const Tensors& in, const Attrs& attrs, const Tensor& query_start,
                 const Tensor& key_start) {
  Graph& g = in[0].graph();
  Tensor query = iota(g, in[0].dim(attrs.get<std::string>("length"))),
         key = iota(g, in[1].dim(attrs.get<std::string>("memory_length")));
  if (!query_start.empty()) query = query_start + query;
  if (!key_start.empty()) key = key_start + key;
  return query - key;
}
}  // namespace

Tensor entries_of_positions(const Tensors& in, const Attrs& attrs, const Tensor& query_start,
                            const Tensor& key_start) {
  const Tensor entries = operand_of(in, attrs, "by_distance");
  const int64_t most = entries.dim(attrs.get<std::string>("by_distance")).size / 2;
  const auto number = [&](int64_t n) {
    return constant(entries.graph(), static_cast<double>(n), DType::int32);
  };
  const Tensor behind = distances(in, attrs, query_start, key_start);
  return minimum(maximum(behind, number(-most)), number(most)) + number(most);
}

Tensor bias_of_positions(const Tensors& in, const Attrs& attrs, const Tensor& query_start,
                         const Tensor& key_start) {
  const Tensor slopes = operand_of(in, attrs, "slopes"),
               entries = operand_of(in, attrs, "by_distance");
  Tensor bias;
  if (!slopes.empty())
    bias = neg(slopes * abs(cast(distances(in, attrs, query_start, key_start), slopes.dtype())));
  if (entries.empty()) return bias;
  const Tensor at = entries_of_positions(in, attrs, query_start, key_start),
               own = gather(entries, at, attrs.get<std::string>("by_distance"));
  return bias.empty() ? own : bias + own;
}

Shape entries_grad_shape(const Tensors& in, const Attrs& attrs) {
  const auto& entries = attrs.get<std::string>("by_distance");
  return in[0]
      .shape()
      .without({attrs.get<std::string>("length"), attrs.get<std::string>("key_dim")})
      .united(Shape{operand_of(in, attrs, "by_distance").dim(entries)});
}

void add(Attrs& to, const Attrs& more) {
  for (const auto& [name, value] : more.items()) to.set(name, value);
}

Attrs dropout_attrs(const Tensors& in, const Attrs& attrs, double rate) {
  Graph& g = in[0].graph();
  Attrs drawn = drawn_attrs(g, logit_shape(in, attrs), new_stream(g));
  drawn.set("dropout", rate);
  drawn.set("drawn_length", attrs.get<std::string>("length"));
  drawn.set("drawn_memory", attrs.get<std::string>("memory_length"));
  return drawn;
}

// A part of the queries or keys takes its rows and columns of what is drawn for all of them. Only
// a device without the kernel draws as much.
Tensor kept_weights(const Tensors& in, const Attrs& attrs, const Tensor& query_start,
                    const Tensor& key_start) {
  if (!attrs.has("dropout")) return {};
  Graph& g = in[0].graph();
  const double rate = attrs.get<double>("dropout");
  const Shape shape = logit_shape(in, attrs);
  if (query_start.empty()) return kept_by(g, shape, rate, attrs, Loc::current());
  const auto &length = attrs.get<std::string>("drawn_length"),
             &memory = attrs.get<std::string>("drawn_memory");
  Attrs drawn = attrs;
  auto names = attrs.get<std::vector<std::string>>("drawn_dims");
  for (std::string& name : names) {
    if (name == length || name == memory) name = "all/" + name;  // these lie on every rank
  }
  drawn.set("drawn_dims", names);
  const Shape all = drawn_shape(drawn).without(attrs.get<std::vector<std::string>>("repeat_dims"));
  Tensor keep = kept_by(g, all, rate, drawn, Loc::current());
  const auto take = [&](const std::string& whole, const Dim& own, const Tensor& start) {
    const Tensor at = start.empty() ? iota(g, own) : start + iota(g, own);
    keep = gather(keep, at, "all/" + whole, OutOfRange::clamp);
  };
  take(memory, in[1].dim(attrs.get<std::string>("memory_length")), key_start);
  take(length, in[0].dim(attrs.get<std::string>("length")), query_start);
  return transpose(keep, shape);
}

Tensor dropped(const Tensor& keep, const Tensor& x, const Attrs& attrs) {
  return keep.empty() ? x : dropout_where(keep, x, attrs.get<double>("dropout"));
}

Tensor attention_logits(const Tensors& in, const Attrs& attrs, const Tensor& bias,
                        const Tensor& seen) {
  Tensor logits = scaled_products(in, attrs);
  if (attrs.has("soft_cap")) logits = squashed(logits, attrs) * attrs.get<double>("soft_cap");
  if (!bias.empty()) logits = logits + bias;
  return seen.empty() ? logits : only_where(seen, logits);
}

namespace {
/// For dropout: expressions of the keys, then pairs of an offset and what a step of it adds; and
/// what a step along each dim of the views adds. The kernel knows the positions.
void emit_drawn(EmitCall& call) {
  const Attrs& attrs = call.call.attrs;
  const Shape bits = drawn_shape(attrs);
  const auto& repeats = attrs.get<std::vector<std::string>>("repeat_dims");
  std::vector<int64_t> strides(call.space.factors.size(), 0);
  std::vector<int> factors;
  for (const Dim& d : bits) {
    const bool is_length = d.name == attrs.get<std::string>("drawn_length"),
               is_memory = d.name == attrs.get<std::string>("drawn_memory"),
               is_repeat = std::find(repeats.begin(), repeats.end(), d.name) != repeats.end();
    factors.push_back(is_repeat ? -1
                                : call.factor(is_length   ? attrs.get<std::string>("length")
                                              : is_memory ? attrs.get<std::string>("memory_length")
                                                          : d.name));
  }
  const auto offset = [&](int d) {
    const bool is_position = bits[d].name == attrs.get<std::string>("drawn_length") ||
                             bits[d].name == attrs.get<std::string>("drawn_memory");
    const int factor = factors[static_cast<size_t>(d)];
    return factor < 0 || is_position ? AffineExpr{} : call.offset[static_cast<size_t>(factor)];
  };
  add_drawn_keys(call);
  const std::vector<DrawnDim> dims = drawn_dims(call, bits, offset);
  for (size_t d = 0; d < dims.size(); ++d) {
    AffineExpr step;
    step.constant = dims[d].stride;
    call.step.exprs.push_back(dims[d].offset);
    call.step.exprs.push_back(step);
    if (factors[d] >= 0) strides[static_cast<size_t>(factors[d])] = dims[d].stride;
  }
  call.step.as<AttentionSpec>().drawn_strides = std::move(strides);
}
}  // namespace

void emit_attention(EmitCall& call) {
  emit_aligned(call);
  const Attrs& attrs = call.call.attrs;
  const auto dim = [&](const char* name) {
    return attrs.has(name) ? call.factor(attrs.get<std::string>(name)) : -1;
  };
  AttentionSpec& spec = call.step.spec.emplace<AttentionSpec>();
  spec.length = dim("length");
  spec.memory_length = dim("memory_length");
  spec.key_dim = dim("key_dim");
  spec.value_dim = dim("value_dim");
  spec.by_distance = dim("by_distance");
  spec.causal = attrs.get<int64_t>("causal") != 0;
  spec.scale = attrs.get<double>("scale");
  spec.memory = attrs.get<int64_t>("memory", 0);
  spec.window = attrs.get<int64_t>("window", 0);
  spec.segments = segment_operands(attrs) > 0;
  spec.slopes = attrs.get<int64_t>("slopes", 0) != 0;
  spec.soft_cap = attrs.get<double>("soft_cap", 0);
  spec.visible = attrs.get<double>("visible", -1);
  spec.dropout = attrs.get<double>("dropout", 0);
  for (const char* dim : {"length", "memory_length"})
    call.step.exprs.push_back(call.offset[call.factor(attrs.get<std::string>(dim))]);
  if (attrs.has("dropout")) emit_drawn(call);
}

namespace {

std::vector<ValueType> infer_part(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  require_positions(call, 3, "query_start");
  require_positions(call, 4, "key_start");
  result.push_back(sums_type(call));
  return result;
}

Tensors part_body(const Tensors& in, const Attrs& attrs) {
  return attention_where(visible(in, attrs, in[3], in[4]),
                         bias_of_positions(in, attrs, in[3], in[4]),
                         kept_weights(in, attrs, in[3], in[4]), in, attrs);
}

Tensors part_gradient(const GradCall& call) {
  const auto operands = call.in.begin() + 3;
  return attention_gradients(call, {operands, operands + 2});
}

}  // namespace

Tensors attention_where(const Tensor& sees, const Tensor& bias, const Tensor& keep,
                        const Tensors& in, const Attrs& attrs) {
  const auto& memory = attrs.get<std::string>("memory_length");
  const Tensor seen = broadcast(sees, logit_shape(in, attrs)),
               x = attention_logits(in, attrs, bias, seen),
               zero = constant(x.graph(), 0, x.dtype());
  const Tensor most = reduce_max(x, memory);
  const Tensor weights = where(seen, exp(x - most), zero);
  const Tensor sum = reduce_sum(weights, memory);
  const Tensor some = sum > zero;
  const Tensor divisor = where(some, sum, constant(x.graph(), 1, x.dtype()));
  return {einsum({narrow(dropped(keep, weights / divisor, attrs), in[0].dtype()), in[2]},
                 attended_shape(in[0].shape(), in[2].shape(), attrs)),
          transpose(where(some, most + log(divisor), constant(x.graph(), kNothing, x.dtype())),
                    in[0].shape().without({attrs.get<std::string>("key_dim")}))};
}

extern const Op kAttentionPart = {.name = "attention_part",
                                  .infer = infer_part,
                                  .zero_padding = 0b111100000,
                                  .gradient = part_gradient,
                                  .flops = attention_flops<1, 1>,
                                  .body = part_body,
                                  .kernel = KernelKind::attention_part,
                                  .emit = emit_attention,
                                  .in_order = attends_in_order};
AttentionPart attention_part(Tensor query, Tensor key, Tensor value, Tensor query_start,
                             Tensor key_start, int64_t memory_size, const AttentionOptions& o,
                             Loc at) {
  return on_behalf_of("attention_part", at, [&]() -> AttentionPart {
    TESSERA_REQUIRE(o.dropout == 0,
                    "[attention_part] there is no dropout of a part; attention() has it");
    TESSERA_REQUIRE(o.prefix.empty() && o.sinks.empty(),
                    "[attention_part] a part has no {} of its own; attention() has them ({})",
                    o.prefix.empty() ? "sinks" : "prefix", where(at));
    TESSERA_REQUIRE(memory_size >= 1, "[attention_part] {} keys in all; there is at least one ({})",
                    memory_size, where(at));
    require_structure(query, o, at);
    Attrs attrs = attention_attrs(query, key, value, o);
    attrs.set("memory", memory_size);
    Tensors in = {query, key, value, query_start, key_start};
    for (const Tensor& t : structure_of(query, o)) in.push_back(t);
    const Tensors out = query.graph().add(kAttentionPart, in, std::move(attrs), at);
    return {out[0], out[1]};
  });
}

AttentionPart join(const AttentionPart& a, const AttentionPart& b) {
  const Tensor most = maximum(a.log_sum, b.log_sum);
  const Tensor x = exp(a.log_sum - most), y = exp(b.log_sum - most), sum = x + y;
  const Tensor out = wide(a.out) * (x / sum) + wide(b.out) * (y / sum);
  return {narrow(out, a.out.dtype()), most + log(sum)};
}

}  // namespace tessera
