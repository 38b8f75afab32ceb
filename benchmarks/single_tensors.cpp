// What layouts of single tensors could save: for five models and three meshes the plan by rules,
// and the optimum over all layouts of single tensors, step by step. Writes a table in Markdown:
//   bench_single_tensors [--model NAME] [--mesh MESH] [--seconds S]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "tessera/nn_transformer.h"
#include "tessera/plan.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

using Build = std::function<Tensor(Graph& graph, int64_t layers)>;

PlanModel model_of(const char* name, int64_t layers, const Build& loss_of) {
  PlanModel model;
  model.name = name;
  model.layers = layers;
  model.build = [loss_of](const PlanBuild& build) {
    const auto graph = std::make_shared<Graph>();
    const Tensor lr = graph->input("lr", {}, DType::float32);
    const Minimized m = minimize(loss_of(*graph, build.layers), lr, adam({}), {});
    return PlanStep{graph, {{"train", {m.loss}, true}}};
  };
  return model;
}

nn::TransformerOptions transformer_options() {
  nn::TransformerOptions o;
  o.d_model = 2048;
  o.vocab = 32000;
  o.length = 2048;
  o.batch = 64;
  o.heads.count = 16;
  o.heads.d_head = 128;
  o.mlp.ff = 8192;
  o.dtype = DType::bfloat16;
  return o;
}

Tensor gpt(Graph& g, int64_t layers) {
  nn::GptOptions o;
  o.layers = layers;
  o.d_model = 2048;
  o.heads = 16;
  o.ff = 8192;
  o.length = 2048;
  o.vocab = 50304;
  o.batch = 64;
  o.dtype = DType::bfloat16;
  return nn::gpt(g, o).loss;
}

Tensor llama(Graph& g, int64_t layers) {
  nn::TransformerOptions o = transformer_options();
  o.layers = layers;
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.heads.key_heads = 8;
  o.mlp.gated = true;
  o.mlp.activation = nn::Activation::silu;
  o.spans[0].rotary = true;
  return nn::transformer(g, o).loss;
}

Tensor encoder_decoder(Graph& g, int64_t layers) {
  nn::TransformerOptions o = transformer_options();
  o.layers = o.encoder_layers = layers;
  o.target_length = 512;
  o.relative_buckets = 32;
  o.norm.kind = nn::NormOptions::Kind::rms;
  return nn::transformer(g, o).loss;
}

/// A mixture of experts with a capacity in each layer.
Tensor experts(Graph& g, int64_t layers) {
  const Dim width("d_model", 2048);
  const Shape shape{Dim("batch", 64), Dim("length", 2048), width};
  Tensor x = g.input("x", shape, DType::bfloat16), target = g.input("y", shape, DType::bfloat16);
  Tensor balance;
  for (int64_t layer = 0; layer < layers; ++layer) {
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

Tensor unet(Graph& g, int64_t) {
  nn::UnetOptions o;
  o.batch = 64;
  o.channels = 4;
  o.filters = 64;
  o.spatial = {{"height", 512}, {"width", 512}};
  return nn::unet(g, o).loss;
}

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", 100 * (1 - part / whole));
}

void print_row(const PlanModel& model, const std::string& mesh, const Machine& machine,
               double seconds) {
  PlanOptions options;
  options.memory = 0;
  options.seconds = seconds;
  options.each_tensor = true;
  const auto start = std::chrono::steady_clock::now();
  const Plan found = plan(model, Mesh::parse(mesh), machine, options);
  const PlanTensors& t = found.tensors;
  const PricedPlan& p = found.best;
  const std::string layout =
      p.rules + (p.zero > 0 ? fmt::format("`, ZeRO-{} over `{}", p.zero, p.over) : "");
  if (t.tensors == 0) {
    fmt::print("| {} | `{}` | `{}` | {} | | | | | |\n", model.name, mesh, layout, t.left_out);
    return;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print("| {} | `{}` | `{}` | {:.1f} ms | {} | {} | {} | {} | {:.0f} s |\n", model.name, mesh,
             layout, 1e3 * t.planned, percent(t.least, t.planned), percent(t.bound, t.planned),
             percent(t.floor, found.best.seconds),
             t.played == 0 ? "-"
                           : fmt::format("`{}`: {:+.1f} % when played", t.rules,
                                         100 * (t.played / t.before - 1)),
             took.count());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What layouts of single tensors could save.");
  std::string only, only_mesh;
  double seconds = 10;
  app.add_option("--model", only, "Only this model.");
  app.add_option("--mesh", only_mesh, "Only this mesh.");
  app.add_option("--seconds", seconds, "Time of a search.");
  CLI11_PARSE(app, argc, argv);
  const Machine machine = Machine::load("h100");
  fmt::print(
      "| model | mesh | plan | its steps one by one | the best layouts save | none saves more than "
      "| played: gap to the bound | as scoped rules | all in "
      "|\n|---|---|---|---|---|---|---|---|---|\n");
  const std::vector<PlanModel> models = {model_of("gpt", 24, gpt), model_of("Llama", 24, llama),
                                         model_of("mixture of experts", 24, experts),
                                         model_of("U-Net", 1, unet),
                                         model_of("encoder-decoder", 12, encoder_decoder)};
  for (const PlanModel& model : models) {
    for (const std::string mesh : {"a:2;b:2", "a:8", "a:8;b:8"}) {
      const bool wanted =
          (only.empty() || only == model.name) && (only_mesh.empty() || only_mesh == mesh);
      if (wanted) print_row(model, mesh, machine, seconds);
    }
  }
  return 0;
}
