// Kernels of the CPU device against the floor of the machine, interleaved, medians:
//
//   matmul     einsum through a Session against the faster of the raw oneDNN and OpenBLAS calls
//   pointwise  fused chains (also an update by Adam, and gelu) against memcpy of as many bytes
//   executor   time of a step entry: a chain of steps on one element each
//
//   bench_kernels [--threads 1] [--repeat 15] [matmul] [pointwise] [executor]
//
// One line of JSON for each row. Reaches below the public API for the raw calls only.
#include <cblas.h>
#include <fmt/format.h>
#ifdef TESSERA_HAVE_DNNL
#include <dnnl.h>
#include <omp.h>
#endif

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "tessera/tessera.h"

using namespace tessera;

namespace {

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Medians of the functions, called in turn.
std::vector<double> medians(const std::vector<std::function<void()>>& functions, int repeat) {
  std::vector<std::vector<double>> times(functions.size());
  for (const auto& f : functions) f();
  for (int r = 0; r < repeat; ++r) {
    for (size_t i = 0; i < functions.size(); ++i) times[i].push_back(seconds(functions[i]));
  }
  std::vector<double> result;
  for (auto& t : times) {
    std::sort(t.begin(), t.end());
    result.push_back(t[t.size() / 2]);
  }
  return result;
}

/// One function "f" of a graph on one rank.
struct Run {
  Cluster cluster = Cluster::threads(1);
  Graph graph;
  std::unique_ptr<Session> session;

  void compile(const std::vector<Tensor>& outputs, int threads) {
    CompileOptions options{Mesh::parse("data:1"), Layout(), {{"f", outputs, false}}, 0, threads};
    session = std::make_unique<Session>(graph, cluster, options);
    for (const std::string& name : inputs) {
      session->feed_slices(name, [](const Slice& slice) {
        float* x = static_cast<float*>(slice.data);
        for (int64_t i = 0; i < slice.valid[0] * slice.strides[0]; ++i)
          x[i] = 0.25f + 0.001f * static_cast<float>(i % 997);
      });
    }
  }
  Tensor input(const std::string& name, const Shape& shape) {
    inputs.push_back(name);
    return graph.input(name, shape, DType::float32);
  }
  std::vector<std::string> inputs;
};

void raw_blas(int threads, int m, int n, int k, const float* a, const float* b, float* c) {
  openblas_set_num_threads(threads);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, a, k, b, n, 0, c, n);
  openblas_set_num_threads(1);
}

void raw_dnnl([[maybe_unused]] int threads, [[maybe_unused]] int m, [[maybe_unused]] int n,
              [[maybe_unused]] int k, [[maybe_unused]] const float* a,
              [[maybe_unused]] const float* b, [[maybe_unused]] float* c) {
#ifdef TESSERA_HAVE_DNNL
  omp_set_num_threads(threads);
  dnnl_sgemm('N', 'N', m, n, k, 1, a, k, b, n, 0, c, n);
#endif
}

void bench_matmul(int threads, int repeat) {
  const int sizes[][3] = {{64, 64, 64},      {128, 128, 128},   {256, 256, 256},
                          {512, 512, 512},   {1024, 256, 256},  {1024, 1024, 256},
                          {1024, 256, 1024}, {2048, 2048, 2048}};
  for (const auto& [m, n, k] : sizes) {
    Run run;
    const Dim dm("m", m), dn("n", n), dk("k", k);
    Tensor a = run.input("a", {dm, dk}), b = run.input("b", {dk, dn});
    run.compile({einsum({a, b}, Shape{dm, dn})}, threads);
    std::vector<float> x(static_cast<size_t>(m) * k, 0.5f), y(static_cast<size_t>(k) * n, 0.25f),
        z(static_cast<size_t>(m) * n);
    const int inner = static_cast<int>(std::max(1.0, 2e7 / (2.0 * m * n * k)));
    auto many = [inner](const std::function<void()>& f) {
      return [inner, f] {
        for (int i = 0; i < inner; ++i) f();
      };
    };
    std::vector<double> t =
        medians({many([&] { run.session->run("f"); }),
                 many([&] { raw_blas(threads, m, n, k, x.data(), y.data(), z.data()); }),
                 many([&] { raw_dnnl(threads, m, n, k, x.data(), y.data(), z.data()); })},
                repeat);
#ifndef TESSERA_HAVE_DNNL
    t[2] = 1e9;
#endif
    const double flops = 2.0 * m * n * k * inner;
    fmt::print(
        R"({{"bench": "matmul", "m": {}, "n": {}, "k": {}, "threads": {}, "gflops_per_s": {:.1f}, "openblas": {:.1f}, "onednn": {:.1f}, "ratio_to_faster": {:.3f}}})"
        "\n",
        m, n, k, threads, flops / t[0] / 1e9, flops / t[1] / 1e9, flops / t[2] / 1e9,
        std::min(t[1], t[2]) / t[0]);
  }
}

