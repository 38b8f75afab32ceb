// Attention variants and mixing layers that need no function of their own: each is a few lines over
// named dims. A user copies the lines.
#include <cmath>

#include "ops/op_cases.h"
#include "tessera/nn.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;

const Dim batch("batch", 2), heads("heads", 2), length("length", 5), memory("memory_length", 5),
    model("model", 4), d_head("d_head", 2);
const std::vector<std::string> kSplits = {"batch", "heads", "length", "memory_length", "d_head"};

CaseInput x_in() { return real("x", {batch, length, model}); }
CaseInput weight(const std::string& name, const Shape& shape) {
  return parameter(real(name, shape));
}

/// q, k and v of [batch, heads, ...].
std::vector<CaseInput> qkv() {
  return {real("q", {batch, heads, length, d_head}, -2, 2),
          real("k", {batch, heads, memory, d_head}, -2, 2),
          real("v", {batch, heads, memory, d_head})};
}

void add_head_variants(std::vector<OpCase>& rows) {
  const Dim key_heads("key_heads", 2), softmax_heads("softmax_heads", 3), value_heads("heads", 2);
  rows.push_back({"talking_heads",
                  {real("q", {batch, key_heads, length, d_head}, -2, 2),
                   real("k", {batch, key_heads, memory, d_head}, -2, 2),
                   real("v", {batch, value_heads, memory, d_head}),
                   weight("before", {key_heads, softmax_heads}),
                   weight("after", {softmax_heads, value_heads})},
                  {"batch", "key_heads", "softmax_heads", "heads", "length", "memory_length"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    AttentionOptions o;
                    o.causal = true;
                    return {nn::talking_heads(x[0], x[1], x[2], x[3], x[4], {}, o)};
                  }});
  // One bilinear form a head instead of queries and keys.
  rows.push_back({"general_bilinear_attention",
                  {x_in(), weight("form", {heads, model, Dim("memory_model", 4)}),
                   weight("out", {heads, model, Dim("out", 4)})},
                  {"batch", "heads", "length", "memory_length", "model"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    Tensor seen = rename(x[0], "length", "memory_length");
                    Tensor key = rename(seen, "model", "memory_model");
                    Tensor logits = einsum({x[0], x[1], key}, {batch, heads, length, memory});
                    Tensor weights = softmax(logits, "memory_length");
                    return {einsum({weights, seen, x[2]}, {batch, length, Dim("out", 4)})};
                  }});
  // Attention and feed-forward layer side by side, from one input (PaLM's parallel block).
  rows.push_back({"branched_attention",
                  {x_in()},
                  {"batch", "heads", "length", "model", "ff"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    nn::MultiHeadOptions o;
                    o.heads = 2;
                    o.d_head = 2;
                    return {nn::self_attention(x[0], "attention", "model", o) +
                            nn::feed_forward(x[0], "mlp", "model", Dim("ff", 3),
                                             {.activations = {"gelu", "linear"}})};
                  }});
  // A learned mix of the outputs of all encoder layers is the memory.
  const Dim layers("layers", 3);
  rows.push_back({"transparent_attention",
                  {real("q", {batch, length, d_head}), weight("mix", {layers}),
                   real("outputs", {layers, batch, memory, d_head})},
                  {"batch", "layers", "length", "memory_length"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    Tensor seen = einsum({softmax(x[1], "layers"), x[2]}, {batch, memory, d_head});
                    return {attention(x[0], seen, seen)};
                  }});
}

/// Synthesizers (Tay et al. 2021): the logits do not come from queries and keys.
void add_synthesizers(std::vector<OpCase>& rows) {
  const CaseInput values = real("v", {batch, heads, memory, d_head});
  const auto attend = [](Tensor logits, Tensor v) {
    return einsum({softmax(logits, "memory_length"), v}, {batch, heads, length, d_head});
  };
  rows.push_back({"synthesizer_random",
                  {values, weight("logits", {heads, length, memory})},
                  kSplits,
                  [=](Graph&, const Tensors& x) -> Tensors { return {attend(x[1], x[0])}; }});
  const Dim rank("rank", 3);
  rows.push_back(
      {"synthesizer_factorized",
       {values, weight("left", {heads, length, rank}), weight("right", {heads, rank, memory})},
       kSplits,
       [=](Graph&, const Tensors& x) -> Tensors {
         return {attend(einsum({x[1], x[2]}, {heads, length, memory}), x[0])};
       }});
  const Dim hidden("hidden", 3);
  rows.push_back({"synthesizer_dense",
                  {values, x_in(), weight("up", {model, heads, hidden}),
                   weight("out", {heads, hidden, memory})},
                  kSplits,
                  [=](Graph&, const Tensors& x) -> Tensors {
                    Tensor h = relu(einsum({x[1], x[2]}, {batch, length, heads, hidden}));
                    return {attend(einsum({h, x[3]}, {batch, heads, length, memory}), x[0])};
                  }});
  std::vector<CaseInput> mixed = qkv();
  mixed.push_back(weight("logits", {heads, length, memory}));
  mixed.push_back(weight("alpha", {heads}));
  // Its weights and those of attention, mixed with a learned share (random_plus_alpha, hybrid).
  rows.push_back(
      {"synthesizer_plus_attention", mixed, kSplits, [](Graph&, const Tensors& x) -> Tensors {
         const Shape shape{batch, heads, length, memory};
         Tensor learned = softmax(x[3], "memory_length");
         Tensor usual = softmax(einsum({x[0], x[1]}, shape), "memory_length");
         Tensor share = sigmoid(x[4]);
         return {einsum({usual * share + learned * (1.0 - share), x[2]},
                        {batch, heads, length, d_head})};
       }});
}

