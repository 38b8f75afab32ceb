// Rows of attention layers, and of the variants that are compositions of a few lines: what is here
// under a name is what a user would write.
#include <cmath>

#include "ops/op_cases.h"
#include "tessera/nn.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;
using Wholes = std::vector<Whole>;
using Index = std::vector<int64_t>;

const Dim batch("batch", 2), heads("heads", 2), length("length", 5), memory("memory_length", 5),
    model("model", 4), d_head("d_head", 4);
const std::vector<std::string> kSplits = {"batch", "heads", "length", "memory_length", "d_head"};

CaseInput query() { return real("q", {batch, heads, length, d_head}, -2, 2); }
CaseInput key() { return real("k", {batch, heads, memory, d_head}, -2, 2); }
CaseInput value() { return real("v", {batch, heads, memory, d_head}); }

/// Softmax over the last dim of what `change` makes of each logit, with one more logit of value
/// `extra` unless it is -infinity; then the weighted sum of the values.
Whole attended(Whole logits, const Whole& values, Whole out, double extra,
               const std::function<double(const Index&, double)>& change) {
  const int64_t n = logits.sizes.back();
  int64_t i = 0;
  each_index(logits.sizes, [&](const Index& index) {
    logits.data[i] = change(index, logits.data[i]);
    ++i;
  });
  for (int64_t row = 0; row < logits.elements(); row += n) {
    double sum = std::exp(extra);
    for (int64_t j = 0; j < n; ++j) sum += std::exp(logits.data[row + j]);
    for (int64_t j = 0; j < n; ++j) logits.data[row + j] = std::exp(logits.data[row + j]) / sum;
  }
  return brute_einsum({logits, values}, std::move(out));
}

Whole logits_of(const Wholes& in) {
  return brute_einsum({in[0], in[1]},
                      Whole({"batch", "heads", "length", "memory_length"}, {2, 2, 5, 5}));
}

void add_biased(std::vector<OpCase>& rows) {
  const CaseInput bias = parameter(real("bias", {heads, length, memory}));
  OpCase row{"attention_bias", {query(), key(), value(), bias}, kSplits, {}};
  row.build = [](Graph&, const Tensors& x) -> Tensors {
    nn::BiasedOptions o;
    o.bias = x[3];
    return {nn::biased_attention(x[0], x[1], x[2], {}, o)};
  };
  row.expect = [](const Wholes& in) {
    return attended(logits_of(in), in[2], Whole(in[0].dims, in[0].sizes), -INFINITY,
                    [&](const Index& at, double x) {
                      return x / 2 + in[3].data[(at[1] * 5 + at[2]) * 5 + at[3]];
                    });
  };
  rows.push_back(row);
  OpCase extra{"attention_extra_logit", {query(), key(), value()}, kSplits, {}};
  extra.build = [](Graph&, const Tensors& x) -> Tensors {
    nn::BiasedOptions o;
    o.extra_logit = 0.5;
    o.causal = true;
    return {nn::biased_attention(x[0], x[1], x[2], {}, o)};
  };
  extra.expect = [](const Wholes& in) {
    return attended(logits_of(in), in[2], Whole(in[0].dims, in[0].sizes), 0.5,
                    [](const Index& at, double x) { return at[3] > at[2] ? -INFINITY : x / 2; });
  };
  rows.push_back(extra);
  const CaseInput latents = real("q", {heads, length, d_head}, -2, 2),
                  deep = real("v", {batch, heads, memory, Dim("d_value", 3)});
  const auto whole = [](const Index&, double x) { return x / 2; };
  OpCase few{"attention_shared_queries", {latents, key(), value()}, kSplits, {}};
  few.build = [](Graph&, const Tensors& x) -> Tensors { return {attention(x[0], x[1], x[2])}; };
  few.expect = [=](const Wholes& in) {
    const Whole out({"batch", "heads", "length", "d_head"}, {2, 2, 5, 4});
    return attended(logits_of(in), in[2], out, -INFINITY, whole);
  };
  rows.push_back(few);
  OpCase other{"attention_value_dim", {query(), key(), deep}, kSplits, {}};
  other.build = [](Graph&, const Tensors& x) -> Tensors {
    return {nn::biased_attention(x[0], x[1], x[2])};
  };
  other.expect = [=](const Wholes& in) {
    const Whole out({"batch", "heads", "length", "d_value"}, {2, 2, 5, 3});
    return attended(logits_of(in), in[2], out, -INFINITY, whole);
  };
  rows.push_back(other);
  for (const std::string dim : {"length", "heads"}) {
    OpCase shared{"attention_dropout_shared_" + dim, {query(), key(), value()}, kSplits, {}};
    shared.build = [=](Graph&, const Tensors& x) -> Tensors {
      nn::BiasedOptions o;
      o.dropout = 0.3;
      o.dropout_shared = {dim};
      return {nn::biased_attention(x[0], x[1], x[2], {}, o)};
    };
    shared.random = true;
    rows.push_back(shared);
  }
}