void bench_pointwise(int threads, int repeat) {
  const int64_t n = 1 << 24;
  const Dim d("n", n);
  auto row = [&](const char* name, int arrays, Run& run) {
    std::vector<char> from(static_cast<size_t>(n) * 4), to(static_cast<size_t>(n) * 4);
    std::memset(from.data(), 1, from.size());
    const std::vector<double> t = medians(
        {[&] { run.session->run("f"); }, [&] { std::memcpy(to.data(), from.data(), to.size()); }},
        repeat);
    const double bytes = static_cast<double>(arrays) * static_cast<double>(n) * 4;
    const double copy = 2.0 * static_cast<double>(n) * 4 / t[1];
    fmt::print(
        R"({{"bench": "pointwise", "chain": "{}", "threads": {}, "gb_per_s": {:.2f}, "memcpy_gb_per_s": {:.2f}, "ratio": {:.3f}}})"
        "\n",
        name, threads, bytes / t[0] / 1e9, copy / 1e9, bytes / t[0] / copy);
  };
  {
    Run run;
    Tensor x = run.input("x", {d});
    run.compile({x * 1.5 + 2.0}, threads);
    row("scale_shift", 2, run);
  }
  {
    Run run;
    Tensor x = run.input("x", {d}), y = run.input("y", {d});
    run.compile({relu(x * 1.5 + y) * 0.5}, threads);
    row("residual_relu", 3, run);
  }
  {
    Run run;
    Tensor p = run.input("p", {d}), g = run.input("g", {d}), m = run.input("m", {d}),
           v = run.input("v", {d});
    Tensor m2 = m * 0.9 + g * 0.1, v2 = v * 0.95 + square(g) * 0.05;
    run.compile({m2, v2, p - m2 / (sqrt(v2) + 1e-8) * 1e-3}, threads);
    row("adam", 7, run);
  }
  {
    Run run;
    Tensor x = run.input("x", {d});
    run.compile({gelu(x)}, threads);
    row("gelu", 2, run);
  }
}

/// Steps that cannot merge: each reduces what the one before it made over a dim of one element.
void bench_executor(int repeat) {
  Run run;
  const Dim one("one", 1), rows("rows", 2);
  Tensor x = run.input("x", {rows, one});
  constexpr int kSteps = 2000;
  for (int i = 0; i < kSteps; ++i) x = cumsum(x, "rows");
  run.compile({x}, 1);
  const double t = medians({[&] { run.session->run("f"); }}, repeat * 5)[0];
  fmt::print(R"({{"bench": "executor", "steps": {}, "us_per_step": {:.4f}}})"
             "\n",
             kSteps, t / kSteps * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("kernels against the floor of the machine");
  int threads = 1, repeat = 15;
  std::vector<std::string> rows;
  app.add_option("--threads", threads);
  app.add_option("--repeat", repeat);
  app.add_option("rows", rows);
  CLI11_PARSE(app, argc, argv);
  auto wanted = [&](const char* name) {
    return rows.empty() || std::find(rows.begin(), rows.end(), name) != rows.end();
  };
  if (wanted("matmul")) bench_matmul(threads, repeat);
  if (wanted("pointwise")) bench_pointwise(threads, repeat);
  if (wanted("executor")) bench_executor(repeat);
  return 0;
}
