// The training step of train_step.cpp by hand: C++, MPI and a BLAS, the batch split over the ranks,
// one thread a rank, one MPI_Allreduce of all gradients.
//
//   mpirun -n R by_hand [--steps 20] [--batch 8]
//   mpirun -n R by_hand --check DIR
//
// Prints one line of JSON as train_step does. --check repeats what bench_parity --weight-decay 0
// --clip 0 wrote to DIR (Tessera only reads the files here), and exits 1 if the gradients of the
// first batch differ by more than 1e-4 in L2, relative to all, or a loss by more than 1e-4.
#include <cblas.h>
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "step.h"
#include "tessera/safetensors.h"

#ifdef TESSERA_HAVE_DNNL
#include <omp.h>
#endif

using by_hand::Sizes;
using by_hand::Step;
using by_hand::Weights;

namespace {

int rank = 0, ranks = 1;

float run(Step& step, const int32_t* inputs, const int32_t* targets, float lr) {
  step.differentiate(inputs, targets);
  MPI_Allreduce(MPI_IN_PLACE, step.sums(), static_cast<int>(step.sum_count()), MPI_FLOAT, MPI_SUM,
                MPI_COMM_WORLD);
  step.update(lr);
  return step.loss();
}

Sizes share_of(Sizes s, int batch) {
  if (batch % ranks != 0)
    throw std::runtime_error(
        fmt::format("{} examples cannot be split over {} ranks evenly; give a "
                    "--batch that can",
                    batch, ranks));
  s.batch_in_all = batch;
  s.batch = batch / ranks;
  return s;
}

void initialize(Step& step) {
  const Sizes& s = step.sizes();
  Weights& w = step.weights();
  std::mt19937 bits(1);
  auto normal = [&](float* to, int count, float deviation) {
    std::normal_distribution<float> numbers(0, deviation);
    for (int i = 0; i < count; ++i) to[i] = numbers(bits);
  };
  auto ones = [&](float* to) { std::fill_n(to, s.d, 1.0f); };
  normal(w.embedding, s.vocab * s.d, 0.02f);
  normal(w.position, s.length * s.d, 0.02f);
  for (by_hand::BlockWeights& b : w.blocks) {
    ones(b.norm1_scale), ones(b.norm2_scale);
    normal(b.qkv, 3 * s.d * s.d, 0.02f), normal(b.out, s.d * s.d, 0.02f);
    normal(b.up, s.d * s.ff(), 0.02f), normal(b.down, s.ff() * s.d, 0.02f);
  }
  ones(w.norm_scale);
  normal(w.head, s.d * s.vocab, 0.02f);
}

void measure(int batch, int steps) {
  const Sizes s = share_of({}, batch);
  Step step(s);
  initialize(step);
  std::vector<int32_t> tokens(static_cast<size_t>(2 * s.tokens()));
  uint32_t x = 1 + static_cast<uint32_t>(rank);
  for (int32_t& token : tokens) {
    x = x * 1664525u + 1013904223u;
    token = static_cast<int32_t>((x >> 16) % static_cast<uint32_t>(s.vocab));
  }
  std::vector<double> ms;
  for (int i = 0; i < steps + 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const float loss = run(step, tokens.data(), tokens.data() + s.tokens(), 3e-4f);
    const auto end = std::chrono::steady_clock::now();
    if (i >= 3) ms.push_back(std::chrono::duration<double, std::milli>(end - start).count());
    if (!(loss > 0)) throw std::runtime_error(fmt::format("the loss of step {} is {}", i, loss));
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2], all = batch * s.length;
  const double flops = all * (6.0 * (s.layers * 12.0 * s.d * s.d + s.d * s.vocab) +
                              12.0 * s.layers * s.length * s.d);
  if (rank == 0) {
    fmt::print(
        R"({{"peer": "by_hand", "dtype": "float32", "mesh": "data:{}", "threads": 1, "ms": {:.2f}, "least_ms": {:.2f}, "tokens_per_s": {:.0f}, "gflops_per_s": {:.1f}, "steps": {}}})"
        "\n",
        ranks, median, ms[0], all / median * 1e3, flops / median / 1e6, steps);
  }
}

/// Calls see(name, part of w, rows, columns, elements from row to row) for each stored parameter.
template <class See>
void each_parameter(const Sizes& s, const Weights& w, const See& see) {
  const int d = s.d;
  see("gpt.embedding", w.embedding, s.vocab, d, d);
  see("gpt.position", w.position, s.length, d, d);
  for (int l = 0; l < s.layers; ++l) {
    const by_hand::BlockWeights& b = w.blocks[static_cast<size_t>(l)];
    auto name = [&](const char* of) { return fmt::format("gpt.block{}.{}", l, of); };
    see(name("norm1.scale"), b.norm1_scale, 1, d, d);
    see(name("norm1.bias"), b.norm1_bias, 1, d, d);
    see(name("attention.query.w"), b.qkv, d, d, 3 * d);
    see(name("attention.query.b"), b.qkv_bias, 1, d, d);
    see(name("attention.key.w"), b.qkv + d, d, d, 3 * d);
    see(name("attention.value.w"), b.qkv + 2 * d, d, d, 3 * d);
    see(name("attention.value.b"), b.qkv_bias + 2 * d, 1, d, d);
    see(name("attention.out.w"), b.out, d, d, d);
    see(name("attention.out.b"), b.out_bias, 1, d, d);
    see(name("norm2.scale"), b.norm2_scale, 1, d, d);
    see(name("norm2.bias"), b.norm2_bias, 1, d, d);
    see(name("mlp.up.w"), b.up, d, s.ff(), s.ff());
    see(name("mlp.up.b"), b.up_bias, 1, s.ff(), s.ff());
    see(name("mlp.down.w"), b.down, s.ff(), d, d);
    see(name("mlp.down.b"), b.down_bias, 1, d, d);
  }
  see("gpt.norm.scale", w.norm_scale, 1, d, d);
  see("gpt.norm.bias", w.norm_bias, 1, d, d);
  see("gpt.head.w", w.head, d, s.vocab, s.vocab);
}

/// L2(gradients - stored) / L2(stored), over all parameters.
double gradient_difference(Step& step, const tessera::SafetensorsReader& first) {
  double difference = 0, size = 0;
  auto compare = [&](const std::string& name, const float* part, int rows, int columns, int row) {
    tessera::Array stored = first.read("grad." + name);
    for (int i = 0; i < rows * columns; ++i) {
      const double b = stored.at(i), a = part[i / columns * row + i % columns];
      difference += (a - b) * (a - b);
      size += b * b;
    }
  };
  each_parameter(step.sizes(), step.gradients(), compare);
  return std::sqrt(difference / size);
}

bool check(const std::string& dir) {
  const tessera::SafetensorsReader initial(dir + "/initial.safetensors"),
      first(dir + "/first.safetensors"), batches(dir + "/batches.safetensors"),
      trained(dir + "/trained.safetensors");
  const std::map<std::string, std::string>& options = initial.metadata();
  if (std::stod(options.at("weight_decay")) != 0 || std::stod(options.at("clip")) != 0 ||
      options.at("tied") != "0" || options.at("dtype") != "float32")
    throw std::runtime_error("'" + dir +
                             "' is not of bench_parity --weight-decay 0 --clip 0 in float32");
  const std::vector<int64_t> of_batch = batches.tensor("inputs").sizes,
                             of_embedding = initial.tensor("gpt.embedding").sizes;
  Sizes s;
  s.layers = std::stoi(options.at("layers")), s.heads = std::stoi(options.at("heads"));
  s.vocab = static_cast<int>(of_embedding[0]), s.d = static_cast<int>(of_embedding[1]);
  s.length = static_cast<int>(of_batch[2]);
  s = share_of(s, static_cast<int>(of_batch[1]));
  Step step(s);
  each_parameter(s, step.weights(),
                 [&](const std::string& name, float* part, int rows, int columns, int row) {
                   tessera::Array stored = initial.read(name);
                   for (int i = 0; i < rows; ++i)
                     std::copy_n(stored.data<float>() + i * columns, columns, part + i * row);
                 });
  tessera::Array inputs = batches.read("inputs"), targets = batches.read("targets");
  tessera::Array losses = trained.read("losses");
  double worst = 0, gradient = 0;
  for (int64_t i = 0; i < of_batch[0]; ++i) {
    const int64_t at = (i * ranks + rank) * s.tokens();
    const float loss = run(step, inputs.data<int32_t>() + at, targets.data<int32_t>() + at,
                           std::stof(options.at("lr")));
    if (i == 0) gradient = gradient_difference(step, first);
    worst = std::max(worst, std::abs(loss - losses.at(i)) / losses.at(i));
  }
  if (rank == 0) {
    fmt::print(
        "{} ranks, {} steps: gradients of the first batch differ by {:.2e}, losses by {:.2e} at "
        "most\n",
        ranks, of_batch[0], gradient, worst);
  }
  return gradient <= 1e-4 && worst <= 1e-4;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("a training step of gpt by hand");
  int batch = 8, steps = 20;
  std::string dir;
  app.add_option("--batch", batch);
  app.add_option("--steps", steps);
  app.add_option("--check", dir);
  CLI11_PARSE(app, argc, argv);
  openblas_set_num_threads(1);
#ifdef TESSERA_HAVE_DNNL
  omp_set_num_threads(1);
#endif
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  bool good = true;
  try {
    if (dir.empty()) {
      measure(batch, steps);
    } else {
      good = check(dir);
    }
  } catch (const std::exception& e) {
    if (rank == 0) fmt::print(stderr, "by_hand: {}\n", e.what());
    good = false;
  }
  MPI_Finalize();
  return good ? 0 : 1;
}
