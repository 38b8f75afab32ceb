// Rows of the composites: softmax, norms, losses, attention; each with a formula of its own.
#include <algorithm>
#include <cmath>

#include "ops/op_cases.h"
#include "tessera/nn_attention.h"
#include "tessera/nn_linear_cross_entropy.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;
using Wholes = std::vector<Whole>;

const Dim a("a", 5), b("b", 6), c("c", 4), n("n", 7);

/// Rows of x along `axes`: visit(indices into data of one row).
template <class Visit>
void each_row(const Whole& x, const std::vector<std::string>& axes, Visit visit) {
  std::map<std::vector<int64_t>, std::vector<int64_t>> rows;
  int64_t i = 0;
  each_index(x.sizes, [&](const std::vector<int64_t>& index) {
    std::vector<int64_t> key;
    for (size_t d = 0; d < index.size(); ++d) {
      if (std::find(axes.begin(), axes.end(), x.dims[d]) == axes.end()) key.push_back(index[d]);
    }
    rows[key].push_back(i++);
  });
  for (const auto& [key, row] : rows) visit(row);
}

Whole softmax_of(const Whole& x, const std::vector<std::string>& axes, bool logarithm) {
  Whole y = x;
  each_row(x, axes, [&](const std::vector<int64_t>& row) {
    double top = -INFINITY, sum = 0;
    for (int64_t i : row) top = std::max(top, x.data[i]);
    for (int64_t i : row) sum += std::exp(x.data[i] - top);
    for (int64_t i : row) {
      const double l = x.data[i] - top - std::log(sum);
      y.data[i] = logarithm ? l : std::exp(l);
    }
  });
  return y;
}

Whole norm_of(const Wholes& in, const std::string& dim, double eps, bool center) {
  Whole y = in[0];
  each_row(in[0], {dim}, [&](const std::vector<int64_t>& row) {
    double mean = 0, var = 0;
    for (int64_t i : row) mean += in[0].data[i] / double(row.size());
    if (!center) mean = 0;
    for (int64_t i : row) var += std::pow(in[0].data[i] - mean, 2) / double(row.size());
    for (size_t k = 0; k < row.size(); ++k) {
      y.data[row[k]] = (in[0].data[row[k]] - mean) / std::sqrt(var + eps) * in[1].data[k] +
                       (center ? in[2].data[k] : 0);
    }
  });
  return y;
}

Whole batch_norm_of(const Wholes& in, const std::vector<std::string>& axes, double eps) {
  Whole y = in[0];
  size_t k = 0;
  each_row(in[0], axes, [&](const std::vector<int64_t>& row) {
    double mean = 0, var = 0;
    for (int64_t i : row) mean += in[0].data[i] / double(row.size());
    for (int64_t i : row) var += std::pow(in[0].data[i] - mean, 2) / double(row.size());
    for (int64_t i : row)
      y.data[i] = (in[0].data[i] - mean) / std::sqrt(var + eps) * in[1].data[k] + in[2].data[k];
    ++k;
  });
  return y;
}

OpCase normalized(const std::string& name, CaseInput x, std::vector<std::string> axes,
                  bool logarithm) {
  OpCase row{name, {std::move(x)}, {"a", "b", "c"}, [=](Graph&, const Tensors& in) -> Tensors {
               return {logarithm ? log_softmax(in[0], axes) : softmax(in[0], axes)};
             }};
  row.expect = [=](const Wholes& in) { return softmax_of(in[0], axes, logarithm); };
  return row;
}

void add_softmax(std::vector<OpCase>& rows) {
  rows.push_back(normalized("softmax", real("x", {a, b, c}, -3, 3), {"b"}, false));
  rows.push_back(normalized("softmax_two", real("x", {a, b, c}, -3, 3), {"a", "c"}, false));
  rows.push_back(
      normalized("softmax_far_below_zero", real("x", {a, b}, -1003, -1000), {"a"}, false));
  rows.push_back(normalized("log_softmax", real("x", {a, b, c}, -3, 3), {"c"}, true));
  rows.push_back(normalized("log_softmax_two", real("x", {a, b}, 200, 203), {"a", "b"}, true));
}

