// Attention on tensor cores, emulated: values and gradients against float64, for every way its
// operands may lie, and what the instructions of a warp do.
#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "base/float16.h"
#include "gpu/emulator.h"
#include "gpu/host_kernels.h"
#include "gpu/rows_on_gpu.h"
#include "ops/attention_cases.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// All texts are compiled together. As PTX every `step`th case, or all with TESSERA_LONG.
std::string errors_of(const std::vector<AttentionCase>& cases, size_t step = 1) {
  if (std::getenv("TESSERA_LONG") != nullptr) step = 1;
  std::vector<std::unique_ptr<AttentionRun>> runs;
  for (const AttentionCase& c : cases) {
    runs.push_back(std::make_unique<AttentionRun>(c));
    const bool as_ptx = has_ptx() && (runs.size() - 1) % step == 0;
    for (const cuda::Source& s : runs.back()->sources()) {
      const bool is_scalar = runs.back()->type() == DType::float32 ||
                             (c.soft_cap > 0 && (c.slope > 0 || c.entries > 0)),
                 is_before_or_after = s.text.find("find_spans") != std::string::npos ||
                                      s.text.find("sum_entries") != std::string::npos;
      CHECK((s.text.find("tensor_attention") != std::string::npos) ==
            (!is_scalar && !is_before_or_after));
      announce_host_kernel(s.text, KernelsAs::cpp);
      if (as_ptx) announce_host_kernel(s.text, KernelsAs::ptx);
    }
  }
  std::string errors;
  for (size_t k = 0; k < runs.size(); ++k) {
    errors += runs[k]->errors(KernelsAs::cpp);
    if (!has_ptx() || k % step != 0) continue;
    if (const std::string as_ptx = runs[k]->errors(KernelsAs::ptx); !as_ptx.empty())
      errors += "\nas PTX:" + as_ptx;
  }
  return errors;
}

constexpr DType kBrain = DType::bfloat16, kHalf = DType::float16, kFloat = DType::float32;

/// Each structure and all of them, of uneven lengths.
std::vector<AttentionCase> structured_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c, int64_t window, int64_t segments, double soft_cap) {
    c.window = window;
    c.segments = segments;
    c.soft_cap = soft_cap;
    cases.push_back(c);
  };
  for (const DType type : {kBrain, kHalf, kFloat}) {
    AttentionCase c{type, 40, 150, 150, true, 2, 1};
    add(c, 30, 0, 0);
    add(c, 0, 4, 0);
    add(c, 0, 0, 1.5);
    c.causal = false;
    c.group = 2;
    c.lie = Lie::rows_first;
    add(c, 20, 0, 0.8);
    add(c, 0, 3, 0);
    c.memory = 70;
    add(c, 9, 3, 0.8);
    c.width = 128;
    c.causal = true;
    add(c, 25, 2, 2);
    c.first_query = 50;  // a part, whose last keys are nobody's
    c.first_key = 30;
    c.all_keys = 90;
    add(c, 0, 3, 0);
    add(c, 40, 3, 0.8);
    c.first_key = 140;  // few queries see a key
    c.all_keys = 300;
    add(c, 40, 0, 0);
    add(c, 1000, 1, 0);
    c = {type, 40, 70, 90, false, 2, 2, Lie::rows_first};  // slopes, whole and of a part
    c.slope = 0.25;
    add(c, 0, 0, 0);
    c.first_query = 50;
    c.first_key = 30;
    c.all_keys = 110;
    c.causal = true;
    add(c, 60, 3, 0.8);
    AttentionCase decode{type, 64, 1, 200, true, 2, 2};  // one query behind a cache
    decode.first_query = 180;
    add(decode, 50, 0, 0);
    add(decode, 0, 3, 0.8);
  }
  return cases;
}

/// Biases by distance and dropout, of a whole and of a part.
std::vector<AttentionCase> placed_cases() {
  std::vector<AttentionCase> cases;
  for (const DType type : {kFloat, kBrain, kHalf}) {
    AttentionCase c{type, 40, 70, 90, false, 2, 2, Lie::rows_first};
    c.entries = 41;
    cases.push_back(c);
    c.dropout = 0.3;
    c.first_query = 50;
    c.first_key = 30;
    c.all_keys = 110;
    c.window = 60;
    c.segments = 3;
    c.soft_cap = 0.8;
    cases.push_back(c);
    c = {type, 64, 130, 130, true, 2, 1};
    c.dropout = 0.1;
    cases.push_back(c);
    c.slope = 0.25;
    c.entries = 9;
    cases.push_back(c);
  }
  return cases;
}