/// Each position's sum over the three before and itself, with weights [.., window].
Tensor look_back(Tensor x, Tensor weights) {
  Tensor sum;
  const std::vector<Tensor> each = unstack(weights, "window");
  for (size_t k = 0; k < each.size(); ++k) {
    Tensor part = shift(x, "length", static_cast<int64_t>(k)) * each[k];
    sum = sum.empty() ? part : sum + part;
  }
  return sum;
}

void add_convolutional(std::vector<OpCase>& rows) {
  const Dim window("window", 3);
  const std::vector<std::string> splits = {"batch", "length", "model", "heads"};
  rows.push_back({"depthwise_conv_by_shifts",
                  {x_in(), weight("w", {window, model})},
                  splits,
                  [](Graph&, const Tensors& x) -> Tensors { return {look_back(x[0], x[1])}; }});
  rows.push_back(
      {"separable_conv",
       {x_in(), weight("depthwise", {window, model}), weight("point", {model, Dim("out", 3)})},
       splits,
       [](Graph&, const Tensors& x) -> Tensors {
         return {einsum({look_back(x[0], x[1]), x[2]}, {batch, length, Dim("out", 3)})};
       }});
  // Lightweight convolution (Wu et al. 2019): one normalized window for each head.
  const CaseInput by_head = real("x", {batch, length, heads, d_head});
  rows.push_back({"lightweight_conv",
                  {by_head, weight("w", {heads, window})},
                  splits,
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {look_back(x[0], softmax(x[1], "window"))};
                  }});
  // Dynamic convolution: the window comes from the position.
  rows.push_back({"dynamic_conv",
                  {by_head, weight("w", {heads, d_head, window})},
                  splits,
                  [](Graph&, const Tensors& x) -> Tensors {
                    Tensor w = einsum({x[0], x[1]}, {batch, length, heads, Dim("window", 3)});
                    return {look_back(x[0], softmax(w, "window"))};
                  }});
  rows.push_back({"parallel_layers",
                  {x_in(), weight("w", {window, model})},
                  splits,
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {look_back(x[0], x[1]) +
                            nn::feed_forward(x[0], "mlp", "model", Dim("ff", 3))};
                  }});
}

void add_compressed(std::vector<OpCase>& rows) {
  rows.push_back(
      {"compress_mean",
       {real("x", {batch, Dim("length", 7), d_head})},
       {"batch", "length", "d_head"},
       [](Graph&, const Tensors& x) -> Tensors { return {nn::compress_mean(x[0], "length", 3)}; }});
  rows.push_back({"memory_compressed_attention",
                  {real("q", {batch, length, d_head}), real("k", {batch, length, d_head}),
                   real("v", {batch, length, d_head})},
                  {"batch", "length", "memory_length", "d_head"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    const auto fewer = [](Tensor t) {
                      return rename(nn::compress_mean(t, "length", 2), "length", "memory_length");
                    };
                    nn::BiasedOptions o;
                    o.extra_logit = 0;
                    return {nn::biased_attention(x[0], fewer(x[1]), fewer(x[2]), {}, o)};
                  }});
  // Blocks of an image that attend to themselves: the block's dims stay, the inner ones are merged.
  const Dim rows_dim("rows", 4), cols("cols", 6);
  rows.push_back({"local_block_attention_2d",
                  {real("x", {batch, rows_dim, cols, d_head})},
                  {"batch", "rows", "cols", "row_blocks", "col_blocks"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    const Dim r("row_blocks", 2), c("col_blocks", 2), i("row", 2), j("col", 3);
                    Tensor blocks = reshape(x[0], {batch, r, i, c, j, d_head});
                    const Dim place("length", 6);
                    Tensor in = reshape(transpose(blocks, {batch, r, c, i, j, d_head}),
                                        {batch, r, c, place, d_head});
                    Tensor seen = rename(in, "length", "memory_length");
                    return {attention(in, seen, seen)};
                  }});
  rows.back().reads_order = true;
}

/// Ops of Mesh TensorFlow that are a line or two of others.
void add_short_ops(std::vector<OpCase>& rows) {
  const Dim a("a", 6), b("b", 5);
  const std::vector<CaseInput> in = {real("x", {a, b})};
  const std::vector<std::string> splits = {"a", "b"};
  rows.push_back({"reduce_first", in, splits, [=](Graph&, const Tensors& x) -> Tensors {
                    return {reshape(slice(x[0], "a", 0, 1), Shape{b})};
                  }});
  rows.push_back({"pool_along_a_dim", in, splits, [=](Graph&, const Tensors& x) -> Tensors {
                    return {reduce_max(reshape(x[0], {Dim("a", 3), Dim("_a", 2), b}), "_a")};
                  }});
  rows.back().reads_order = true;
  rows.push_back({"stride_along_a_dim", in, splits, [=](Graph&, const Tensors& x) -> Tensors {
                    Tensor pairs = reshape(x[0], {Dim("a", 3), Dim("_a", 2), b});
                    return {reshape(slice(pairs, "_a", 0, 1), {Dim("a", 3), b})};
                  }});
  rows.back().reads_order = true;
  OpCase sampled{"sampled", in, splits, [](Graph& g, const Tensors& x) -> Tensors {
                   Tensor drawn = random_uniform(g, x[0].shape(), 1e-9, 1, x[0].dtype());
                   return {argmax(x[0] - log(-log(drawn)) * 0.7, "b")};
                 }};
  sampled.random = true;
  sampled.has_gradient = false;
  rows.push_back(sampled);
}

}  // namespace

std::vector<OpCase> variant_cases() {
  std::vector<OpCase> rows;
  add_short_ops(rows);
  add_head_variants(rows);
  add_synthesizers(rows);
  add_convolutional(rows);
  add_compressed(rows);
  return rows;
}

}  // namespace tessera::test
