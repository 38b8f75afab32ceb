// Trains gpt on real text and writes down all that another system needs to do the same, and what
// it must then find. Public API only.
//
//   parity --out DIR --data FILE [--layers 4 --d-model 256 --heads 8 --length 128 --batch 8]
//          [--steps 100 --lr 1e-3 --weight-decay 0.1 --clip 1] [--dtype float32] [--tied]
//          [--mesh one:1] [--layout ""]
//
// DIR gets safetensors files: initial (parameters, with the options as metadata), batches (inputs
// and targets, [steps, batch, length]), first (loss, logits and, as grad.NAME, the gradients of the
// first batch at the initial parameters), trained (parameters, and the losses of all steps).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tessera/data.h"
#include "tessera/safetensors.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

using Tensors = std::vector<std::pair<std::string, Array>>;

struct Options {
  nn::GptOptions gpt;
  std::string out, data, dtype = "float32", mesh = "one:1", layout;
  int64_t steps = 100;
  double lr = 1e-3, weight_decay = 0.1, clip = 1;
};

Options parse(int argc, char** argv) {
  Options o;
  o.gpt = {4, 256, 8, 1024, 128, 256, 8};
  CLI::App app("a training run for other systems to repeat");
  app.add_option("--out", o.out)->required();
  app.add_option("--data", o.data)->required();
  app.add_option("--layers", o.gpt.layers);
  app.add_option("--d-model", o.gpt.d_model);
  app.add_option("--heads", o.gpt.heads);
  app.add_option("--length", o.gpt.length);
  app.add_option("--batch", o.gpt.batch);
  app.add_flag("--tied", o.gpt.tied);
  app.add_option("--steps", o.steps);
  app.add_option("--lr", o.lr);
  app.add_option("--weight-decay", o.weight_decay);
  app.add_option("--clip", o.clip);
  app.add_option("--dtype", o.dtype);
  app.add_option("--mesh", o.mesh);
  app.add_option("--layout", o.layout);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  o.gpt.ff = 4 * o.gpt.d_model;
  o.gpt.dtype = parse_dtype(o.dtype.c_str());
  return o;
}

std::map<std::string, std::string> metadata_of(const Options& o) {
  return {{"layers", fmt::to_string(o.gpt.layers)},
          {"heads", fmt::to_string(o.gpt.heads)},
          {"tied", o.gpt.tied ? "1" : "0"},
          {"dtype", o.dtype},
          {"lr", fmt::to_string(o.lr)},
          {"weight_decay", fmt::to_string(o.weight_decay)},
          {"clip", fmt::to_string(o.clip)}};
}

void write(const std::string& path, const Tensors& tensors,
           const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, array] : tensors) infos.push_back({name, array.dtype, array.sizes});
  SafetensorsWriter file(path, infos, metadata);
  for (const auto& [name, array] : tensors)
    file.write(name, array.bytes.data(), static_cast<int64_t>(array.bytes.size()));
  file.finish();
}

Tensors parameters_of(Session& session, Graph& graph) {
  Tensors all;
  for (const Tensor& p : graph.parameters()) all.emplace_back(p.name(), session.fetch(p.name()));
  return all;
}

/// Copies what the Session was fed as row `step` of `all`.
void keep(Session& session, const std::string& input, int64_t step, Array& all) {
  const Array one = session.fetch(input);
  std::memcpy(all.bytes.data() + step * static_cast<int64_t>(one.bytes.size()), one.bytes.data(),
              one.bytes.size());
}

void run(const Options& o) {
  const Mesh mesh = Mesh::parse(o.mesh);
  Cluster ranks = Cluster::threads(mesh.size());
  Graph g;
  const nn::Model model = nn::gpt(g, o.gpt);
  AdamOptions adam_options;
  adam_options.weight_decay = o.weight_decay;
  MinimizeOptions minimize_options;
  minimize_options.clip = o.clip;
  const Minimized minimized =
      minimize(model.loss, constant(g, o.lr), adam(adam_options), minimize_options);
  std::vector<Tensor> looked_at = {model.loss, model.logits};
  for (const Tensor& gradient : minimized.gradients) looked_at.push_back(gradient);
  Session session(
      g, ranks,
      {mesh, Layout::parse(o.layout), {{"look", looked_at, false}, {"train", {model.loss}, true}}});
  TextOptions text;
  text.length = o.gpt.length;
  text.vocabulary = o.gpt.vocab;
  const TextData data(o.data, text);
  const Batcher batches(data, o.gpt.batch);
  const std::filesystem::path out = o.out;
  std::filesystem::create_directories(out);

  write(out / "initial.safetensors", parameters_of(session, g), metadata_of(o));
  batches.feed(session, 0);
  session.run("look");
  Tensors first = {{"loss", session.fetch(model.loss.name())},
                   {"logits", session.fetch(model.logits.name())}};
  const std::vector<Tensor> parameters = g.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    first.emplace_back("grad." + parameters[i].name(),
                       session.fetch(minimized.gradients[i].name()));
  }
  write(out / "first.safetensors", first);

  const std::vector<int64_t> sizes = {o.steps, o.gpt.batch, o.gpt.length};
  const std::vector<std::string> dims = {"step", "batch", "length"};
  Array inputs(DType::int32, dims, sizes), targets(DType::int32, dims, sizes);
  Array losses(DType::float64, {"step"}, {o.steps});
  for (int64_t step = 0; step < o.steps; ++step) {
    batches.feed(session, step);
    session.run("train");
    keep(session, "inputs", step, inputs);
    keep(session, "targets", step, targets);
    losses.data<double>()[step] = session.fetch_scalar(model.loss.name());
  }
  write(out / "batches.safetensors", {{"inputs", inputs}, {"targets", targets}});
  Tensors trained = parameters_of(session, g);
  trained.emplace_back("losses", losses);
  write(out / "trained.safetensors", trained);
  fmt::print("{} steps, loss {:.6f} to {:.6f}\n", o.steps, losses.at(0), losses.at(o.steps - 1));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  try {
    run(options);
  } catch (const Error& e) {
    fmt::print(stderr, "parity: {}\n", e.what());
    return 1;
  }
  return 0;
}