void add_norms(std::vector<OpCase>& rows) {
  const std::vector<CaseInput> in = {real("x", {a, c, n}, 1, 4), parameter(positive("scale", {n})),
                                     parameter(real("bias", {n}))};
  OpCase layer{"layer_norm", in, {"a", "c", "n"}, [](Graph&, const Tensors& x) -> Tensors {
                 return {layer_norm(x[0], "n", x[1], x[2])};
               }};
  layer.expect = [](const Wholes& x) { return norm_of(x, "n", 1e-5, true); };
  rows.push_back(layer);
  OpCase first = layer;
  first.name = "layer_norm_first_dim";
  first.in[0] = real("x", {n, a}, -2, 2);
  first.splits = {"a", "n"};
  rows.push_back(first);
  OpCase batch{"batch_norm", in, {"a", "c", "n"}, [](Graph&, const Tensors& x) -> Tensors {
                 return {batch_normed(x[0], x[1], x[2], {"a", "c"}).y};
               }};
  batch.expect = [](const Wholes& x) { return batch_norm_of(x, {"a", "c"}, 1e-3); };
  rows.push_back(batch);
  OpCase vectors{
      "batch_norm_vectors",
      {real("x", {a, n}, 1, 4), in[1], in[2]},
      {"a", "n"},
      [](Graph&, const Tensors& x) -> Tensors { return {batch_normed(x[0], x[1], x[2], "a").y}; }};
  vectors.expect = [](const Wholes& x) { return batch_norm_of(x, {"a"}, 1e-3); };
  rows.push_back(vectors);
  OpCase rms{"rms_norm", {in[0], in[1]}, {"a", "c", "n"}, [](Graph&, const Tensors& x) -> Tensors {
               return {rms_norm(x[0], "n", x[1])};
             }};
  rms.expect = [](const Wholes& x) { return norm_of(x, "n", 1e-6, false); };
  rows.push_back(rms);
}

Whole cross_entropy_of(const Wholes& in, bool soft, double z) {
  const Whole logs = softmax_of(in[0], {"n"}, true);
  Whole loss({"a", "c"}, {5, 4});
  int64_t k = 0;
  each_row(in[0], {"n"}, [&](const std::vector<int64_t>& row) {
    const double lse = in[0].data[row[0]] - logs.data[row[0]];
    double sum = 0, weight = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const double p = soft ? in[1].data[row[i]] : in[1].data[k] == double(i);
      sum -= p * logs.data[row[i]];
      weight += p;
    }
    loss.data[k++] = sum + z * lse * lse + 0 * weight;
  });
  return loss;
}

void add_losses(std::vector<OpCase>& rows) {
  const CaseInput logits = real("logits", {a, c, n}, -3, 3);
  for (double z : {0.0, 0.01}) {
    for (bool soft : {false, true}) {
      const CaseInput labels =
          soft ? positive("labels", {a, c, n})
               : integers("labels", {a, c}, 0, 6, z == 0 ? DType::int32 : DType::int64);
      OpCase row{
          std::string("cross_entropy") + (soft ? "_soft" : "") + (z != 0 ? "_z" : ""),
          {logits, labels},
          {"a", "c", "n"},
          [z](Graph&, const Tensors& x) -> Tensors { return {cross_entropy(x[0], x[1], "n", z)}; }};
      row.expect = [soft, z](const Wholes& in) { return cross_entropy_of(in, soft, z); };
      rows.push_back(row);
    }
  }
  rows.push_back({"cross_entropy_classes_first",
                  {real("logits", {n, a}), integers("labels", {a}, 0, 6)},
                  {"a", "n"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {mean_all(cross_entropy(x[0], x[1], "n"))};
                  }});
}

