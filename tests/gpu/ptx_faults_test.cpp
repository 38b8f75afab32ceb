// Faults that are planted in generated kernels, in their text or in their PTX: each is found.
#include <fmt/format.h>

#include <fstream>
#include <functional>

#include "base/fail.h"
#include "gpu/ptx/kernels.h"
#include "ops/attention_cases.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

std::string golden(const std::string& name) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/" + name);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// One text for each line that has `word`, in which the line is changed.
std::vector<std::string> variants(const std::string& text, const std::string& word,
                                  const std::function<std::string(const std::string&)>& change) {
  std::vector<std::string> all;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
    const size_t first = text.rfind('\n', at) + 1, last = text.find('\n', at);
    all.push_back(text.substr(0, first) + change(text.substr(first, last - first)) +
                  text.substr(last));
    at = last;
  }
  return all;
}
constexpr size_t npos = std::string::npos;
std::string without(const std::string& /*line*/) { return ""; }

/// Exchanges two of the names that begin with '%', counted from 0.
std::function<std::string(const std::string&)> swapped(size_t one, size_t other) {
  return [=](const std::string& line) {
    std::vector<std::pair<size_t, size_t>> names;  // where, how long
    for (size_t at = 0; (at = line.find('%', at)) != std::string::npos;) {
      const size_t end = line.find_first_of(",;} ]", at);
      names.emplace_back(at, end - at);
      at = end;
    }
    const auto [a, a_size] = names.at(one);
    const auto [b, b_size] = names.at(other);
    return line.substr(0, a) + line.substr(b, b_size) + line.substr(a + a_size, b - a - a_size) +
           line.substr(a, a_size) + line.substr(b + b_size);
  };
}

/// The softmax of 300 rows of 1000, as its golden text has it.
struct Softmax {
  std::vector<float> in = std::vector<float>(300 * 1000 + 4, 0.5F), out = in;
  KernelMemory memory{{{in.data(), 1200000}}, {{out.data(), 1200000}}, {}};

  void run(const std::string& text, const std::string& ptx, int64_t blocks = 2) {
    const struct {
      const float* in;
      float* out;
    } args{in.data(), out.data()};
    ptx::make_kernel(text, ptx)->run(&args, blocks, 256, &memory);
  }
};

void expect_softmax(const std::vector<std::string>& words, const std::string& text,
                    const std::string& ptx, int64_t blocks = 2) {
  Softmax softmax;
  expect_error(ErrorKind::internal, words, [&] { softmax.run(text, ptx, blocks); });
}

/// What is wrong with attention if kernel `which` has this PTX.
std::string fault_of(AttentionRun& run, size_t which, const std::string& ptx) {
  std::vector<std::unique_ptr<HostKernel>> own;
  std::vector<const HostKernel*> kernels;
  for (size_t k = 0; k < run.sources().size(); ++k) {
    const std::string& text = run.sources()[k].text;
    if (k == which) own.push_back(ptx::make_kernel(text, ptx));
    kernels.push_back(k == which ? own.back().get() : &host_kernel(text, KernelsAs::ptx));
  }
  try {
    return run.errors(kernels);
  } catch (const Error& e) {
    return e.what();
  }
}

/// Changes each line with `word` of each of attention's kernels, one after the other: how many
/// there are, and which of them nothing noticed.
struct Planted {
  int all = 0;
  std::string unseen;
};
struct Which {
  size_t kernel = 0;  ///< the first one
  size_t most = 8;    ///< about so many lines of a kernel
};
Planted plant(AttentionRun& run, const std::string& word,
              const std::function<std::string(const std::string&)>& change, const Which& which) {
  Planted planted;
  for (size_t k = which.kernel; k < run.sources().size(); ++k) {
    const std::string good = ptx::compile(run.sources()[k].text);
    const std::vector<std::string> all = variants(good, word, change);
    const size_t step = std::max<size_t>(1, all.size() / which.most);
    for (size_t v = 0; v < all.size(); v += step) {
      ++planted.all;
      if (fault_of(run, k, all[v]).empty())
        planted.unseen += fmt::format("\nkernel {}, '{}' number {} of {}", k, word, v, all.size());
    }
  }
  return planted;
}

TEST_CASE("planted in attention on tensor cores: operands, fragments and lanes", "[cuda][ptx]") {
  AttentionRun run({.width = 64, .length = 64, .memory = 64, .causal = false});
  CHECK(run.errors(KernelsAs::ptx) == "");
  const auto check = [&](const char* word, const std::function<std::string(const std::string&)>& f,
                         int least) {
    const Planted planted = plant(run, word, f, {.most = 5});
    INFO(word);
    CHECK(planted.unseen == "");
    CHECK(planted.all >= least);
  };
  check("cvt.rn.bf16x2.f32", swapped(1, 2), 8);
  check("mma.sync", swapped(5, 6), 8);
  check("mma.sync", swapped(8, 9), 8);
  check("mma.sync", swapped(0, 1), 8);
  check("ldmatrix.sync.aligned.m8n8.x4.shared", swapped(0, 1), 4);
  check(
      ".x4.trans", [](const std::string& line) { return replaced(line, ".trans", ""); }, 2);
}

TEST_CASE("planted in attention on tensor cores: barriers and waits", "[cuda][ptx]") {
  for (const int64_t group : {1, 2}) {
    AttentionRun run({.width = 64, .length = 130, .memory = 130, .group = group});
    CHECK(run.errors(KernelsAs::ptx) == "");
    const Planted planted =
        plant(run, "bar.sync", without, group == 1 ? Which{} : Which{.kernel = 2});
    CHECK(planted.unseen == "");
    CHECK(planted.all >= 2);
    const Planted waits = plant(run, "cp.async.wait_all", without, {});
    CHECK(waits.unseen == "");
    CHECK(waits.all >= 3);
  }
}

