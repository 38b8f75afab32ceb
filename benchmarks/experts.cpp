// What a layer of experts computes, holds and sends, counted by explain() and not timed: 128 gated
// experts (silu), of which a token takes 8, d_model 2,048, ff 768, float32.
//
//   bench_experts
//
// Tables for benchmarks/RESULTS.md: on one rank for 256 to 4,096 tokens, without dropped choices
// and with a capacity that drops none; then on 4 to 32 ranks for 8,192 tokens.
#include <fmt/format.h>

#include "tessera/explain.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

struct Layer {
  int64_t tokens;
  bool dropless = true, with_gradients = false;
  const char *mesh = "x:1", *layout = "";
};

Explanation explained(const Layer& layer) {
  Graph g;
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
  std::vector<Tensor> outputs = {(mean_all(square(mixed.y)) + mixed.loss).named("loss")};
  if (layer.with_gradients) {
    for (const Tensor& gradient : gradients(outputs[0], g.parameters()))
      outputs.push_back(gradient);
  }
  return explain(
      g, {Mesh::parse(layer.mesh), Layout::parse(layer.layout), {{"step", outputs, false}}});
}

/// Arithmetic as a multiple of what the chosen experts' three products need.
double multiple(const Layer& layer, const Explanation& e) {
  const double products = layer.with_gradients ? 9 : 3;
  const double useful = 2.0 * 8 * 2048 * 768 * products * static_cast<double>(layer.tokens);
  return static_cast<double>(e.functions.back().flops) / useful;
}

double megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

int main() {
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