/// A bool mask [length, memory_length], with the dims of an int32 operand before it.
OpCase mask_row(const std::string& name, std::vector<CaseInput> in,
                const std::function<Tensor(Graph&, const Tensors&)>& build,
                const std::function<bool(const Wholes&, int64_t b, int64_t q, int64_t k)>& seen) {
  const bool each = !in.empty();
  OpCase row{name, std::move(in), {"batch", "length", "memory_length"}, {}};
  row.build = [=](Graph& g, const Tensors& x) -> Tensors {
    Tensor mask = build(g, x);
    return {each ? transpose(mask, {batch, length, memory}) : mask};
  };
  row.expect = [=](const Wholes& x) {
    Whole out = each ? Whole({"batch", "length", "memory_length"}, {2, 5, 5})
                     : Whole({"length", "memory_length"}, {5, 5});
    for (int64_t i = 0; i < out.elements(); ++i) out.data[i] = seen(x, i / 25, i / 5 % 5, i % 5);
    return out;
  };
  row.has_gradient = false;
  return row;
}

/// A z loss of the logits (Zoph et al. 2022): of the queries that count.
void add_z_loss(std::vector<OpCase>& rows) {
  OpCase row{
      "attention_z_loss", {query(), key(), integers("counts", {batch, length}, 0, 1)}, kSplits, {}};
  row.build = [](Graph&, const Tensors& x) -> Tensors {
    Tensor logits = einsum({x[0] * 0.5, x[1]}, {batch, heads, length, memory});
    Tensor z = square(reduce_logsumexp(logits, "memory_length"));
    return {mean_all(z * cast(x[2], z.dtype())) * 0.1};
  };
  row.expect = [](const Wholes& in) {
    const Whole logits = logits_of(in);
    Whole loss({}, {});
    for (int64_t row = 0; row < 20; ++row) {  // batch, heads, length
      double sum = 0;
      for (int64_t j = 0; j < 5; ++j) sum += std::exp(logits.data[row * 5 + j] / 2);
      loss.data[0] += std::pow(std::log(sum), 2) * in[2].data[row / 10 * 5 + row % 5] * 0.1 / 20;
    }
    return loss;
  };
  rows.push_back(row);
}

void add_masks(std::vector<OpCase>& rows) {
  rows.push_back(mask_row(
      "mask_causal", {},
      [](Graph& g, const Tensors&) { return nn::causal_mask(g, length, memory); },
      [](const Wholes&, int64_t, int64_t q, int64_t k) { return k <= q; }));
  rows.push_back(mask_row(
      "mask_window", {},
      [](Graph& g, const Tensors&) { return nn::window_mask(g, length, memory, 2, 1); },
      [](const Wholes&, int64_t, int64_t q, int64_t k) { return k >= q - 2 && k <= q + 1; }));
  rows.push_back(mask_row(
      "mask_prefix", {integers("prefix", {batch}, 0, 4)},
      [](Graph&, const Tensors& x) { return nn::prefix_mask(x[0], length, memory); },
      [](const Wholes& x, int64_t b, int64_t q, int64_t k) {
        return k < static_cast<int64_t>(x[0].data[b]) || k <= q;
      }));
  rows.push_back(mask_row(
      "mask_segments",
      {integers("segments", {batch, length}, 0, 2), integers("others", {batch, memory}, 0, 2)},
      [](Graph&, const Tensors& x) { return nn::segment_mask(x[0], x[1]); },
      [](const Wholes& x, int64_t b, int64_t q, int64_t k) {
        return x[0].data[b * 5 + q] == x[1].data[b * 5 + k] && x[1].data[b * 5 + k] != 0;
      }));
  OpCase positions{
      "segment_positions",
      {integers("segments", {batch, length}, 1, 2)},
      {"batch", "length"},
      [](Graph&, const Tensors& x) -> Tensors { return {nn::segment_positions(x[0])}; }};
  positions.expect = [](const Wholes& x) {
    Whole out = x[0];
    for (int64_t i = 0; i < 10; ++i) {
      const bool follows = i % 5 > 0 && x[0].data[i] == x[0].data[i - 1];
      out.data[i] = follows ? out.data[i - 1] + 1 : 0;
    }
    return out;
  };
  positions.has_gradient = false;
  rows.push_back(positions);
}

