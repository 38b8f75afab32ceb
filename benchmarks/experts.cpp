// What a layer of experts computes, holds and sends, counted by explain(), and how fast it is: 128
// gated experts (silu), of which a token takes 8, d_model 2,048, ff 768, float32.
//
//   bench_experts [--time ROUNDS [--tokens 4096] [--threads 1]]
//
// Prints tables: on one rank for 256 to 4,096 tokens, without dropped choices and with a capacity
// that drops none; then on 4 to 32 ranks for 8,192 tokens. With --time instead:
// the layer, and one product of a matrix with as many rows as all experts together, in turn; the
// arithmetic per second of the layer's useful products in terms of the product's.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/explain.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

struct Layer {
  int64_t tokens;
  bool dropless = true, with_gradients = false;
  const char *mesh = "x:1", *layout = "";
};

/// Its outputs, which have names.
std::vector<Tensor> build(Graph& g, const Layer& layer) {
  const int64_t groups = layer.tokens < 8192 ? 8 : 32;
  const Dim batch("batch", groups), length("length", layer.tokens / groups), model("d_model", 2048);
  const Tensor x = g.input("x", {batch, length, model}, DType::float32);
  nn::MoeOptions o;
  o.experts = Dim("experts", 128);
  o.hidden = Dim("ff", 768);
  o.expert.activations = {"silu", "linear"};
  o.routing.choices = 8;
  o.dropless = layer.dropless;
  if (!o.dropless) o.routing.capacity = {Dim("capacity", layer.tokens / 8)};
  const nn::Moe mixed = nn::moe(x, "moe", "d_model", o);
  std::vector<Tensor> outputs = {(mean_all(square(mixed.y)) + mixed.loss).named("loss"),
                                 mixed.routing.load.named("load")};
  if (layer.with_gradients) {
    for (const Tensor& gradient : gradients(outputs[0], g.parameters()))
      outputs.push_back(gradient);
  }
  return outputs;
}

Explanation explained(const Layer& layer) {
  Graph g;
  const std::vector<Tensor> outputs = build(g, layer);
  return explain(
      g, {Mesh::parse(layer.mesh), Layout::parse(layer.layout), {{"step", outputs, false}}});
}

/// What one product of the chosen experts needs, forward.
double useful_product(int64_t tokens) { return 2.0 * 8 * 2048 * 768 * static_cast<double>(tokens); }

/// Arithmetic as a multiple of what the chosen experts' three products need.
double multiple(const Layer& layer, const Explanation& e) {
  const double products = layer.with_gradients ? 9 : 3;
  return static_cast<double>(e.functions.back().flops) / (products * useful_product(layer.tokens));
}

double megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

/// One product of all rows, and its gradients.
std::vector<Tensor> build_product(Graph& g, int64_t rows, bool with_gradients) {
  const Shape in{Dim("rows", rows), Dim("d_model", 2048)},
      matrix{Dim("d_model", 2048), Dim("ff", 768)}, out{Dim("rows", rows), Dim("ff", 768)};
  const Tensor x = g.input("x", in, DType::float32), w = g.input("w", matrix, DType::float32);
  std::vector<Tensor> outputs = {einsum({x, w}, out).named("y")};
  if (with_gradients) {
    const Tensor of_y = g.input("of_y", out, DType::float32);
    for (const Tensor& t : gradients(sum_all(outputs[0] * of_y), {x, w})) outputs.push_back(t);
  }
  return outputs;
}