/// The loss by blocks, whose formula is that of all logits.
void add_linear_cross_entropy(std::vector<OpCase>& rows) {
  const CaseInput x = real("x", {a, b, c}), w = real("w", {n, b}),
                  labels = integers("labels", {a, c}, 0, 6),
                  weights = integers("weights", {a, c}, 0, 2);
  for (const int64_t blocks : {1, 2}) {
    const bool capped = blocks == 1, weighted = blocks == 2;
    const double each = 0.05;
    OpCase row{fmt::format("linear_cross_entropy_{}", blocks),
               {x, w, labels, weights},
               {"a", "b", "c", "n"},
               [=](Graph& g, const Tensors& in) -> Tensors {
                 nn::LinearCrossEntropyOptions o{"b", "n", "c", blocks};
                 o.cap = capped ? 1.5 : 0;
                 o.scale = 2;
                 const Tensor weight =
                     weighted ? cast(in[3], in[0].dtype()) : constant(g, each, in[0].dtype());
                 return {nn::linear_cross_entropy(in[0], in[1], in[2], weight, o)};
               }};
    row.expect = [=](const Wholes& in) {
      Whole logits = brute_einsum({in[0], in[1]}, Whole({"a", "c", "n"}, {5, 4, 7}));
      for (double& z : logits.data) z = capped ? 1.5 * std::tanh(2 * z / 1.5) : 2 * z;
      const Whole losses = cross_entropy_of({logits, in[2]}, false, 0);
      Whole sum({}, {});
      for (size_t i = 0; i < losses.data.size(); ++i)
        sum.data[0] += losses.data[i] * (weighted ? in[3].data[i] : each);
      return sum;
    };
    rows.push_back(row);
  }
}

const Dim batch("batch", 3), heads("heads", 2), length("length", 5), memory("memory_length", 4),
    d_head("d_head", 3), d_value("d_value", 2);
const std::vector<std::string> kAttentionSplits = {"batch",         "heads",  "length",
                                                   "memory_length", "d_head", "d_value"};

/// Zeros in the shape of the result: the query's, with the values' last dim.
Whole attended(const Wholes& in) {
  Whole out(in[0].dims, in[0].sizes);
  if (in[2].dims.back() != d_value.name) return out;
  out.dims.back() = d_value.name;
  out.sizes.back() = d_value.size;
  return {out.dims, out.sizes};
}

/// Plain attention with the dims [batch, heads, length, memory_length, d_head]; operands may lack
/// batch or heads.
Whole attention_of(const Wholes& in, int64_t keys, bool causal) {
  Whole logits({"batch", "heads", "length", "memory_length"}, {3, 2, 5, keys});
  logits = brute_einsum({in[0], in[1]}, logits);
  std::vector<int64_t> mask =
      in.size() > 3 ? in[3].strides_over(logits.dims) : std::vector<int64_t>{};
  int64_t i = 0;
  each_index(logits.sizes, [&](const std::vector<int64_t>& index) {
    double& l = logits.data[i++];
    l /= std::sqrt(3.0);
    if (causal && index[2] < index[3]) l = -1e30;
    if (!mask.empty() && in[3].data[dot(index, mask)] == 0) l = -1e30;
  });
  Whole weights = softmax_of(logits, {"memory_length"}, false);
  for (size_t j = 0; j < weights.data.size(); ++j) {
    if (logits.data[j] == -1e30) weights.data[j] = 0;  // all keys may be hidden
  }
  return brute_einsum({weights, in[2]}, attended(in));
}

/// Where there are operands for more of the structure than `o` says.
struct Extra {
  size_t segments = 0;  ///< the operand that says where segments begin; 0: none
  size_t prefix = 0;    ///< sizes of prefixes [batch]
  size_t sinks = 0;     ///< [heads]
  size_t slopes = 0;    ///< [heads], int32, in quarters
  size_t entries = 0;   ///< biases by distance [entries, heads]
};

