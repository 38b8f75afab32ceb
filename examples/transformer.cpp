// A GPT written out, without a layer of the library: embeddings, causal attention, feed-forward
// layers, loss and AdamW over named dims. It learns to write like data/moby-dick.txt on four ranks,
// and does its first steps again under a second layout, which must give the same losses.
//
// The comments behind the tensors say their dims. No line names a rank, an axis or a collective but
// the two layouts in main().
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tessera/data.h"
#include "tessera/tessera.h"
using namespace tessera;

namespace {

const Dim batch("batch", 8), length("length", 32), vocab("vocab", 256);
const Dim d_model("d_model", 64), heads("heads", 4), d_head("d_head", 16), ff("ff", 256);
const Dim memory("memory", 32);  // the positions that a query looks at: `length` once more
constexpr int kLayers = 2;

Tensor normalized(Graph& g, Tensor x, const std::string& name) {
  Tensor scale = g.parameter(name + ".scale", {d_model}, nn::ones());
  Tensor bias = g.parameter(name + ".bias", {d_model}, nn::zeros());
  Tensor centered = x - reduce_mean(x, "d_model");
  Tensor variance = reduce_mean(square(centered), "d_model");
  return centered * rsqrt(variance + 1e-5) * scale + bias;
}

/// Every position takes a weighted mean of the values at positions up to its own.
Tensor attention_block(Graph& g, Tensor x) {
  const Shape projection{d_model, heads, d_head};
  Tensor wq = g.parameter("wq", projection, nn::scaled_normal({"d_model"}));
  Tensor wk = g.parameter("wk", projection, nn::scaled_normal({"d_model"}));
  Tensor wv = g.parameter("wv", projection, nn::scaled_normal({"d_model"}));
  Tensor wo = g.parameter("wo", {heads, d_head, d_model}, nn::scaled_normal({"heads", "d_head"}));

  Tensor query = einsum({x, wq}, {batch, length, heads, d_head});
  Tensor key = rename(einsum({x, wk}, {batch, length, heads, d_head}), "length", "memory");
  Tensor value = rename(einsum({x, wv}, {batch, length, heads, d_head}), "length", "memory");

  const double scale = 1 / std::sqrt(static_cast<double>(d_head.size));
  Tensor logits = einsum({query, key}, {batch, heads, length, memory}) * scale;
  Tensor seen = iota(g, memory) <= iota(g, length);  // [memory, length]
  Tensor weights = softmax(where(seen, logits, -1e9), "memory");
  Tensor mixed = einsum({weights, value}, {batch, length, heads, d_head});
  return einsum({mixed, wo}, {batch, length, d_model});
}

Tensor feed_forward_block(Graph& g, Tensor x) {
  Tensor up = g.parameter("up", {d_model, ff}, nn::scaled_normal({"d_model"}));
  Tensor down = g.parameter("down", {ff, d_model}, nn::scaled_normal({"ff"}));
  return einsum({gelu(einsum({x, up}, {batch, length, ff})), down}, {batch, length, d_model});
}

/// The mean cross-entropy of the next token.
Tensor gpt_loss(Graph& g) {
  Tensor inputs = g.input("inputs", {batch, length}, DType::int32);
  Tensor targets = g.input("targets", {batch, length}, DType::int32);
  Tensor embedding = g.parameter("embedding", {vocab, d_model}, nn::normal(0.02));
  Tensor position = g.parameter("position", {length, d_model}, nn::normal(0.02));
  Tensor x = gather(embedding, inputs, "vocab") + position;  // [batch, length, d_model]
  for (int layer = 0; layer < kLayers; ++layer) {
    const Scope scope(g, "layer" + std::to_string(layer));
    x = x + attention_block(g, normalized(g, x, "norm1"));
    x = x + feed_forward_block(g, normalized(g, x, "norm2"));
  }
  Tensor head = g.parameter("head", {d_model, vocab}, nn::scaled_normal({"d_model"}, 0.5));
  Tensor logits = einsum({normalized(g, x, "norm"), head}, {batch, length, vocab});
  return mean_all(cross_entropy(logits, targets, "vocab")).named("loss");
}

/// The losses of the first steps of training under a layout.
std::vector<double> train(Cluster& ranks, const char* mesh, const char* layout, int steps) {
  Graph g;
  Tensor loss = gpt_loss(g);
  MinimizeOptions options;
  options.clip = 1;
  minimize(loss, 3e-3, adam({.weight_decay = 0.1}), options);  // AdamW
  Session session(g, ranks, {Mesh::parse(mesh), Layout::parse(layout), {{"train", {loss}, true}}});

  TextOptions windows;
  windows.length = length.size;
  const TextData text("data/moby-dick.txt", windows);
  const Batcher batches(text, batch.size);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    batches.feed(session, step);
    session.run("train");
    losses.push_back(session.fetch_scalar("loss"));
    if (ranks.is_root() && (step + 1) % 50 == 0)
      std::printf("step %3d: loss %.4f\n", step + 1, losses.back());
  }
  return losses;
}

}  // namespace

int main(int argc, char** argv) try {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  constexpr int kCompared = 10;
  Cluster ranks = Cluster::from_environment(4);
  // Examples over `data`; heads, feed-forward layers and vocabulary over `model`, as Megatron does.
  const std::vector<double> losses =
      train(ranks, "data:2;model:2", "batch:data;heads,ff,vocab:model", std::max(steps, kCompared));
  // Examples over all ranks, and parameters, gradients and optimizer state in shards: FSDP.
  const std::vector<double> again =
      train(ranks, "data:4", "batch:data;@params d_model:data", kCompared);

  double worst = 0;
  for (int step = 0; step < kCompared; ++step)
    worst = std::max(worst, std::fabs(again[step] - losses[step]) / losses[step]);
  const bool learns = losses.back() < losses.front() - 0.5;
  if (ranks.is_root())
    std::printf("loss %.4f to %.4f; the layouts differ by %.1e in %d steps\n", losses.front(),
                losses.back(), worst, kCompared);
  return worst < 1e-4 && learns ? 0 : 1;
} catch (const Error& e) {
  std::fprintf(stderr, "transformer: %s\n", e.what());
  return 1;
}
