// Everything that the emulated GPU runs, as the PTX that NVRTC makes of its kernels: the values of
// the CPU in every floating type, and a table of the instructions that were executed.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "gpu/ptx/kernels.h"
#include "gpu/rows_on_gpu.h"
#include "ops/attention_cases.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/gpt_run.h"
#include "support/reference.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// An emulated GPU that runs PTX, as this process's while it lives.
struct PtxGpu {
  explicit PtxGpu(int gpus = 1) : api(gpus) { api.kernels_as = KernelsAs::ptx; }
  CudaEmulator api;
  WithEmulator here{api};
};

/// Every `step`th row, from one that TESSERA_SEED chooses; all with TESSERA_LONG.
std::string errors_of_sample(DType type, size_t step) {
  const PtxGpu gpu;
  if (std::getenv("TESSERA_LONG") != nullptr) step = 1;
  std::vector<OpCase> rows;
  for (size_t k = seed_of_run(0) % step; k < op_cases().size(); k += step)
    rows.push_back(op_cases()[k]);
  return errors_of_rows(rows, type);
}

/// A line for each form of instruction that kernels contain.
std::string table_of(const std::map<std::string, ptx::Executed>& coverage) {
  std::string text = "| instruction | kernels | places | executed |\n|---|---|---|---|\n";
  for (const auto& [form, n] : coverage)
    text += fmt::format("| `{}` | {} | {} | {} |\n", form, n.kernels, n.places, n.executed);
  return text;
}

/// Forms of instruction that came with kernels since `before` and that nothing has executed.
std::string never_executed(const std::map<std::string, ptx::Executed>& before) {
  std::string forms;
  for (const auto& [form, n] : ptx::coverage()) {
    const auto had = before.find(form);
    const bool is_new = had == before.end() || n.places > had->second.places;
    if (is_new && n.executed == 0) forms += " " + form;
  }
  return forms;
}

/// Kernels that run in this and in no earlier part of a table.
struct Counted {
  ptx::Counts before = ptx::counts();
  std::string line(const std::string& name) const {
    const ptx::Counts now = ptx::counts();
    return fmt::format("| {} | {} | {} |\n", name, now.kernels - before.kernels,
                       now.launches - before.launches);
  }
};

TEST_CASE("every row of op_cases has the CPU's values as PTX, and executes all that there is in it",
          "[cuda][ptx][slow]") {
  const auto before = ptx::coverage();  // of random kernels, whose branches data may not reach
  CHECK(errors_of_sample(DType::float32, 1) == "");
  {
    const PtxGpu gpu;
    CHECK(errors_of_extremes() == "");
  }
  CHECK(ptx::counts().kernels > 1000);
  CHECK(ptx::coverage().size() > 200);
  CHECK(never_executed(before) == "");
}

/// All that runs as PTX, as tables. Takes long: ctest leaves it out.
TEST_CASE("the tables of what runs as PTX", "[.][ptx-table]") {
  const std::vector<std::pair<const char*, std::vector<OpCase>>> families = {
      {"pointwise", pointwise_cases()}, {"product", product_cases()},
      {"composite", composite_cases()}, {"indexed", indexed_cases()},
      {"shape", shape_cases()},         {"ordered", ordered_cases()},
      {"attention", attention_cases()}, {"variant", variant_cases()},
      {"layer", layer_cases()},         {"routing", routing_cases()},
      {"window", window_cases()},       {"loop", loop_cases()}};
  std::string table = "| rows, type | kernels | launches |\n|---|---|---|\n";
  for (const DType type : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    for (const auto& [name, rows] : families) {
      const PtxGpu gpu;
      const Counted counted;
      CHECK(errors_of_rows(rows, type) == "");
      table += counted.line(fmt::format("{}, {}", name, to_string(type)));
    }
  }
  const Counted counted;
  {
    const PtxGpu gpu;
    CHECK(errors_of_extremes() == "");
  }
  table += counted.line("large arguments, faults");
  std::fputs((table + "\n" + table_of(ptx::coverage())).c_str(), stdout);
  CHECK(never_executed({}) == "");
}

