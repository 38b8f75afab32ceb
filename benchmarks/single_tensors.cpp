// What layouts of single tensors could save: for five models and three meshes the plan by rules,
// and the optimum over all layouts of single tensors, step by step. The batch has 64 samples on any
// mesh, or N of each rank. Writes a table in Markdown:
//   bench_single_tensors [--model NAME] [--mesh MESH] [--batch N] [--device cpu|cuda]
//       [--seconds S]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "tessera/nn_transformer.h"
#include "tessera/plan.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

constexpr int64_t kBatch = 64;  ///< samples of all ranks, unless they are given by rank

struct Size {
  int64_t layers, batch;
};
using Build = Tensor (*)(Graph& graph, Size size);
struct NamedModel {
  const char* name;
  int64_t layers;
  Build loss_of;
};

PlanModel model_of(const NamedModel& named, int64_t batch, const std::string& device) {
  PlanModel model;
  model.device = device;
  model.name = named.name;
  model.layers = named.layers;
  model.build = [loss_of = named.loss_of, batch](const PlanBuild& build) {
    const auto graph = std::make_shared<Graph>();
    const Tensor lr = graph->input("lr", {}, DType::float32);
    const Tensor loss = loss_of(*graph, {build.layers, batch});
    const Minimized m = minimize(loss, lr, adam({}), {});
    return PlanStep{graph, {{"train", {m.loss}, true}}};
  };
  return model;
}

nn::TransformerOptions transformer_options(Size size) {
  nn::TransformerOptions o;
  o.layers = size.layers;
  o.d_model = 2048;
  o.vocab = 32000;
  o.length = 2048;
  o.batch = size.batch;
  o.heads.count = 16;
  o.heads.d_head = 128;
  o.mlp.ff = 8192;
  o.dtype = DType::bfloat16;
  return o;
}

Tensor gpt(Graph& g, Size size) {
  nn::GptOptions o;
  o.layers = size.layers;
  o.d_model = 2048;
  o.heads = 16;
  o.ff = 8192;
  o.length = 2048;
  o.vocab = 50304;
  o.batch = size.batch;
  o.dtype = DType::bfloat16;
  return nn::gpt(g, o).loss;
}

Tensor llama(Graph& g, Size size) {
  nn::TransformerOptions o = transformer_options(size);
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.heads.key_heads = 8;
  o.mlp.gated = true;
  o.mlp.activation = nn::Activation::silu;
  o.spans[0].rotary = true;
  return nn::transformer(g, o).loss;
}

Tensor encoder_decoder(Graph& g, Size size) {
  nn::TransformerOptions o = transformer_options(size);
  o.encoder_layers = size.layers;
  o.target_length = 512;
  o.relative_buckets = 32;
  o.norm.kind = nn::NormOptions::Kind::rms;
  return nn::transformer(g, o).loss;
}

/// A mixture of experts with a capacity in each layer.
Tensor experts(Graph& g, Size size) {
  const Dim width("d_model", 2048);
  const Shape shape{Dim("batch", size.batch), Dim("length", 2048), width};
  Tensor x = g.input("x", shape, DType::bfloat16), target = g.input("y", shape, DType::bfloat16);
  Tensor balance;
  for (int64_t layer = 0; layer < size.layers; ++layer) {
    const Scope scope(g, fmt::format("block{}", layer));
    nn::MultiHeadOptions attention;
    attention.heads = 16;
    attention.d_head = 128;
    attention.attention.causal = true;
    x = x + nn::self_attention(nn::norm(x, "norm1", "d_model"), "attention", "d_model", attention);
    nn::MoeOptions moe;
    moe.experts = Dim("experts", 8);
    moe.hidden = Dim("ff", 8192);
    moe.routing.choices = 2;
    moe.dropless = false;
    const nn::Moe mixed = nn::moe(nn::norm(x, "norm2", "d_model"), "moe", "d_model", moe);
    x = x + mixed.y;
    balance = balance.empty() ? mixed.loss : balance + mixed.loss;
  }
  return mean_all(square(cast(x - target, DType::float32))) + balance;
}

Tensor unet(Graph& g, Size size) {
  nn::UnetOptions o;
  o.batch = size.batch;
  o.channels = 4;
  o.filters = 64;
  o.spatial = {{"height", 512}, {"width", 512}};
  return nn::unet(g, o).loss;
}

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", 100 * (1 - part / whole));
}

void print_row(const PlanModel& model, const Mesh& mesh, int64_t batch, const Machine& machine,
               double seconds) {
  PlanOptions options;
  options.memory = 0;
  options.seconds = seconds;
  options.each_tensor = true;
  const auto start = std::chrono::steady_clock::now();
  const Plan found = plan(model, mesh, machine, options);
  const PlanTensors& t = found.tensors;
  const PricedPlan& p = found.best;
  const std::string layout =
      p.rules + (p.zero > 0 ? fmt::format("`, ZeRO-{} over `{}", p.zero, p.over) : "");
  if (t.tensors == 0) {
    fmt::print("| {} | `{}` | {} | `{}` | {} | | | | | | |\n", model.name, mesh.to_string(), batch,
               layout, t.left_out);
    return;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print("| {} | `{}` | {} | `{}` | {:.1f} ms | {} | {} | {:.1f} ms | {} | {} | {:.0f} s |\n",
             model.name, mesh.to_string(), batch, layout, 1e3 * t.planned,
             percent(t.least, t.planned), percent(t.bound, t.planned), 1e3 * p.seconds,
             percent(t.floor, p.seconds),
             t.simulated == 0 ? "-"
                              : fmt::format("`{}`: {:+.1f} % when simulated", t.rules,
                                            100 * (t.simulated / t.before - 1)),
             took.count());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What layouts of single tensors could save.");
  std::string only, only_mesh, device = "cuda";
  double seconds = 10;
  int64_t of_rank = 0;
  app.add_option("--model", only, "Only this model.");
  app.add_option("--mesh", only_mesh, "Only this mesh.");
  app.add_option("--batch", of_rank, "Samples of each rank; 0: 64 of all ranks together.");
  app.add_option("--device", device, "Kernels of cpu or cuda.");
  app.add_option("--seconds", seconds, "Time of a search.");
  CLI11_PARSE(app, argc, argv);
  const Machine machine = Machine::load("h100");
  fmt::print(
      "| model | mesh | batch | plan | its steps one by one | the best layouts save | none saves "
      "more than | simulated | gap to the bound | as scoped rules | all in "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  constexpr NamedModel kModels[] = {{"gpt", 24, gpt},
                                    {"Llama", 24, llama},
                                    {"mixture of experts", 24, experts},
                                    {"U-Net", 1, unet},
                                    {"encoder-decoder", 12, encoder_decoder}};
  for (const NamedModel& model : kModels) {
    for (const char* text : {"a:2;b:2", "a:8", "a:8;b:8"}) {
      const bool wanted =
          (only.empty() || only == model.name) && (only_mesh.empty() || only_mesh == text);
      if (!wanted) continue;
      const Mesh mesh = Mesh::parse(text);
      const int64_t batch = of_rank > 0 ? of_rank * mesh.size() : kBatch;
      print_row(model_of(model, batch, device), mesh, batch, machine, seconds);
    }
  }
  return 0;
}