TEST_CASE("attention on tensor cores has the values of float64", "[cuda]") {
  CHECK(errors_of({{.width = 64, .length = 130, .memory = 130, .heads = 2},
                   {.type = kHalf, .width = 40, .length = 17, .memory = 64, .causal = false}}) ==
        "");
}

TEST_CASE("attention on tensor cores: widths and lengths", "[cuda][slow]") {
  std::vector<AttentionCase> cases;
  int number = 0;
  for (int64_t width : {8, 40, 64, 96, 128}) {
    for (int64_t length : {1, 17, 64, 130}) {
      cases.push_back({number % 3 == 0 ? kHalf : kBrain, width, length, length, number % 2 == 0});
      ++number;
    }
  }
  cases.push_back({.width = 5, .length = 20, .memory = 33, .causal = false});
  cases.push_back({.width = 160, .length = 70, .memory = 70});
  CHECK(errors_of(cases, 3) == "");
}

TEST_CASE("attention on tensor cores: how operands lie, and who shares keys", "[cuda][slow]") {
  std::vector<AttentionCase> cases;
  for (Lie lie : {Lie::heads_first, Lie::rows_first, Lie::columns_last, Lie::odd}) {
    cases.push_back({kBrain, 64, 70, 70, true, 2, 3, lie});
    cases.push_back({kHalf, 100, 33, 50, false, 2, 2, lie});
    cases.push_back({kBrain, 42, 70, 20, false, 3, 1, lie});
  }
  CHECK(errors_of(cases, 3) == "");
}

TEST_CASE("attention on tensor cores: later queries, and parts of the keys", "[cuda][slow]") {
  std::vector<AttentionCase> cases;
  for (int64_t width : {32, 128}) {
    AttentionCase c{kBrain, width, 40, 130};
    c.first_query = 90;
    cases.push_back(c);
    c.first_query = 20;
    c.first_key = 37;  // the first queries see no key
    cases.push_back(c);
    c.all_keys = 150;  // the last keys are nobody's
    c.group = 2;
    cases.push_back(c);
    c.causal = false;
    c.type = kHalf;
    cases.push_back(c);
    c.causal = true;
    c.first_key = 200;  // no query sees a key
    cases.push_back(c);
  }
  CHECK(errors_of(cases, 3) == "");
}

TEST_CASE("attention with a window, segments and a soft cap has the values of float64",
          "[cuda][slow]") {
  CHECK(errors_of(structured_cases(), 4) == "");
}

TEST_CASE("attention with biases by distance and dropout has the values of float64",
          "[cuda][slow]") {
  CHECK(errors_of(placed_cases(), 3) == "");
}

TEST_CASE("attention of a Program on tensor cores has the CPU's values", "[cuda][slow]") {
  std::vector<OpCase> rows = op_cases();
  std::erase_if(rows, [](const OpCase& row) { return !row.name.starts_with("attention"); });
  for (const DType type : {kBrain, kHalf}) {
    CudaEmulator gpu;
    const WithEmulator here(gpu);
    CHECK(errors_of_rows(rows, type) == "");
    const std::vector<std::string> texts = gpu.texts();
    CHECK(std::any_of(texts.begin(), texts.end(), [](const std::string& text) {
      return text.find("tensor_attention_grad_keys") != std::string::npos;
    }));
  }
}

TEST_CASE("a gpt in bfloat16 trains alike on the CPU and with its keys going round on tensor cores",
          "[cuda][slow]") {
  Clusters clusters;
  const auto train = [&](const char* mesh, const char* layout, const char* device) {
    const Mesh ranks = Mesh::parse(mesh);
    return train_small_gpt(clusters.of(ranks.size()), ranks, layout, kBrain, 4, device).losses;
  };
  const std::vector<double> expected = train("a:1", "", "cpu");
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  for (const char* layout : {"", "length,memory_length:a"}) {
    const std::vector<double> losses = train("a:2", layout, "cuda");
    CHECK(losses == train("a:2", layout, "cuda"));
    for (size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] - expected[i]) < 0.02);
  }
}

/// Both, as sections of a test.
KernelsAs kernels_of_test() {
  return has_ptx() ? GENERATE(KernelsAs::cpp, KernelsAs::ptx) : KernelsAs::cpp;
}

