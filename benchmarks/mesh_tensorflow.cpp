// Steps of training the models that peers/mesh_tensorflow trains in Mesh TensorFlow:
//
//   bench_mesh_tensorflow mnist|tiny_lm|transformer [--mesh "b1:1;b2:1"]
//                         [--layout "rows:b1;cols:b2"] [--threads 1] [--steps 20] [--width 256]
//
// mnist: two convolutions of 9 x 9 with 16 filters, their mean, two hidden layers of 512; batch
// 200, Adafactor. tiny_lm: the transformer of 2 layers that Mesh TensorFlow's authors train, as
// tensor2tensor has it under mtf_transformer_tiny_lm; vocab 256. transformer: gpt with 2 layers,
// d_model `width`, heads of 32, ff four times and length half of it, vocab 256, batch 8; Adam
// without bias correction. Prints one line of JSON: ms, the median of the steps after three.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/tessera.h"

using namespace tessera;

namespace {

nn::Model build_mnist(Graph& g) {
  const Dim batch("batch", 200), rows("rows", 28), cols("cols", 28), channel("one_channel", 1);
  const Dim filters1("filters1", 16), filters2("filters2", 16), classes("classes", 10);
  Tensor images = g.input("images", {batch, rows, cols, channel}, DType::float32);
  Tensor labels = g.input("labels", {batch}, DType::int32);
  nn::ConvLayerOptions plain;
  plain.bias = false;
  const Shape window{Dim("rows", 9), Dim("cols", 9)};
  plain.conv.dims = {{"rows"}, {"cols"}};
  Tensor h = relu(nn::conv_layer(images, "conv1", window, "one_channel", filters1, plain));
  h = relu(nn::conv_layer(h, "conv2", window, "filters1", filters2, plain));
  h = reduce_mean(h, "filters2");
  h = relu(nn::dense(h, "hidden1", {"rows", "cols"}, Shape{Dim("hidden1", 512)}));
  h = relu(nn::dense(h, "hidden2", {"hidden1"}, Shape{Dim("hidden2", 512)}));
  Tensor logits = nn::dense(h, "logits", {"hidden2"}, Shape{classes});
  return {
      mean_all(cross_entropy(logits, labels, "classes")).named("loss"), logits, {images, labels}};
}

/// RMS norms, heads of 128, ReLU, no biases, dropout in five places, the embedding used twice, and
/// logits times random numbers near 1. Where tokens are 0 there is no loss.
nn::Model build_tiny_lm(Graph& g) {
  const Dim batch("batch", 8), length("length", 256), model("d_model", 128), vocab("vocab", 256);
  const double rate = 0.1;
  nn::MultiHeadOptions heads;
  heads.heads = 8, heads.d_head = 128;
  heads.attention.causal = true;
  heads.attention.dropout = rate, heads.attention.dropout_shared = {"length"};
  Tensor targets = g.input("targets", {batch, length}, DType::int32);
  Tensor table = g.parameter("embedding", {vocab, model}, nn::normal(1));
  const auto drop = [&](Tensor x) { return nn::dropout_shared(x, rate, {"length"}); };
  Tensor x = drop(gather(table, shift(targets, "length", 1), "vocab") +
                  g.parameter("position", {length, model}, nn::normal(1)));
  for (int layer = 0; layer < 2; ++layer) {
    const std::string n = fmt::format("{}", layer);
    Tensor seen = nn::rms_norm(x, "norm" + n, "d_model");
    x = x + drop(nn::self_attention(seen, "attention" + n, "d_model", heads));
    Tensor h = nn::rms_norm(x, "norm_ff" + n, "d_model");
    h = relu(nn::dense(h, "up" + n, {"d_model"}, Shape{Dim("ff", 512)}, false));
    x = x + drop(nn::dense(drop(h), "down" + n, {"ff"}, Shape{model}, false));
  }
  x = drop(nn::rms_norm(x, "norm", "d_model"));
  Tensor logits = einsum({x, table * (1 / std::sqrt(128.0))}, {batch, length, vocab});
  logits = nn::jitter(logits, 1e-2);
  Tensor losses = cross_entropy(logits, targets, "vocab") * nn::nonzero_weights(targets);
  return {mean_all(losses).named("loss"), logits, {targets}};
}

nn::Model build_transformer(Graph& g, int64_t width) {
  nn::GptOptions o;
  o.layers = 2, o.d_model = width, o.heads = width / 32, o.ff = 4 * width, o.length = width / 2;
  o.vocab = 256;
  o.batch = 8;
  return nn::gpt(g, o);
}

/// Made-up examples: small numbers, or indices below `below`.
Array filled(const Tensor& t, int64_t below) {
  std::vector<int64_t> sizes;
  for (const Dim& d : t.shape()) sizes.push_back(d.size);
  Array array(t.dtype(), t.shape().names(), sizes);
  uint32_t x = 1;
  for (int64_t i = 0; i < array.elements(); ++i) {
    x = x * 1664525u + 1013904223u;
    if (t.dtype() == DType::int32) {
      array.data<int32_t>()[i] = static_cast<int32_t>((x >> 16) % below);
    } else {
      array.data<float>()[i] = static_cast<float>(x >> 16) / 65536;
    }
  }
  return array;
}

}  // namespace

int main(int argc, char** argv) {
  std::string name, mesh_text = "b1:1;b2:1", layout;
  int threads = 1, steps = 20, width = 256;
  CLI::App app("steps of training what peers/mesh_tensorflow trains");
  app.add_option("model", name)
      ->required()
      ->check(CLI::IsMember({"mnist", "tiny_lm", "transformer"}));
  app.add_option("--mesh", mesh_text);
  app.add_option("--layout", layout);
  app.add_option("--threads", threads);
  app.add_option("--steps", steps);
  app.add_option("--width", width)->check(CLI::IsMember({64, 128, 256, 512}));
  CLI11_PARSE(app, argc, argv);
  Graph g;
  const nn::Model model = name == "mnist"     ? build_mnist(g)
                          : name == "tiny_lm" ? build_tiny_lm(g)
                                              : build_transformer(g, width);
  Tensor lr = constant(g, 1e-3, DType::float32);
  AdamOptions uncorrected;
  uncorrected.beta2 = 0.999, uncorrected.eps = 1e-6, uncorrected.bias_correction = false;
  minimize(model.loss, lr, name == "transformer" ? adam(uncorrected) : adafactor({}));
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster cluster = Cluster::from_environment(mesh.size());
  Session session(g, cluster,
                  {mesh, Layout::parse(layout), {{"train", {model.loss}, true}}, 1, threads});
  std::vector<Array> examples;
  for (const Tensor& t : model.inputs) examples.push_back(filled(t, name == "mnist" ? 10 : 256));
  std::vector<double> ms;
  double loss = 0;
  for (int s = 0; s < steps + 3; ++s) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < examples.size(); ++i) session.feed(model.inputs[i].name(), examples[i]);
    session.run("train");
    loss = session.fetch_scalar(model.loss.name());
    const auto end = std::chrono::steady_clock::now();
    if (s >= 3) ms.push_back(std::chrono::duration<double, std::milli>(end - start).count());
  }
  std::sort(ms.begin(), ms.end());
  if (cluster.is_root()) {
    fmt::print(
        R"({{"peer": "tessera", "model": "{}", "mesh": "{}", "ms": {:.2f}, "least_ms": {:.2f}, "loss": {:.4f}, "steps": {}}})"
        "\n",
        name, mesh_text, ms[ms.size() / 2], ms[0], loss, steps);
  }
  return loss > 0 ? 0 : 1;
}
