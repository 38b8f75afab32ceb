// bench_compile [LAYERS ...]: processor seconds that each pass of lower takes for a training step
// of GPT with AdamW, over layers and meshes; the median of several compilations.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/explain.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace {

using Times = std::map<std::string, std::vector<double>>;

const std::vector<std::string> kPasses = {"model",    "partition", "masks",  "localize", "combine",
                                          "schedule", "fuse",      "memory", "total"};

/// Of this process's processor time: others share the machine.
double since(std::clock_t& start) {
  const std::clock_t now = std::clock();
  return static_cast<double>(now - std::exchange(start, now)) / CLOCKS_PER_SEC;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void compile_once(int64_t layers, const std::string& mesh, Times& times) {
  tessera::nn::GptOptions options;
  options.layers = layers;
  options.d_model = 256;
  options.heads = 8;
  options.ff = 1024;
  options.length = 128;
  options.batch = 128;
  options.vocab = 256;
  std::clock_t start = std::clock();
  tessera::Graph g;
  const tessera::nn::Model model = tessera::nn::gpt(g, options);
  tessera::Tensor lr = g.input("lr", {}, tessera::DType::float32);
  tessera::AdamOptions adam;
  adam.weight_decay = 0.1;
  const auto step = tessera::minimize(model.loss, lr, tessera::adam(adam), {1.0});
  times["model"].push_back(since(start));
  tessera::CompileOptions compile;
  compile.mesh = tessera::Mesh::parse(mesh);
  compile.layout =
      tessera::Layout::parse("batch:pod+data; heads,ff,vocab:model; @state d_model:data");
  compile.functions = {{"train", {model.loss, step.gradient_norm}, true}};
  double total = 0;
  start = std::clock();
  tessera::explain(g, compile, [&](const std::string& pass, const auto&) {
    const double seconds = since(start);
    times[pass].push_back(seconds);
    total += seconds;
  });
  times["total"].push_back(total);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> layers;
  for (int i = 1; i < argc; ++i) layers.push_back(std::atoll(argv[i]));
  if (layers.empty()) layers = {12, 48, 96};
  std::printf("%-7s %-24s", "layers", "mesh");
  for (const std::string& pass : kPasses) std::printf(" %9s", pass.c_str());
  std::printf("\n");
  for (const int64_t n : layers) {
    for (const char* mesh : {"pod:2;data:2;model:2", "pod:16;data:8;model:8"}) {
      Times times;
      for (int trial = 0; trial < 5; ++trial) compile_once(n, mesh, times);
      std::printf("%-7lld %-24s", static_cast<long long>(n), mesh);
      for (const std::string& pass : kPasses) {
        if (times.count(pass)) {
          std::printf(" %9.3f", median(times[pass]));
        } else {
          std::printf(" %9s", "-");
        }
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}