/// A kernel of one warp on `Args`, whose body sees the lane's group and its place in it.
const HostKernel& warp_kernel(KernelsAs as, const std::string& args, const std::string& body) {
  return host_kernel(
      "#include \"kernels/cuda/attention_tensor.h\"\nusing namespace tessera;\nusing namespace "
      "tessera::device;\nstruct Args {\n" +
          args +
          "};\nextern \"C\" __global__ void tessera_kernel(Args a) {\n"
          "  const int lane = threadIdx.x, group = lane / 4, place = lane % 4;\n  "
          "__syncthreads();\n" +
          body + "}\n",
      as);
}

TEST_CASE("a warp's matmul has the manual's layout", "[cuda]") {
  std::mt19937 random(7);
  std::vector<uint16_t> a(16 * 16), b(16 * 8);
  for (uint16_t& x : a) x = to_float16(static_cast<float>(random() % 17) - 8).bits;
  for (uint16_t& x : b) x = to_float16(static_cast<float>(random() % 17) - 8).bits;
  const KernelsAs as = kernels_of_test();
  std::vector<float> c(16 * 8, 1.0f);
  const struct {
    const uint16_t *a, *b;
    float* c;
  } args{a.data(), b.data(), c.data()};
  // The rows and columns are those that the manual gives for a0 .. a7, b0 .. b3, c0 .. c3.
  warp_kernel(as, "  const uint16_t* a; const uint16_t* b; float* c;\n", R"(
  uint32_t x[4] = {}, y[2] = {};
  float z[4];
  for (int i = 0; i < 8; ++i) {
    const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
    const int column = place * 2 + (i & 1) + (i >= 4 ? 8 : 0);
    x[i / 2] |= static_cast<uint32_t>(a.a[row * 16 + column]) << (i & 1) * 16;
  }
  for (int i = 0; i < 4; ++i) {
    const int row = place * 2 + (i & 1) + (i >= 2 ? 8 : 0);
    y[i / 2] |= static_cast<uint32_t>(a.b[row * 8 + group]) << (i & 1) * 16;
  }
  for (int i = 0; i < 4; ++i)
    z[i] = a.c[(i < 2 ? group : group + 8) * 8 + place * 2 + (i & 1)];
  multiply<Float16>(z, x, y[0], y[1]);
  for (int i = 0; i < 4; ++i)
    a.c[(i < 2 ? group : group + 8) * 8 + place * 2 + (i & 1)] = z[i];
)")
      .run(&args, 1, 32);
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 8; ++j) {
      float sum = 1;
      for (size_t k = 0; k < 16; ++k)
        sum += to_float(Float16{a[i * 16 + k]}) * to_float(Float16{b[k * 8 + j]});
      CHECK(c[i * 8 + j] == sum);
    }
  }
}

TEST_CASE("a warp loads blocks of shared memory, as they are and transposed", "[cuda]") {
  alignas(16) std::array<uint16_t, 32 * 8> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i);
  std::vector<uint32_t> plain(32 * 4), transposed(32 * 4);
  const KernelsAs as = kernels_of_test();
  const struct {
    const uint16_t* from;
    uint32_t *plain, *transposed;
  } args{from.data(), plain.data(), transposed.data()};
  // Row r of block m is the eight elements from 8 (8 m + r) on.
  warp_kernel(as, "  const uint16_t* from; uint32_t* plain; uint32_t* transposed;\n", R"(
  alignas(16) __shared__ uint16_t rows[32 * 8];
  for (int i = 0; i < 8; ++i) rows[lane * 8 + i] = a.from[lane * 8 + i];
  __syncthreads();
  uint32_t x[4];
  load_blocks(shared_address(rows + lane * 8), x);
  for (int m = 0; m < 4; ++m) a.plain[lane * 4 + m] = x[m];
  load_blocks_transposed(shared_address(rows + lane * 8), x);
  for (int m = 0; m < 4; ++m) a.transposed[lane * 4 + m] = x[m];
)")
      .run(&args, 1, 32);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < 4; ++m) {
      const auto element = [&](uint32_t row, uint32_t column) {
        return (m * 8 + row) * 8 + column;
      };
      const uint32_t group = lane / 4, first = lane % 4 * 2;
      CHECK(plain[lane * 4 + m] == (element(group, first) | element(group, first + 1) << 16));
      CHECK(transposed[lane * 4 + m] == (element(first, group) | element(first + 1, group) << 16));
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
