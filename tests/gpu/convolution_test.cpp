// Convolutions of cuDNN's: those of op_cases have the CPU's values, laid out for it or
// not, and what it cannot do runs by a kernel of Tessera's, for a stated reason.
#include "base/fail.h"
#include "gpu/emulator.h"
#include "gpu/rows_on_gpu.h"
#include "kernels/cuda/conv_plan.h"
#include "lower/lower.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// What is wrong with the rows of op_cases that have a convolution.
std::string errors_of_convolutions(DType dtype) {
  std::vector<OpCase> rows = op_cases();
  std::erase_if(rows, [](const OpCase& row) { return row.name.find("conv") == std::string::npos; });
  CHECK(rows.size() > 5);
  return errors_of_rows(rows, dtype);
}

/// The plan of a convolution of 2 images of 8 x 8 x 3 with a filter of 3 x 3.
cuda::ConvPlan plan_of(const ConvOptions& how, DType dtype, const char* mesh = "a:1",
                       const char* layout = "") {
  Graph g;
  const Dim n("n", 2), height("height", 8), width("width", 8), in("in", 3), out("out", 4);
  const Dim fh("filter_height", 3), fw("filter_width", 3);
  Tensor x = g.input("x", {n, height, width, in}, dtype);
  Tensor f = g.input("f", {fh, fw, in, out}, dtype);
  Tensor y = conv(x, f, how);
  LowerOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"f", {y}, false}}, {}, {}, {}};
  const Program program = lower(g, options);
  for (const Step& step : program.functions.back().steps) {
    if (step.kernel == KernelKind::conv) return cuda::plan_conv(step);
  }
  return {};
}

TEST_CASE("cuDNN's convolutions have the CPU's values", "[cuda]") {
  CudaEmulator gpu;
  gpu.has_cudnn = true;
  const WithEmulator here(gpu);
  CHECK(errors_of_convolutions(DType::float32) == "");
  CHECK(gpu.convolutions > 20);
  const int64_t before = gpu.convolutions;
  CHECK(errors_of_convolutions(DType::bfloat16) == "");
  CHECK(gpu.convolutions > before + 20);
}

TEST_CASE("which convolutions cuDNN gets, and how their operands lie", "[cuda]") {
  const ConvOptions plain{{{"height"}, {"width"}}};
  const cuda::ConvPlan last = plan_of(plain, DType::bfloat16),
                       first = plan_of(plain, DType::float32);
  CHECK(last.why_not.empty());
  CHECK(last.channels_last);
  CHECK_FALSE(last.copies[0].used);  // images, height, width, channels: as they are
  CHECK(last.copies[1].used);        // of the filter the outputs come first
  CHECK_FALSE(last.copies[2].used);
  CHECK(last.dims[0].pad == 1);
  CHECK(first.why_not.empty());
  CHECK_FALSE(first.channels_last);
  CHECK(first.copies[0].used);
  CHECK(first.copies[2].offset >= first.copies[1].offset + 4 * 3 * 3 * 3 * 4);
  CHECK(first.workspace >= 2 * 8 * 8 * (3 + 4) * 4 + 3 * 3 * 3 * 4 * 4);
  CHECK(plan_of({{{"height", "", 1, 2}, {"width"}}}, DType::float32).dims[0].pad == 2);
  CHECK(plan_of({{{"height", "", 2}, {"width"}}}, DType::float32).why_not ==
        "its padding of 0 elements at the front is not that at the end");
  CHECK(plan_of(plain, DType::float64).why_not == "it is of float64");
  CHECK(plan_of(plain, DType::float32, "a:2", "height:a").why_not ==
        "ranks have parts of a spatial dim");
  CHECK(plan_of(plain, DType::float32, "a:2", "n:a").why_not.empty());
}

TEST_CASE("a convolution that cuDNN does not get says why", "[cuda]") {
  Graph g;
  const Dim n("n", 1), length("length", 8), in("in", 3), out("out", 4), window("window", 3);
  Tensor x = g.input("x", {n, length, in}, DType::float32);
  Tensor f = g.input("f", {window, in, out}, DType::float32);
  Tensor y = conv(x, f, {{{"length", "window", 2}}}).named("y");
  const auto run = [&](bool has) {
    CudaEmulator gpu;
    gpu.has_cudnn = has;
    const WithEmulator here(gpu);
    Clusters clusters;
    CompileOptions options{Mesh::parse("a:1"), {}, {{"f", {y}, false}}};
    options.device = "cuda";
    Session session(g, clusters.of(1), options);
    std::string why;
    for (const std::string& line : session.fallbacks()) why += line + "\n";
    CHECK(gpu.convolutions == 0);
    return why;
  };
  CHECK(run(false).find("own kernel: cuDNN is missing") != std::string::npos);
  const std::string why = run(true);
  CHECK(why.find("[conv] ") == 0);
  CHECK(why.find("convolution_test.cpp") != std::string::npos);
  CHECK(why.find("is not that at the end") != std::string::npos);
  setenv("TESSERA_CUDNN", "off", 1);
  CHECK(run(true).find("TESSERA_CUDNN is off") != std::string::npos);
  unsetenv("TESSERA_CUDNN");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
