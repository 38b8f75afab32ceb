// What needs a GPU: ctest leaves it out, scripts/gpu_check runs it.
#include <fmt/format.h>

#include <cmath>

#include "gpu/rows_on_gpu.h"
#include "support/catch.h"
#include "support/gpt_run.h"

namespace tessera::test {

/// A region is captured in its second run.
constexpr int kRuns = 3;

TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: float32",
          "[slow][gpu]") {
  CHECK(errors_of_rows(op_cases(), DType::float32, kRuns) == "");
  CHECK(errors_of_extremes() == "");
}
TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: float64",
          "[slow][gpu]") {
  CHECK(errors_of_rows(op_cases(), DType::float64, kRuns) == "");
}
TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: bfloat16",
          "[slow][gpu]") {
  CHECK(errors_of_rows(op_cases(), DType::bfloat16, kRuns) == "");
}
TEST_CASE("rows of op_cases have the CPU's values on the GPU of this machine: float16",
          "[slow][gpu]") {
  CHECK(errors_of_rows(op_cases(), DType::float16, kRuns) == "");
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

}  // namespace tessera::test