/// Attention with the structure of `o`.
Whole structured_attention_of(const Wholes& in, int64_t keys, const AttentionOptions& o,
                              const Extra& extra) {
  Whole weights({"batch", "heads", "length", "memory_length"}, {3, 2, 5, keys});
  weights = brute_einsum({in[0], in[1]}, weights);
  const auto segment = [&](int64_t example, int64_t position) {
    double id = 0;
    for (int64_t i = 0; i <= position; ++i) id += in[extra.segments].data[example * 5 + i];
    return position == 4 && example == 1 ? 0.0 : id;
  };
  double sum = 0;
  int64_t i = 0;
  each_index(weights.sizes, [&](const std::vector<int64_t>& at) {
    const int64_t query = at[2], key = at[3];
    bool seen = !o.causal || key <= query;
    if (o.window) seen = seen && std::abs(query - key) < *o.window;
    if (extra.prefix > 0) seen = seen || key < in[extra.prefix].data[at[0]];
    if (extra.segments > 0) {
      const double id = segment(at[0], key);
      seen = seen && id != 0 && id == segment(at[0], query);
    }
    double logit = weights.data[i] / std::sqrt(3.0);
    if (o.soft_cap > 0) logit = o.soft_cap * std::tanh(logit / o.soft_cap);
    if (extra.slopes > 0)
      logit -= 0.25 * in[extra.slopes].data[at[1]] * static_cast<double>(std::abs(query - key));
    if (extra.entries > 0) {
      const int64_t most = in[extra.entries].sizes[0] / 2,
                    entry = std::clamp(query - key, -most, most) + most;
      logit += in[extra.entries].data[entry * in[extra.entries].sizes[1] + at[1]];
    }
    weights.data[i] = seen ? std::exp(logit) : 0;
    const double sink = extra.sinks > 0 ? std::exp(in[extra.sinks].data[at[1]]) : 0;
    sum = (key == 0 ? sink : sum) + weights.data[i];
    ++i;
    for (int64_t j = i - keys; key == keys - 1 && sum > 0 && j < i; ++j) weights.data[j] /= sum;
  });
  return brute_einsum({weights, in[2]}, attended(in));
}

/// Ascending ids of an example, with padding before the first segment and, in one example, at the
/// end.
Tensor segments_from(const Tensor& begins) {
  Graph& g = begins.graph();
  const Tensor padding = logical_and(equal(iota(g, length), constant(g, 4, DType::int32)),
                                     equal(iota(g, batch), constant(g, 1, DType::int32)));
  return where(padding, constant(g, 0, DType::int32), cumsum(begins, "length"));
}

AttentionOptions with(const AttentionOptions& options, const Extra& extra, const Tensors& x) {
  AttentionOptions o = options;
  if (extra.segments > 0) o.segments = segments_from(x[extra.segments]);
  if (extra.prefix > 0) o.prefix = x[extra.prefix];
  if (extra.sinks > 0) o.sinks = x[extra.sinks];
  if (extra.slopes > 0) o.slopes = cast(x[extra.slopes], x[0].dtype()) * 0.25;
  if (extra.entries > 0) o.by_distance = x[extra.entries];
  return o;
}

OpCase structured(const std::string& name, std::vector<CaseInput> in, AttentionOptions options,
                  Extra extra = {}) {
  const int64_t keys = in[1].shape.dim("memory_length").size;
  OpCase row{name, std::move(in), kAttentionSplits, [=](Graph&, const Tensors& x) -> Tensors {
               return {attention(x[0], x[1], x[2], {}, with(options, extra, x))};
             }};
  row.expect = [=](const Wholes& x) { return structured_attention_of(x, keys, options, extra); };
  return row;
}