Whole rotated(const Whole& x, const std::function<double(int64_t)>& position, double base) {
  Whole y = x;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t d = i % 4, row = i / 4;
    const double angle = position(row) * std::pow(base, -2.0 * double(d % 2) / 4);
    const double other = x.data[row * 4 + (d + 2) % 4];
    y.data[i] = x.data[i] * std::cos(angle) + (d < 2 ? -other : other) * std::sin(angle);
  }
  return y;
}

void add_positions(std::vector<OpCase>& rows) {
  const CaseInput x = real("x", {batch, length, d_head});
  OpCase plain{
      "rotary", {x}, {"batch", "length", "d_head"}, [](Graph&, const Tensors& in) -> Tensors {
        return {nn::rotary(in[0], "length", "d_head", {}, 100)};
      }};
  plain.expect = [](const Wholes& in) {
    return rotated(
        in[0], [](int64_t row) { return double(row % 5); }, 100);
  };
  rows.push_back(plain);
  OpCase given{"rotary_positions",
               {x, integers("at", {batch, length}, 0, 40)},
               {"batch", "length", "d_head"},
               [](Graph&, const Tensors& in) -> Tensors {
                 return {nn::rotary(in[0], "length", "d_head", in[1])};
               }};
  given.expect = [](const Wholes& in) {
    return rotated(
        in[0], [&](int64_t row) { return in[1].data[row]; }, 10000);
  };
  rows.push_back(given);
  OpCase waves{"sinusoids", {}, {"length", "model"}, [](Graph& g, const Tensors&) -> Tensors {
                 return {nn::sinusoids(g, length, Dim("model", 6), DType::float64)};
               }};
  waves.expect = [](const Wholes&) {
    Whole out({"length", "model"}, {5, 6});
    for (int64_t i = 0; i < 30; ++i) {
      const double angle = double(i / 6) * std::pow(1e4, -double(i % 3) / 2);
      out.data[i] = i % 6 < 3 ? std::sin(angle) : std::cos(angle);
    }
    return out;
  };
  waves.has_gradient = false;
  rows.push_back(waves);
}

/// T5's rule for keys `ahead` of the query, in exact arithmetic where it counts.
int64_t bucket_of(int64_t ahead, int64_t buckets, int64_t farthest, bool both) {
  int64_t bucket = 0, n = -ahead;
  if (both) {
    buckets /= 2;
    bucket += n < 0 ? buckets : 0;
    n = std::abs(n);
  }
  n = std::max<int64_t>(n, 0);
  const int64_t exact = buckets / 2;
  if (n < exact) return bucket + n;
  int64_t far = exact;  // the last k with n >= exact * (farthest / exact)^((k - exact) / rest)
  while (far + 1 < buckets &&
         std::pow(double(n) / double(exact), double(buckets - exact)) >=
             std::pow(double(farthest) / double(exact), double(far + 1 - exact)) * (1 - 1e-12)) {
    ++far;
  }
  return bucket + far;
}

void add_relative(std::vector<OpCase>& rows) {
  const Dim many("length", 24), more("memory_length", 41);
  for (bool both : {true, false}) {
    const nn::RelativeOptions o{8, 16, both};
    OpCase row{std::string("relative_buckets") + (both ? "" : "_causal"),
               {},
               {"length", "memory_length"},
               [=](Graph& g, const Tensors&) -> Tensors {
                 return {nn::relative_buckets(g, many, more, o)};
               }};
    row.expect = [=](const Wholes&) {
      Whole out({"length", "memory_length"}, {24, 41});
      for (int64_t i = 0; i < out.elements(); ++i)
        out.data[i] = double(bucket_of(i % 41 - i / 41, 8, 16, both));
      return out;
    };
    row.has_gradient = false;
    rows.push_back(row);
  }
  OpCase bias{"relative_bias", {query(), key(), value()}, kSplits, {}};
  bias.build = [](Graph& g, const Tensors& x) -> Tensors {
    nn::BiasedOptions o;
    o.bias =
        nn::relative_bias(g, "bias", length, memory, Shape{heads}, {4, 8, false}, x[0].dtype());
    o.causal = true;
    return {nn::biased_attention(x[0], x[1], x[2], {}, o)};
  };
  bias.expect = [](const Wholes& in) {
    return attended(logits_of(in), in[2], Whole(in[0].dims, in[0].sizes), -INFINITY,
                    [&](const Index& at, double x) {
                      if (at[3] > at[2]) return -double(INFINITY);
                      const int64_t bucket = bucket_of(at[3] - at[2], 4, 8, false);
                      return x / 2 + in[3].data[bucket * 2 + at[1]];
                    });
  };
  rows.push_back(bias);
  OpCase by_distance = bias;
  by_distance.name = "relative_distances";
  by_distance.build = [](Graph& g, const Tensors& x) -> Tensors {
    AttentionOptions o;
    o.by_distance = nn::relative_distances(g, "bias", Shape{heads}, {4, 8, false}, x[0].dtype());
    o.causal = true;
    return {attention(x[0], x[1], x[2], {}, o)};
  };
  rows.push_back(by_distance);
}