/// A session that is fed and warm.
class Timed {
 public:
  Timed(const Graph& g, const std::vector<Tensor>& outputs, const std::vector<std::string>& fed,
        int threads)
      : session_(g, cluster_, {Mesh::parse("x:1"), {}, {{"step", outputs, false}}, 1, threads}) {
    for (const std::string& name : fed) {
      const Array shape = session_.shape_of(name);
      Array values(shape.dtype, shape.dims, shape.sizes);
      for (int64_t i = 0; i < values.elements(); ++i) {
        const auto at = static_cast<double>(i % 999983);
        values.data<float>()[i] = static_cast<float>(std::sin(0.37 * at * at));
      }
      session_.feed(name, values);
    }
    run();
  }
  /// Seconds.
  double run() {
    const auto start = std::chrono::steady_clock::now();
    session_.run("step");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  Session& session() { return session_; }

 private:
  Cluster cluster_ = Cluster::threads(1);
  Session session_;
};

void time_layer(int64_t tokens, bool with_gradients, int rounds, int threads) {
  Graph layer, product;
  Timed experts(layer, build(layer, {tokens, true, with_gradients}), {"x"}, threads),
      dense(product, build_product(product, 8 * tokens, with_gradients),
            with_gradients ? std::vector<std::string>{"x", "w", "of_y"}
                           : std::vector<std::string>{"x", "w"},
            threads);
  const double one = (with_gradients ? 3 : 1) * useful_product(tokens);
  std::vector<double> of_layer, of_product, shares;
  for (int i = 0; i < rounds; ++i) {
    of_layer.push_back(3 * one / experts.run() / 1e9);
    of_product.push_back(one / dense.run() / 1e9);
    shares.push_back(of_layer.back() / of_product.back());
  }
  const auto median = [](std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
  };
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  fmt::print(
      "{} tokens, {} rows an expert, {} of the busiest, {}, threads {}: layer {:.1f} GFLOP/s, "
      "product {:.1f}, share {:.2f} [{:.2f}, {:.2f}]\n",
      tokens, 8 * tokens / 128, experts.session().fetch_scalar("load"),
      with_gradients ? "with gradients" : "forward", threads, median(of_layer), median(of_product),
      median(shares), *least, *most);
}

void count_layers() {
  for (const int64_t tokens : {256, 512, 1024, 2048, 4096}) {
    std::string row = fmt::format("| {} |", tokens);
    for (const bool dropless : {true, false}) {
      const Layer forward{tokens, dropless}, both{tokens, dropless, true};
      const Explanation a = explained(forward), b = explained(both);
      row +=
          fmt::format(" {:.3f}, {:.3f} | {:.1f}, {:.1f} |", multiple(forward, a), multiple(both, b),
                      megabytes(a.memory.transient), megabytes(b.memory.transient));
    }
    fmt::print("{}\n", row);
  }
  for (const char* mesh : {"x:4", "x:8", "x:16", "x:32"}) {
    for (const char* layout : {"batch,experts:x", "batch:x"}) {
      const Explanation a = explained({8192, true, false, mesh, layout}),
                        b = explained({8192, true, true, mesh, layout});
      fmt::print(
          "{}; {}: sent by a rank {:.1f} MB, with gradients {:.1f} MB; transient {:.1f} MB, "
          "{:.1f} MB\n",
          mesh, layout, megabytes(a.functions.back().bytes), megabytes(b.functions.back().bytes),
          megabytes(a.memory.transient), megabytes(b.memory.transient));
      for (const CollectiveReport& c : b.functions.back().collectives)
        fmt::print("  {} {} {:.2f} MB\n", c.kind, c.tensor, megabytes(c.bytes));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 0, threads = 1;
  int64_t tokens = 4096;
  CLI::App app("What a layer of experts computes, holds and sends, and how fast it is.");
  app.add_option("--time", rounds, "Rounds to time; 0 counts instead.");
  app.add_option("--tokens", tokens, "Tokens of the layer that is timed, a multiple of 8.");
  app.add_option("--threads", threads, "Threads of the rank that is timed.");
  CLI11_PARSE(app, argc, argv);
  if (rounds <= 0) {
    count_layers();
    return 0;
  }
  for (const bool with_gradients : {false, true})
    time_layer(tokens, with_gradients, rounds, threads);
}