/// The same with a mask that hides nothing, or a bias of zeros: composites, which store the logits.
void add_joined_attention(std::vector<OpCase>& rows, const std::string& name,
                          const std::vector<CaseInput>& in, const AttentionOptions& options,
                          const Extra& extra) {
  rows.push_back(structured(name, in, options, extra));
  const auto all = [](Graph& g, const Tensors& x, DType dtype, double value) {
    return constant(g, value, dtype, {x[0].dim("length"), x[1].dim("memory_length")});
  };
  OpCase masked = rows.back(), biased = masked;
  masked.name += "_mask", biased.name += "_bias";
  masked.build = [=](Graph& g, const Tensors& x) -> Tensors {
    return {attention(x[0], x[1], x[2], all(g, x, DType::bool_, 1), with(options, extra, x))};
  };
  biased.build = [=](Graph& g, const Tensors& x) -> Tensors {
    nn::BiasedOptions o;
    static_cast<AttentionOptions&>(o) = with(options, extra, x);
    o.bias = all(g, x, x[0].dtype(), 0);
    return {nn::biased_attention(x[0], x[1], x[2], {}, o)};
  };
  rows.push_back(masked);
  rows.push_back(biased);
}

void add_structured_attention(std::vector<OpCase>& rows) {
  const Dim square("memory_length", 5);
  const CaseInput q = real("q", {batch, heads, length, d_head}, -2, 2),
                  k = real("k", {batch, heads, square, d_head}, -2, 2),
                  v = real("v", {batch, heads, square, d_head}),
                  narrow_v = real("v", {batch, heads, square, d_value}),
                  few_k = real("k", {batch, heads, Dim("memory_length", 2), d_head}, -2, 2),
                  few_v = real("v", {batch, heads, Dim("memory_length", 2), d_head}),
                  begins = integers("begins", {batch, length}, 0, 1);
  AttentionOptions window, cap, segments, all;
  window.window = 2;
  rows.push_back(structured("attention_window", {q, k, v}, window));
  rows.push_back(structured("attention_window_few_keys", {q, few_k, few_v}, window));
  window.causal = true;
  rows.push_back(structured("attention_window_causal", {q, k, v}, window));
  cap.soft_cap = 0.8;
  rows.push_back(structured("attention_soft_cap", {q, k, v}, cap));
  const Extra third{.segments = 3};
  rows.push_back(structured("attention_segments", {q, k, v, begins}, segments, third));
  all.causal = true;
  rows.push_back(structured("attention_segments_causal", {q, k, v, begins}, all, third));
  all.window = 3;
  all.soft_cap = 0.8;
  rows.push_back(structured("attention_structure", {q, k, v, begins}, all, third));
  rows.push_back(structured("attention_structure_value_dim", {q, k, narrow_v, begins}, all, third));
  const CaseInput prefix = integers("prefix", {batch}, 0, 6),
                  sinks = parameter(real("sinks", {heads}, -2, 2));
  AttentionOptions causal;
  causal.causal = true;
  add_joined_attention(rows, "attention_sinks", {q, k, v, sinks}, causal, {.sinks = 3});
  add_joined_attention(rows, "attention_sinks_few_keys", {q, few_k, few_v, sinks}, window,
                       {.sinks = 3});
  add_joined_attention(rows, "attention_prefix", {q, k, v, prefix}, causal, {.prefix = 3});
  add_joined_attention(rows, "attention_prefix_structure", {q, k, v, begins, prefix, sinks}, all,
                       {.segments = 3, .prefix = 4, .sinks = 5});
  const CaseInput slopes = integers("slopes", {heads}, 0, 4);
  const Extra sloped{.slopes = 3};
  add_joined_attention(rows, "attention_slopes", {q, k, v, slopes}, causal, sloped);
  rows.push_back(structured("attention_slopes_both_ways", {q, k, v, slopes}, {}, sloped));
  rows.push_back(structured("attention_slopes_few_keys", {q, few_k, few_v, slopes}, {}, sloped));
  rows.push_back(
      structured("attention_slopes_value_dim", {q, k, narrow_v, slopes}, causal, sloped));
  rows.push_back(structured("attention_slopes_soft_cap", {q, k, v, slopes}, cap, sloped));
  add_joined_attention(rows, "attention_slopes_structure", {q, k, v, begins, prefix, sinks, slopes},
                       all, {.segments = 3, .prefix = 4, .sinks = 5, .slopes = 6});
  const CaseInput entries = parameter(real("entries", {Dim("entries", 5), heads}, -2, 2));
  const Extra biased{.entries = 3};
  add_joined_attention(rows, "attention_by_distance", {q, k, v, entries}, causal, biased);
  rows.push_back(structured("attention_by_distance_both_ways", {q, k, v, entries}, {}, biased));
  rows.push_back(
      structured("attention_by_distance_few_keys", {q, few_k, few_v, entries}, {}, biased));
  rows.push_back(
      structured("attention_by_distance_value_dim", {q, k, narrow_v, entries}, causal, biased));
  rows.push_back(structured("attention_by_distance_soft_cap", {q, k, v, entries}, cap, biased));
  add_joined_attention(rows, "attention_by_distance_structure",
                       {q, k, v, begins, prefix, sinks, slopes, entries}, all,
                       {.segments = 3, .prefix = 4, .sinks = 5, .slopes = 6, .entries = 7});
  AttentionOptions dropout = all;
  dropout.dropout = 0.3;
  OpCase random =
      structured("attention_dropout_structure", {q, k, v, begins, prefix, sinks, slopes, entries},
                 dropout, {.segments = 3, .prefix = 4, .sinks = 5, .slopes = 6, .entries = 7});
  random.random = true;
  random.expect = {};
  rows.push_back(random);
  rows.push_back({"attention_structure_mask",
                  {q, k, v, begins, flags("mask", {batch, square})},
                  kAttentionSplits,
                  [all](Graph&, const Tensors& x) -> Tensors {
                    AttentionOptions o = all;
                    o.segments = segments_from(x[3]);
                    return {attention(x[0], x[1], x[2], x[4], o)};
                  }});
  rows.push_back({"attention_structure_part",
                  {q, k, v, begins, integers("query_start", {batch}, 1, 3),
                   integers("key_start", {batch}, 0, 2)},
                  kAttentionSplits,
                  [all](Graph&, const Tensors& x) -> Tensors {
                    AttentionOptions o = all;
                    o.segments = segments_from(x[3]);
                    const AttentionPart part = attention_part(x[0], x[1], x[2], x[4], x[5], 6, o);
                    const Tensor sums = part.log_sum;  // -1e30 hides differences of the others
                    const Tensor none = constant(sums.graph(), 0, sums.dtype());
                    return {part.out, where(sums > -1e29, sums, none)};
                  }});
}