TEST_CASE("planted in attention on tensor cores: one key, or one query, too many", "[cuda][ptx]") {
  AttentionRun run({.width = 64, .length = 40, .memory = 40, .causal = false});
  for (size_t k = 0; k < run.sources().size(); ++k) {
    const std::string& text = run.sources()[k].text;
    INFO("kernel " << k);
    for (const char* size : {"kLength = 40", "kMemory = 40"}) {
      const std::string wrong = replaced(text, size, std::string(size, 10) + "41");
      CHECK(fault_of(run, k, ptx::compile(wrong)).find("bytes outside of the memory") != npos);
    }
  }
}

TEST_CASE("planted in attention with structure: a window too wide, a neighbour's segment, no cap",
          "[cuda][ptx]") {
  AttentionRun run({.width = 16,
                    .length = 90,
                    .memory = 90,
                    .causal = false,
                    .lie = Lie::rows_first,
                    .window = 20,
                    .segments = 2,
                    .soft_cap = 1.5});
  CHECK(run.errors(KernelsAs::ptx) == "");
  for (size_t k = 0; k < run.sources().size(); ++k) {
    const std::string& text = run.sources()[k].text;
    const bool finds_spans = text.find("find_spans") != npos;
    INFO("kernel " << k);
    if (finds_spans) {
      CHECK(fault_of(run, k, ptx::compile(replaced(text, "spans + row", "spans + 1 + row"))) != "");
    } else {
      CHECK(fault_of(run, k, ptx::compile(replaced(text, "kWindow = 20", "kWindow = 21"))) != "");
      CHECK(fault_of(run, k, ptx::compile(replaced(text, "kCapped = true", "kCapped = false"))) !=
            "");
    }
    if (k == 0) CHECK(finds_spans);
  }
}

TEST_CASE("planted in a softmax: barriers, lanes, addresses and masks", "[cuda][ptx]") {
  const std::string text = golden("cuda_softmax.txt"), good = ptx::compile(text);
  Softmax softmax;
  softmax.run(text, good);
  for (int i = 0; i < 8000; i += 333) CHECK(softmax.out[static_cast<size_t>(i)] == Approx(0.001));

  const auto barriers = variants(good, "bar.sync", without);
  CHECK(barriers.size() == 4);
  for (size_t k = 0; k < barriers.size(); ++k) {
    INFO("barrier " << k);
    // The first barrier of a reduction is for callers whose shared memory has been used before.
    if (k % 2 == 1) expect_softmax({"it reads byte", "of shared memory, which"}, text, barriers[k]);
  }
  for (const std::string& ptx : variants(good, "ld.global.v4", [](const std::string& line) {
         return replaced(line, "]", "+4]");
       }))
    expect_softmax({"ld.global.v4", "not aligned: its address is 4 modulo 16"}, text, ptx);
  int masks = 0;  // of shuffles, in a register
  for (const std::string& ptx : variants(good, ", -1;", [](const std::string& line) {
         return replaced(line, "-1;", "2147483647;");
       })) {
    Softmax again;
    try {
      again.run(text, ptx);
    } catch (const Error& e) {
      CHECK(std::string(e.what()).find("its mask is 0x7fffffff, and it is none") != npos);
      ++masks;
    }
  }
  CHECK(masks > 0);

  const auto expect_text = [&](const std::vector<std::string>& words, const std::string& from,
                               const std::string& to, int64_t blocks = 2) {
    const std::string wrong = replaced(text, from, to);
    expect_softmax(words, wrong, ptx::compile(wrong), blocks);
  };
  expect_text({"reads 16 bytes outside", "at byte 1200000 of 1200000 that it reads"},
              "wanted : 300 - 1", "wanted : 300", 76);
  expect_text({"outside of the memory"}, "if (e >= 1000)", "if (e >= 1001)", 75);
  expect_text({"shared memory at 28 are not in one of its variables"}, "shared1[8]", "shared1[7]");
  expect_text({"divergence"},
              "const float r1 =", "if (threadIdx.x == 7) return;\n  const float r1 =");
  softmax.in.insert(softmax.in.begin(), 0);
  softmax.memory.reads = {{softmax.in.data() + 1, 1200000}};
  const struct {
    const float* in;
    float* out;
  } args{softmax.in.data() + 1, softmax.out.data()};
  expect_error(ErrorKind::internal, {"not aligned", "the kernel is in", ".cu"},
               [&] { ptx::make_kernel(text, good)->run(&args, 1, 256, &softmax.memory); });
}

TEST_CASE("planted in a pointwise kernel: a mask that is off by one", "[cuda][ptx]") {
  const std::string text = golden("cuda_pointwise.txt");
  std::vector<float> in(6000, 0.5F), out(6000);
  std::vector<uint16_t> narrow_in(6000, 0x3f80), narrow_out(6000);
  const struct {
    const float* i0;
    const uint16_t* i1;
    float* o0;
    uint16_t* o1;
  } args{in.data(), narrow_in.data(), out.data(), narrow_out.data()};
  const KernelMemory memory{{{in.data(), 24000}, {narrow_in.data(), 12000}},
                            {{out.data(), 24000}, {narrow_out.data(), 12000}},
                            {}};
  ptx::make_kernel(text, ptx::compile(text))->run(&args, 3, 256, &memory);
  CHECK(out[5999] == Approx(std::exp(0.5)));
  const std::string wrong = replaced(text, "if (i >= 750)", "if (i >= 751)");
  expect_error(ErrorKind::internal,
               {"thread 238 of block 2", "reads 16 bytes outside", "at byte 24000 of 24000"},
               [&] { ptx::make_kernel(wrong, ptx::compile(wrong))->run(&args, 3, 256, &memory); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