OpCase multihead(const std::string& name, const nn::MultiHeadOptions& o) {
  return {name,
          {real("x", {batch, length, model})},
          {"batch", "heads", "heads_per_key", "length", "memory_length", "d_head", "model"},
          [o](Graph&, const Tensors& x) -> Tensors {
            return {nn::self_attention(x[0], "layer", "model", o)};
          }};
}

void add_multihead(std::vector<OpCase>& rows) {
  nn::MultiHeadOptions o;
  o.heads = 2;
  o.d_head = 4;
  o.bias = true;
  rows.push_back(multihead("multihead_attention", o));
  o.heads = 4;
  o.d_head = 2;
  o.attention.causal = true;
  o.rotary = true;
  o.memory_heads = 1;
  rows.push_back(multihead("multi_query_attention", o));
  o.memory_heads = 2;
  rows.push_back(multihead("grouped_query_attention", o));
  o.memory_heads = 0;
  o.rotary = o.bias = false;
  o.shared_kv = true;
  rows.push_back(multihead("shared_kv_attention", o));
  OpCase across{"encdec_attention",
                {real("x", {batch, length, model}),
                 real("memory", {batch, Dim("memory_length", 3), Dim("model", 4)}),
                 flags("known", {batch, Dim("memory_length", 3)})},
                kSplits,
                [](Graph&, const Tensors& x) -> Tensors {
                  nn::MultiHeadOptions options;
                  options.heads = 2;
                  options.d_head = 2;
                  options.mask = x[2];
                  return {nn::multihead_attention(x[0], x[1], "layer", "model", options)};
                }};
  rows.push_back(across);
}

OpCase local(const std::string& name, const nn::LocalOptions& o) {
  const Dim seven("length", 7), two("d_head", 2);
  OpCase row{name,
             {real("q", {batch, seven, two}, -2, 2), real("k", {batch, seven, two}, -2, 2),
              real("v", {batch, seven, two})},
             {"batch", "length", "length_blocks", "d_head"},
             [o](Graph&, const Tensors& x) -> Tensors {
               return {nn::local_attention(x[0], x[1], x[2], o)};
             }};
  row.expect = [o](const Wholes& in) {
    Wholes renamed = in;
    renamed[1].dims[1] = renamed[2].dims[1] = "memory_length";
    Whole logits = brute_einsum({renamed[0], renamed[1]},
                                Whole({"batch", "length", "memory_length"}, {2, 7, 7}));
    return attended(logits, renamed[2], Whole(in[0].dims, in[0].sizes), -INFINITY,
                    [&](const Index& at, double x) {
                      const int64_t ahead = at[2] - at[1];
                      const int64_t most = o.ahead > 0 ? o.ahead : o.radius - 1;
                      const bool seen = ahead > -o.radius && ahead <= (o.causal ? 0 : most);
                      return seen ? x / std::sqrt(2.0) : -INFINITY;
                    });
  };
  return row;
}

void add_local(std::vector<OpCase>& rows) {
  nn::LocalOptions o;
  o.radius = 2;
  rows.push_back(local("local_attention", o));
  o.causal = false;
  rows.push_back(local("local_attention_both_sides", o));
  o.ahead = 2;
  rows.push_back(local("local_attention_ahead", o));
  o.block = 3;
  o.ahead = 0;
  o.causal = true;
  rows.push_back(local("local_attention_longer_blocks", o));
  OpCase packed = rows.back();
  packed.name = "local_attention_segments";
  packed.in.push_back(integers("segments", {batch, Dim("length", 7)}, 0, 2));
  packed.build = [](Graph&, const Tensors& x) -> Tensors {
    nn::LocalOptions near;
    near.radius = 3;
    near.segments = x[3];
    return {nn::local_attention(x[0], x[1], x[2], near)};
  };
  packed.expect = {};
  rows.push_back(packed);
}

}  // namespace

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> rows;
  add_biased(rows);
  add_z_loss(rows);
  add_masks(rows);
  add_positions(rows);
  add_relative(rows);
  add_multihead(rows);
  add_local(rows);
  return rows;
}

}  // namespace tessera::test