OpCase attends(const std::string& name, std::vector<CaseInput> in, AttentionOptions options) {
  const int64_t keys = in[1].shape.dim("memory_length").size;
  OpCase row{name, std::move(in), kAttentionSplits, [options](Graph&, const Tensors& x) -> Tensors {
               return {attention(x[0], x[1], x[2], x.size() > 3 ? x[3] : Tensor(), options)};
             }};
  row.expect = [=](const Wholes& x) { return attention_of(x, keys, options.causal); };
  return row;
}

void add_attention(std::vector<OpCase>& rows) {
  const CaseInput q = real("q", {batch, heads, length, d_head}, -2, 2);
  const CaseInput k = real("k", {batch, heads, memory, d_head}, -2, 2),
                  v = real("v", {batch, heads, memory, d_head});
  AttentionOptions causal, dropout;
  causal.causal = true;
  dropout.dropout = 0.3;
  rows.push_back(attends("attention", {q, k, v}, {}));
  const Dim square("memory_length", 5);
  rows.push_back(attends("attention_causal",
                         {q, real("k", {batch, heads, square, d_head}, -2, 2),
                          real("v", {batch, heads, square, d_head})},
                         causal));
  const CaseInput narrow = real("v", {batch, heads, square, d_value});
  rows.push_back(attends("attention_value_dim_causal",
                         {q, real("k", {batch, heads, square, d_head}, -2, 2), narrow}, causal));
  rows.push_back(attends(
      "attention_value_dim_mask",
      {q, real("k", {batch, heads, square, d_head}), narrow, flags("mask", {length, square})}, {}));
  rows.push_back(attends("attention_mask", {q, k, v, flags("mask", {batch, memory})}, {}));
  rows.push_back(
      attends("attention_causal_mask", {q, k, v, flags("mask", {length, memory, batch})}, causal));
  rows.push_back(
      attends("attention_shared_keys",
              {q, real("k", {batch, memory, d_head}), real("v", {batch, memory, d_head})}, {}));
  rows.push_back(
      attends("attention_shared_keys_only", {q, real("k", {batch, memory, d_head}), v}, causal));
  rows.push_back(attends(
      "attention_other_order",
      {real("q", {length, batch, heads, d_head}), real("k", {memory, heads, d_head, batch}), v},
      causal));
  rows.push_back(
      {"attention_part",
       {q, k, v, integers("query_start", {batch}, 3, 6), integers("key_start", {batch}, 0, 2)},
       kAttentionSplits,
       [causal](Graph&, const Tensors& x) -> Tensors {
         const AttentionPart part = attention_part(x[0], x[1], x[2], x[3], x[4], 5, causal);
         return {part.out, part.log_sum};
       }});
  rows.push_back({"attention_part_value_dim",
                  {q, k, real("v", {batch, heads, memory, d_value}),
                   integers("query_start", {batch}, 3, 6), integers("key_start", {batch}, 0, 2)},
                  kAttentionSplits,
                  [causal](Graph&, const Tensors& x) -> Tensors {
                    const AttentionPart part =
                        attention_part(x[0], x[1], x[2], x[3], x[4], 5, causal);
                    return {part.out, part.log_sum};
                  }});
  OpCase joined{
      "attention_joined", {q, k, v}, kAttentionSplits, [](Graph& g, const Tensors& x) -> Tensors {
        const Tensor start = constant(g, 0, DType::int32), middle = constant(g, 1, DType::int32);
        const auto part = [&](int64_t begin, int64_t size, const Tensor& at) {
          return attention_part(x[0], slice(x[1], "memory_length", begin, size),
                                slice(x[2], "memory_length", begin, size), start, at, 4);
        };
        return {join(part(0, 1, start), part(1, 3, middle)).out};
      }};
  joined.expect = [](const Wholes& x) { return attention_of(x, 4, false); };
  rows.push_back(joined);
  OpCase random = attends("attention_dropout", {q, k, v}, dropout);
  random.random = true;
  random.expect = {};
  rows.push_back(random);
}

