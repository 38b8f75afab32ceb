// Strict numerics on a GPU: the bits of the CPU's kernels, on one rank and under any layout.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kChunks = 4;

bool same_bits(const Array& a, const Array& b) {
  for (int64_t i = 0; i < a.elements(); ++i) {
    const bool are_nan = std::isnan(a.at(i)) && std::isnan(b.at(i));
    if (!are_nan && std::bit_cast<uint64_t>(a.at(i)) != std::bit_cast<uint64_t>(b.at(i)))
      return false;
  }
  return a.elements() == b.elements();
}

/// A row of op_cases, compiled for the GPU under a layout.
struct StrictRow {
  std::unique_ptr<BuiltCase> built;
  MeshLayout at;
  std::unique_ptr<Session> session;
};

/// What differs from one rank of the CPU.
std::string errors_of(const StrictRow& row, Cluster& one) {
  std::string errors;
  const auto cpu = row.built->compile(one, Mesh::parse("x:1"), "", "cpu", kChunks);
  for (size_t r = 0; r < row.built->rounds.size(); ++r) {
    for (Session* session : {cpu.get(), row.session.get()}) {
      row.built->feed(*session, row.built->rounds[r]);
      session->run("all");
    }
    for (const Tensor& t : row.built->fetched()) {
      const Array a = cpu->fetch(t.name()), b = row.session->fetch(t.name());
      if (same_bits(a, b)) continue;
      errors += fmt::format("\n{} on mesh '{}' layout '{}' run {}: '{}' has other bits",
                            row.built->row().name, row.at.mesh, row.at.layout, r + 1, t.name());
      for (int64_t i = 0; i < a.elements(); ++i)
        if (std::bit_cast<uint64_t>(a.at(i)) != std::bit_cast<uint64_t>(b.at(i))) {
          errors += fmt::format(": {} is {}, not {}", i, b.at(i), a.at(i));
          break;
        }
    }
  }
  return errors;
}

/// Every `step`th row of op_cases, on one rank and under a layout of several.
std::string errors_of_sample(DType dtype, size_t step, KernelsAs as) {
  CudaEmulator gpu;
  gpu.kernels_as = as;
  const WithEmulator here(gpu);
  Clusters clusters;
  std::mt19937_64 random(seed_of_run(5));
  std::vector<StrictRow> rows;
  std::string errors;
  for (size_t k = random() % step; k < op_cases().size(); k += step) {
    for (const std::string mesh : {"x:1", random() % 2 == 0 ? "x:2" : "x:3"}) {
      StrictRow row;
      try {
        row.built = std::make_unique<BuiltCase>(op_cases()[k], dtype);
        const auto layouts =
            layouts_of(dims_in(row.built->graph(), op_cases()[k].splits), mesh, random);
        row.at = mesh == "x:1" ? MeshLayout{mesh, ""} : layouts[random() % layouts.size()];
        const Mesh m = Mesh::parse(mesh);
        row.session = row.built->compile(clusters.of(m.size()), m, row.at.layout, "cuda", kChunks);
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::usage)
          errors += fmt::format("\n{}: {}", op_cases()[k].name, e.what());
        continue;  // a row may not have the type, and its rules may claim an axis twice
      }
      rows.push_back(std::move(row));
    }
  }
  for (const StrictRow& row : rows) {
    try {
      errors += errors_of(row, clusters.of(1));
    } catch (const Error& e) {
      errors += fmt::format("\n{} {} '{}': {}", row.built->row().name, row.at.mesh, row.at.layout,
                            e.what());
      return errors;  // its ranks have failed
    }
  }
  for (const std::string& misuse : gpu.take_misuses()) errors += "\n" + misuse;
  return errors;
}

size_t step_of_run(size_t step) {
  const char* wanted = std::getenv("TESSERA_STRICT_STEP");
  return wanted ? static_cast<size_t>(std::atoi(wanted)) : step;
}

TEST_CASE("ops have the CPU's bits on a GPU under strict numerics", "[cuda][strict]") {
  CHECK(errors_of_sample(DType::float32, step_of_run(12), KernelsAs::cpp) == "");
  CHECK(errors_of_sample(DType::bfloat16, step_of_run(24), KernelsAs::cpp) == "");
}

TEST_CASE("ops have the CPU's bits as PTX under strict numerics", "[cuda][ptx][strict]") {
  if (!has_ptx()) return;
  CHECK(errors_of_sample(DType::float32, step_of_run(24), KernelsAs::ptx) == "");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
