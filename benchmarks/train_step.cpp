// Steps of training gpt on random tokens: medians, rates, and where the time goes.
//
//   train_step [--layers 4 --d-model 256 --heads 8 --length 128 --batch 8 --vocab 256]
//              [--dtype float32] [--threads 1] [--mesh data:1] [--layout "batch:data"]
//              [--steps 20] [--profile]
//
// Prints one line of JSON: ms (median of the steps after three), tokens_per_s, gflops_per_s (of the
// products of a step, 6 per parameter and token and those of attention).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>

#include "tessera/tessera.h"

using namespace tessera;

namespace {

struct Options {
  nn::GptOptions gpt;
  std::string dtype = "float32", mesh = "data:1", layout = "batch:data";
  int threads = 1, steps = 20;
  bool profile = false;
};

Options parse(int argc, char** argv) {
  Options o;
  o.gpt = {4, 256, 8, 1024, 128, 256, 8};
  CLI::App app("steps of training gpt");
  app.add_option("--layers", o.gpt.layers);
  app.add_option("--d-model", o.gpt.d_model);
  app.add_option("--heads", o.gpt.heads);
  app.add_option("--length", o.gpt.length);
  app.add_option("--batch", o.gpt.batch);
  app.add_option("--vocab", o.gpt.vocab);
  app.add_option("--dtype", o.dtype);
  app.add_option("--mesh", o.mesh);
  app.add_option("--layout", o.layout);
  app.add_option("--threads", o.threads);
  app.add_option("--steps", o.steps);
  app.add_flag("--profile", o.profile);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  o.gpt.ff = 4 * o.gpt.d_model;
  o.gpt.dtype = parse_dtype(o.dtype.c_str());
  return o;
}

void print_profile(const std::vector<StepTime>& rows) {
  struct Sum {
    double seconds = 0, flops = 0, bytes = 0;
    int steps = 0;
  };
  std::map<std::string, Sum> kernels;
  double total = 0;
  for (const StepTime& row : rows) {
    if (row.function != "train") continue;
    Sum& sum = kernels[row.kernel];
    const double runs = static_cast<double>(row.runs);
    sum.seconds += row.seconds / runs;
    sum.flops += static_cast<double>(row.flops);
    sum.bytes += static_cast<double>(row.bytes);
    ++sum.steps;
    total += row.seconds / runs;
    fmt::print(stderr, "{:9.1f} us {:12} {:8.2f} GFLOP/s {:8.2f} GB/s  {} ({})\n",
               row.seconds / runs * 1e6, row.kernel,
               static_cast<double>(row.flops) / row.seconds * runs / 1e9,
               static_cast<double>(row.bytes) / row.seconds * runs / 1e9, row.name, row.source);
  }
  for (const auto& [kernel, sum] : kernels) {
    fmt::print(stderr, "{:12} {:5} steps {:9.3f} ms {:5.1f} % {:8.2f} GFLOP/s {:8.2f} GB/s\n",
               kernel, sum.steps, sum.seconds * 1e3, 100 * sum.seconds / total,
               sum.flops / sum.seconds / 1e9, sum.bytes / sum.seconds / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  Graph g;
  const nn::Model model = nn::gpt(g, o.gpt);
  Tensor lr = g.input("lr", {}, DType::float32);
  const Minimized minimized = minimize(model.loss, lr, adam({}), {});
  const Mesh mesh = Mesh::parse(o.mesh);
  Cluster cluster = Cluster::from_environment(mesh.size());
  CompileOptions compile{
      mesh, Layout::parse(o.layout), {{"train", {model.loss}, true}}, 1, o.threads};
  compile.profile = o.profile;
  Session session(g, cluster, compile);
  Array rate(DType::float32, {}, {});
  rate.data<float>()[0] = 3e-4f;
  session.feed("lr", rate);
  for (const Tensor& input : model.inputs) {
    Array tokens(DType::int32, {"batch", "length"}, {o.gpt.batch, o.gpt.length});
    uint32_t x = 1;
    for (int64_t i = 0; i < tokens.elements(); ++i) {
      x = x * 1664525u + 1013904223u;
      tokens.data<int32_t>()[i] = static_cast<int32_t>((x >> 16) % o.gpt.vocab);
    }
    session.feed(input.name(), tokens);
  }
  std::vector<double> ms;
  for (int s = 0; s < o.steps + 3; ++s) {
    const auto start = std::chrono::steady_clock::now();
    session.run("train");
    const double loss = session.fetch_scalar(model.loss.name());
    const auto end = std::chrono::steady_clock::now();
    if (s >= 3) ms.push_back(std::chrono::duration<double, std::milli>(end - start).count());
    if (!(loss > 0)) return 1;
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2];
  const double tokens = static_cast<double>(o.gpt.batch * o.gpt.length);
  const double d = static_cast<double>(o.gpt.d_model), layers = static_cast<double>(o.gpt.layers);
  const double flops = tokens * (6 * (layers * 12 * d * d + d * static_cast<double>(o.gpt.vocab)) +
                                 12 * layers * static_cast<double>(o.gpt.length) * d);
  if (o.profile) print_profile(session.profile());
  if (cluster.is_root()) {
    fmt::print(
        R"({{"peer": "tessera", "dtype": "{}", "mesh": "{}", "threads": {}, "ms": {:.2f}, "least_ms": {:.2f}, "tokens_per_s": {:.0f}, "gflops_per_s": {:.1f}, "steps": {}}})"
        "\n",
        o.dtype, o.mesh, o.threads, median, ms[0], tokens / median * 1e3, flops / median / 1e6,
        o.steps);
  }
  return 0;
}