void add_regions(std::vector<OpCase>& rows) {
  const CaseInput x = real("x", {a, b}), y = real("y", {b, c});
  rows.push_back({"recompute", {x, y}, {"a", "b", "c"}, [](Graph& g, const Tensors& in) -> Tensors {
                    return recompute(g, [&]() -> Tensors {
                      Tensor z = softmax(einsum({exp(in[0]), in[1]}, {a, c}), "c");
                      return {sin(z * z), recompute(g, [&]() -> Tensors { return {exp(z)}; })[0]};
                    });
                  }});
  rows.push_back(
      {"custom_gradient", {x, y}, {"a", "b", "c"}, [](Graph&, const Tensors& in) -> Tensors {
         return custom_gradient(
             in,
             [](const Tensors& x) -> Tensors {
               return {einsum({exp(x[0]), x[1]}, {a, c})};
             },
             [](const Tensors& x, const Tensors&, const Tensors& grads) -> Tensors {
               return {exp(x[0]) * einsum({grads[0], x[1]}, {a, b}),
                       einsum({exp(x[0]), grads[0]}, {b, c})};
             });
       }});
  rows.back().reads_order = true;  // its gradients have dims in one order
}

}  // namespace

std::vector<OpCase> composite_cases() {
  std::vector<OpCase> rows;
  add_softmax(rows);
  add_norms(rows);
  add_losses(rows);
  add_linear_cross_entropy(rows);
  add_attention(rows);
  add_structured_attention(rows);
  add_regions(rows);
  return rows;
}

}  // namespace tessera::test
