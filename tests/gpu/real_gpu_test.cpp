// What needs a GPU: ctest leaves it out, scripts/gpu_check runs it.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "gpu/rows_on_gpu.h"
#include "support/catch.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// A region is captured in its second run.
constexpr int kRuns = 3;

/// TESSERA_PART=2/8: the third of eight parts, as kernels are compiled by one thread.
std::string errors_of_part(DType type) {
  int part = 0, parts = 1;
  if (const char* given = std::getenv("TESSERA_PART"))
    REQUIRE(std::sscanf(given, "%d/%d", &part, &parts) == 2);
  std::vector<OpCase> rows;
  for (size_t k = static_cast<size_t>(part); k < op_cases().size(); k += static_cast<size_t>(parts))
    rows.push_back(op_cases()[k]);
  return errors_of_rows(rows, type, kRuns);
}

TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: float32",
          "[slow][gpu]") {
  CHECK(errors_of_part(DType::float32) == "");
  CHECK(errors_of_extremes() == "");
}
TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: float64",
          "[slow][gpu]") {
  CHECK(errors_of_part(DType::float64) == "");
}
TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: bfloat16",
          "[slow][gpu]") {
  CHECK(errors_of_part(DType::bfloat16) == "");
}
TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: float16",
          "[slow][gpu]") {
  CHECK(errors_of_part(DType::float16) == "");
}

TEST_CASE("a gpt has the same bits twice on the GPU of this machine", "[slow][gpu]") {
  Clusters clusters;
  for (const char* axes : {"a:1", "a:2"}) {
    const Mesh mesh = Mesh::parse(axes);
    const auto run = [&] {
      return train_small_gpt(clusters.of(mesh.size()), mesh, mesh.size() > 1 ? "batch:a" : "",
                             DType::float32, 100, "cuda", 0.1);
    };
    const GptOutcome first = run(), second = run();
    CHECK(first.losses == second.losses);
    for (const auto& [name, array] : first.stored)
      CHECK(array.bytes == second.stored.at(name).bytes);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
