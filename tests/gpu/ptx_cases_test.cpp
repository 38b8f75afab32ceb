// Everything that the emulated GPU runs, as the PTX that NVRTC makes of its kernels: the values of
// the CPU in every floating type, and a table of the instructions that were executed.
#include <fmt/format.h>

#include <cstdlib>

#include "gpu/emulator.h"
#include "gpu/ptx/kernels.h"
#include "ops/attention_cases.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/gpt_run.h"
#include "support/reference.h"

namespace tessera::test {

namespace {

/// An emulated GPU that runs PTX, as this process's while it lives.
struct PtxGpu {
  explicit PtxGpu(int gpus = 1) : api(gpus) { api.kernels_as = KernelsAs::ptx; }
  CudaEmulator api;
  WithEmulator here{api};
};

struct Allowed {
  double tolerance;
  double floor;  ///< of the norm that errors are relative to
};
Allowed allowed(DType type) {
  switch (type) {
    case DType::float64:
      return {1e-11, 1e-3};
    case DType::bfloat16:
      return {0x1p-6, 1e-2};
    case DType::float16:
      return {0x1p-9, 1e-2};
    default:
      return {2e-5, 1e-3};
  }
}

struct Compiled {
  std::unique_ptr<BuiltCase> built;
  std::unique_ptr<Session> session;
};

std::string errors_of(const Compiled& row, Cluster& one, DType type) {
  const BuiltCase& built = *row.built;
  const auto expected = built.run(one, Mesh::parse("x:1"), "");
  const std::vector<Tensor> tensors = built.fetched();
  std::string errors;
  for (size_t r = 0; r < expected.size(); ++r) {
    built.feed(*row.session, built.rounds[r]);
    row.session->run("all");
    for (size_t i = 0; i < tensors.size(); ++i) {
      const bool is_loss = !built.loss().empty() && tensors[i].id() == built.loss().id();
      const double error = relative_error(whole_of(row.session->fetch(tensors[i].name())),
                                          expected[r][i], is_loss ? 1.0 : allowed(type).floor);
      if (!(error <= allowed(type).tolerance))
        errors += fmt::format("\n{} {} run {}: '{}' is off by {:.3g}", built.row().name,
                              to_string(type), r + 1, tensors[i].name(), error);
    }
  }
  return errors;
}

/// Every `step`th row, from `first` on. Kernels are compiled together.
std::string errors_of_rows(DType type, size_t first, size_t step) {
  Clusters clusters;
  std::vector<Compiled> rows;
  for (size_t k = first; k < op_cases().size(); k += step) {
    Compiled c;
    c.built = std::make_unique<BuiltCase>(op_cases()[k], type);
    c.session = c.built->compile(clusters.of(1), Mesh::parse("x:1"), "", "cuda");
    rows.push_back(std::move(c));
  }
  std::string errors;
  for (const Compiled& c : rows) {
    try {
      errors += errors_of(c, clusters.of(1), type);
    } catch (const std::exception& e) {
      errors += fmt::format("\n{} {}: {}", c.built->row().name, to_string(type), e.what());
      clusters.drop(1);
    }
  }
  return errors;
}

/// All rows with TESSERA_LONG; else a sample that moves with TESSERA_SEED.
std::string errors_of_sample(DType type, size_t step) {
  const PtxGpu gpu;
  if (std::getenv("TESSERA_LONG") != nullptr) step = 1;
  return errors_of_rows(type, seed_of_run(0) % step, step);
}

}  // namespace

TEST_CASE("every row of op_cases has the CPU's values as PTX", "[cuda][ptx][slow]") {
  CHECK(errors_of_sample(DType::float32, 1) == "");
}

TEST_CASE("rows of op_cases have the CPU's values as PTX in float64", "[cuda][ptx][slow]") {
  CHECK(errors_of_sample(DType::float64, 6) == "");
}

TEST_CASE("rows of op_cases have the CPU's values as PTX in 16 bits", "[cuda][ptx][slow]") {
  CHECK(errors_of_sample(DType::bfloat16, 6) == "");
  CHECK(errors_of_sample(DType::float16, 6) == "");
}

}  // namespace tessera::test