TEST_CASE("rows of op_cases have the CPU's values as PTX in float64", "[cuda][ptx][slow]") {
  CHECK(errors_of_sample(DType::float64, 6) == "");
}

TEST_CASE("rows of op_cases have the CPU's values as PTX in 16 bits", "[cuda][ptx][slow]") {
  CHECK(errors_of_sample(DType::bfloat16, 6) == "");
  CHECK(errors_of_sample(DType::float16, 6) == "");
}

/// Slices of several ranks lie at odd places and strides, have sizes of their own and masks.
TEST_CASE("rows of op_cases under random layouts have the CPU's values as PTX",
          "[cuda][ptx][slow]") {
  const char* wanted = std::getenv("TESSERA_PTX_ROWS");
  const int rows = wanted != nullptr ? std::atoi(wanted) : 40;
  std::mt19937_64 random(seed_of_run(1));
  Clusters clusters;
  const PtxGpu gpu;
  std::string errors;
  int ran = 0;
  for (int n = 0; n < rows; ++n) {
    constexpr DType kTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
    const DType type = kTypes[random() % 4];
    const OpCase& row = op_cases()[random() % op_cases().size()];
    const std::string mesh = random() % 2 == 0 ? "x:2" : "x:3";
    RowOnGpu c;
    MeshLayout l{mesh, ""};
    try {  // a row may not have the type, and its dims may not be split so
      c.built = std::make_unique<BuiltCase>(row, type);
      const auto layouts = layouts_of(dims_in(c.built->graph(), row.splits), mesh, random);
      l = layouts[random() % layouts.size()];
      c.session = c.built->compile(clusters.of(Mesh::parse(l.mesh).size()), Mesh::parse(l.mesh),
                                   l.layout, "cuda");
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::usage && e.kind() != ErrorKind::unsupported) throw;
      continue;
    }
    ++ran;
    try {
      errors += errors_of(c, clusters.of(1), type);
    } catch (const Error& e) {
      errors +=
          fmt::format("\n{} {} {} {}: {}", row.name, to_string(type), l.mesh, l.layout, e.what());
      clusters.drop(Mesh::parse(l.mesh).size());
    }
  }
  CHECK(errors == "");
  CHECK(ran * 3 > rows);
}

TEST_CASE("a gpt trains as PTX as on the CPU: float32 with dropout, 16 and 8 bits",
          "[cuda][ptx][slow]") {
  Clusters clusters;
  const Mesh one = Mesh::parse("a:1");
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const bool float8 : {false, true}) {
      if (float8 && type != DType::bfloat16) continue;
      nn::GptOptions size = small_gpt(type);
      size.d_model = size.ff = 48;  // multiples of 16: a store of float8
      size.batch = size.length = 8;
      size.dropout = type == DType::float32 ? 0.1 : 0;
      size.float8 = float8;
      const auto expected = train_gpt(size, clusters.of(1), one, "", 4).losses;
      PtxGpu gpu;
      const auto losses = train_gpt(size, clusters.of(1), one, "", 4, "cuda").losses;
      INFO(to_string(type) << (float8 ? " with float8" : ""));
      for (size_t i = 0; i < losses.size(); ++i)
        CHECK(std::abs(losses[i] - expected[i]) < (type == DType::float32 ? 2e-5 : 0.03));
      CHECK((gpu.api.float8_matmuls > 0) == float8);
      clusters.drop(1);
    }
  }
}

TEST_CASE("ranks with groups of GPUs in captured steps train as PTX as on the CPU",
          "[cuda][ptx][slow]") {
  Clusters clusters;
  const auto expected =
      train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 4).losses;
  PtxGpu gpus(4);
  gpus.api.has_groups = true;
  for (const char* layout : {"batch:a; heads,ff,vocab:b", "length:a; @params d_model:a"}) {
    const auto losses =
        train_small_gpt(clusters.of(4), Mesh::parse("a:2;b:2"), layout, DType::float32, 4, "cuda")
            .losses;
    for (size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] - expected[i]) < 2e-5);
  }
  CHECK(gpus.api.group_calls > 0);
  CHECK(gpus.api.captures > 0);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
