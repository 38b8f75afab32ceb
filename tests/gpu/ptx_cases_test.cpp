// Everything that the emulated GPU runs, as the PTX that NVRTC makes of its kernels.
#include <fmt/format.h>

#include "gpu/emulator.h"
#include "gpu/ptx/kernels.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"

namespace tessera::test {

namespace {

std::string compare_rows(const std::vector<OpCase>& cases, DType type, double tolerance) {
  Clusters clusters;
  std::vector<std::unique_ptr<BuiltCase>> built;
  std::vector<std::unique_ptr<Session>> sessions;
  for (const OpCase& row : cases) {
    built.push_back(std::make_unique<BuiltCase>(row, type));
    sessions.push_back(built.back()->compile(clusters.of(1), Mesh::parse("x:1"), "", "cuda"));
  }
  std::string errors;
  for (size_t k = 0; k < cases.size(); ++k) {
    const auto expected = built[k]->run(clusters.of(1), Mesh::parse("x:1"), "");
    const std::vector<Tensor> tensors = built[k]->fetched();
    for (size_t r = 0; r < expected.size(); ++r) {
      try {
        built[k]->feed(*sessions[k], built[k]->rounds[r]);
        sessions[k]->run("all");
        for (size_t i = 0; i < tensors.size(); ++i) {
          const bool is_loss = !built[k]->loss().empty() && tensors[i].id() == built[k]->loss().id();
          const double error = relative_error(whole_of(sessions[k]->fetch(tensors[i].name())),
                                              expected[r][i], is_loss ? 1.0 : 1e-3);
          if (!(error <= tolerance))
            errors += fmt::format("\n{} run {}: '{}' is off by {:.3g}", cases[k].name, r + 1,
                                  tensors[i].name(), error);
        }
      } catch (const std::exception& e) {
        errors += fmt::format("\n{} run {}: {}", cases[k].name, r + 1, std::string(e.what()).substr(0, 700));
        break;
      }
    }
  }
  return errors;
}

}  // namespace

TEST_CASE("PTX: rows of op_cases", "[ptx-try]") {
  CudaEmulator gpu;
  gpu.kernels_as = KernelsAs::ptx;
  const WithEmulator here(gpu);
  const char* only = std::getenv("ONLY");
  std::vector<OpCase> cases;
  for (const OpCase& row : op_cases())
    if (!only || row.name.find(only) != std::string::npos) cases.push_back(row);
  CHECK(compare_rows(cases, DType::float32, 2e-5) == "");
  const auto c = ptx::counts();
  WARN(c.kernels << " kernels, " << c.launches << " launches");
  std::string t;
  for (const auto& [form, n] : ptx::coverage()) t += fmt::format("{:60} {:5} {:7} {:7}\n", form, n.kernels, n.instructions, n.executed);
  WARN(t);
}

}  // namespace tessera::test
