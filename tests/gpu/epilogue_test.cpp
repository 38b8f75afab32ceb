// What stands behind a matmul becomes part of it on a GPU: the Program is the recorded one,
// values are those of the CPU, whose matmuls end with less, and fewer kernels run.
#include "kernels/cuda/epilogue.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "lower/lower.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// A block with a residual, its gradients summed over two parts of the batch.
Program block_program(bool for_gpu) {
  Graph g;
  const Dim part("batch", 4), d("d", 16), ff("ff", 32), seen("seen", 16);
  Tensor up = g.parameter("up", {d, ff}, nn::normal(0.1));
  Tensor up_bias = g.parameter("up_bias", {ff}, nn::zeros());
  Tensor down = g.parameter("down", {ff, d}, nn::normal(0.1));
  Tensor down_bias = g.parameter("down_bias", {d}, nn::zeros());
  const auto loss = [&] {
    Tensor x = g.input("x", {part, d}, DType::float32);
    const auto narrow = [](const Tensor& t) { return cast(t, DType::bfloat16); };
    Tensor h = narrow(x);
    Tensor hidden = gelu(einsum({h, narrow(up)}, {part, ff}) + narrow(up_bias));
    Tensor y = h + (einsum({hidden, narrow(down)}, {part, d}) + narrow(down_bias));
    return mean_all(square(cast(y, DType::float32)));
  };
  const Minimized step = minimize_in_microbatches(g, "batch", 2, loss, constant(g, 0.1), sgd());
  LowerOptions lowering{Mesh::parse("x:1"), {}, {{"train", {step.loss}, true}}, {}, {}, {}};
  if (for_gpu) lowering.takes_epilogue = cuda::takes_epilogue;
  return lower(g, lowering);
}

struct Run {
  GptOutcome outcome;
  int64_t kernels = 0, epilogues = 0, sums = 0;
};

struct Where {
  std::string mesh = "a:1", layout = {};
  int chunks = 0;
};

/// Three steps of a gpt, its batch in two parts, on a GPU with or without a library that ends
/// matmuls.
Run train(CudaEmulator& gpu, DType dtype, const std::string& device, const Where& where = {}) {
  const WithEmulator here(gpu);
  Clusters clusters;
  Graph g;
  nn::GptOptions o = small_gpt(dtype);
  o.d_model = 24;
  o.ff = 32;
  o.batch = 4;
  const Minimized step = minimize_in_microbatches(
      g, "batch", 2, [&] { return cast(nn::gpt(g, o).loss, DType::float32); }, constant(g, 0.01),
      adam());
  CompileOptions compile{
      Mesh::parse(where.mesh), Layout::parse(where.layout), {{"train", {step.loss}, true}}};
  compile.device = device;
  compile.chunks = where.chunks;
  Session session(g, clusters.of(compile.mesh.size()), compile);
  Run run;
  for (int s = 0; s < 3; ++s) {
    for (const char* input : {"inputs", "targets"}) {
      const int64_t shift = *input == 't' ? 1 : 0;
      Array tokens(DType::int32, {"batch", "length"}, {2 * o.batch, o.length});
      for (int64_t i = 0; i < tokens.elements(); ++i) {
        const int64_t at = s * 7 + i / o.length * 5 + i % o.length + shift;
        tokens.data<int32_t>()[i] = static_cast<int32_t>(at * at % o.vocab);
      }
      session.feed(input, tokens);
    }
    if (s == 0) gpu.launches = gpu.matmuls = 0;
    session.run("train");
    if (s == 0) run.kernels = gpu.launches + gpu.matmuls;
    run.outcome.losses.push_back(session.fetch_scalar(step.loss.name()));
  }
  run.epilogues = gpu.epilogues;
  run.sums = gpu.sums;
  return run;
}

double farthest(const GptOutcome& x, const GptOutcome& y) {
  double most = 0;
  for (size_t i = 0; i < x.losses.size(); ++i)
    most = std::max(most, std::abs(x.losses[i] - y.losses[i]));
  return most;
}

TEST_CASE("what a matmul on a GPU ends with is in the Program, and only there", "[cuda][golden]") {
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/tests/golden/cuda_epilogues.txt";
  const std::string text = to_string(block_program(true));
  if (std::getenv("TESSERA_UPDATE_GOLDEN")) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream recorded;
  recorded << file.rdbuf();
  INFO("TESSERA_UPDATE_GOLDEN=1 records the new Program");
  CHECK(text == recorded.str());
  for (const Function& f : block_program(false).functions) {
    for (const Step& step : f.steps) {
      for (const Function& body : step.body) {
        for (const Step& inner : body.steps)
          CHECK((inner.kernel != KernelKind::matmul || inner.pointwise.code.empty()));
      }
    }
  }
}

TEST_CASE("a gpt whose matmuls end with what stands behind them trains as on the CPU", "[cuda]") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    INFO(to_string(dtype));
    const double tolerance = dtype == DType::float32 ? 2e-5 : 2e-2;
    CudaEmulator all, no_epilogues, no_products, apart;
    const Run expected = train(apart, dtype, "cpu"), run = train(all, dtype, "cuda");
    CHECK(farthest(run.outcome, expected.outcome) < tolerance);
    CHECK(run.epilogues > (dtype == DType::float32 ? 3 : 6));
    CHECK(run.sums > 8);
    no_epilogues.has_epilogues = false;
    const Run without = train(no_epilogues, dtype, "cuda");
    CHECK(without.epilogues == 0);
    CHECK(farthest(without.outcome, expected.outcome) < tolerance);
    no_products.has_matmuls = false;
    CHECK(farthest(train(no_products, dtype, "cuda").outcome, expected.outcome) < tolerance);
    setenv("TESSERA_EPILOGUES", "off", 1);
    const Run plain = train(apart, dtype, "cuda");
    unsetenv("TESSERA_EPILOGUES");
    CHECK(plain.epilogues + plain.sums == 0);
    CHECK(farthest(plain.outcome, expected.outcome) < tolerance);
    CHECK(run.kernels < without.kernels);
    CHECK(run.kernels + 20 < plain.kernels);
  }
}

TEST_CASE("matmuls with an end are cut with their collective, and split over ranks", "[cuda]") {
  CudaEmulator apart, gpus;
  const Run expected = train(apart, DType::bfloat16, "cpu");
  for (const Where& where : {Where{"a:2", "batch:a; @params d_model:a", 2},
                             Where{"a:2", "heads,ff,vocab:a; @/*norm*/ length:a", 2},
                             Where{"a:2;b:2", "batch:a; heads,ff,vocab:b", 4}}) {
    INFO(where.layout);
    const Run run = train(gpus, DType::bfloat16, "cuda", where);
    CHECK(farthest(run.outcome, expected.outcome) < 2e-2);
    CHECK(run.epilogues + run.sums > 20);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
