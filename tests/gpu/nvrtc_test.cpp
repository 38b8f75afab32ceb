// Where there is a toolkit: NVRTC compiles every kernel of the op cases and models for sm_80 or
// sm_90 without local memory, and attention with structure for sm_100 too; with TESSERA_LONG for
// each of them. What it makes is kept on disk.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/cache_file.h"
#include "base/fail.h"
#include "base/hash.h"
#include "gpu/emulator.h"
#include "ops/attention_cases.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// The distinct kernels of all op cases.
std::vector<std::string> texts_of_cases() {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  for (const OpCase& row : op_cases()) {
    for (DType type : {DType::float32, DType::float64})
      BuiltCase(row, type).compile(clusters.of(1), Mesh::parse("x:1"), "", "cuda");
  }
  return gpu.texts();
}

/// Those of the models' training steps.
std::vector<std::string> texts_of_models() {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  auto train = [&](const nn::Model& model, Graph& g, DType dtype) {
    MinimizeOptions clip;
    clip.clip = 1;
    Tensor lr = g.input("lr", {}, is_narrow(dtype) ? DType::float32 : model.loss.dtype());
    minimize(model.loss, lr, adam(), clip);
    CompileOptions options{Mesh::parse("x:1"), {}, {{"train", {model.loss}, true}}};
    options.device = "cuda";
    Session session(g, clusters.of(1), options);
  };
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    Graph g;
    nn::GptOptions o;
    o.layers = 1;
    o.d_model = 768;
    o.heads = 12;
    o.ff = 3072;
    o.length = 256;
    // Without dropout norms are recomputed; long rows of logits are streamed.
    o.vocab = dtype == DType::bfloat16 ? 8192 : 1024;
    o.batch = 16;
    o.dropout = dtype == DType::bfloat16 ? 0 : 0.1;
    o.dtype = dtype;
    o.float8 = dtype == DType::bfloat16;
    train(nn::gpt(g, o), g, dtype);
  }
  Graph images, more;
  nn::MlpOptions mlp;
  train(nn::mlp(images, mlp), images, DType::float32);
  nn::CnnOptions cnn;
  cnn.batch = 4;
  train(nn::cnn(more, cnn), more, DType::float32);
  return gpu.texts();
}

std::vector<std::string> texts_of(const std::vector<AttentionCase>& cases) {
  std::vector<std::string> texts;
  for (const AttentionCase& c : cases) {
    const AttentionRun run(c);
    for (const cuda::Source& source : run.sources()) texts.push_back(source.text);
  }
  return texts;
}

using Compile = bool (*)(const std::string& text, const std::string& arch,
                         const std::string& folder, std::string& cubin, std::string& log);
Compile compiler() {
  static void* library = dlopen(TESSERA_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  return reinterpret_cast<Compile>(dlsym(library, "tessera_cuda_compile"));
}

/// Attention without tensor cores may put one number into local memory, backward and in float64:
/// ptxas takes 40, 48 or 64 registers for it, however many there are.
bool may_spill(const std::string& text, const std::string& log) {
  const bool is_wide = text.find("attention<C>") != std::string::npos &&
                       text.find("using Wide = double;") != std::string::npos;
  return (is_wide || text.find("  attention_grad_") != std::string::npos) &&
         log.find(" 8 bytes stack frame, ") != std::string::npos;
}

/// sin and cos bring large angles into range with words of 2 / pi: an array of eight, not a spill.
bool has_words(const std::string& text, const std::string& log) {
  return (text.find("formula::Sin::") != std::string::npos ||
          text.find("formula::Cos::") != std::string::npos) &&
         log.find("32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") !=
             std::string::npos;
}

const std::vector<std::string> kArchs = {"sm_80", "sm_90"};

/// sm_80, sm_90, and sm_100 if this NVRTC knows it.
std::vector<std::string> known_archs() {
  std::vector<std::string> known = kArchs;
  std::string cubin, log;
  if (compiler()("extern \"C\" __global__ void tessera_kernel() {}\n", "sm_100", "", cubin, log))
    known.emplace_back("sm_100");
  return known;
}

/// Compiles each for one of the architectures, which differs from text to text, or for all of them:
/// what is reported of those that use local memory or give warnings.
std::string problems_of(const std::vector<std::string>& texts,
                        const std::vector<std::string>& archs = kArchs,
                        bool for_all = std::getenv("TESSERA_LONG") != nullptr) {
  const Compile compile = compiler();
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::string errors;
  const auto work_on = [&](const std::string& text, const std::string& arch) {
    std::string cubin, log;
    const bool ok = compile(text, arch, "", cubin, log);
    const bool clean = log.find("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") !=
                       std::string::npos;
    const bool quiet = log.find("warning") == std::string::npos;
    if (ok && (clean || may_spill(text, log) || has_words(text, log)) && quiet) return;
    const std::lock_guard lock(mutex);
    if (errors.size() < 8000) errors += fmt::format("\n{}: {}\n{}", arch, log, text);
  };
  const auto work = [&] {
    for (size_t i; (i = next++) < texts.size();) {
      const size_t one = hash_of(texts[i]) % archs.size();
      for (size_t a = 0; a < archs.size(); ++a) {
        if (for_all || a == one) work_on(texts[i], archs[a]);
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  return errors;
}

TEST_CASE("NVRTC compiles the kernels of models for sm_80 or sm_90, without local memory",
          "[cuda][nvrtc][slow]") {
  const std::vector<std::string> texts = texts_of_models();
  CHECK(texts.size() > 50);
  CHECK(problems_of(texts) == "");
}

TEST_CASE("NVRTC compiles some kernels of op_cases for sm_80 or sm_90, without local memory",
          "[cuda][nvrtc][slow]") {
  std::vector<std::string> some;
  const std::vector<std::string> texts = texts_of_cases();
  for (size_t i = 0; i < texts.size(); i += 12) some.push_back(texts[i]);
  CHECK(some.size() > 20);
  CHECK(problems_of(some) == "");
}

TEST_CASE("NVRTC compiles attention on tensor cores for sm_80 or sm_90, without local memory",
          "[cuda][nvrtc][slow]") {
  std::vector<AttentionCase> cases;
  for (int64_t width : {8, 64, 80, 96, 128, 160})
    cases.push_back({DType::bfloat16, width, 1024, 1024, true, 12, 1, Lie::rows_first});
  for (int64_t width : {64, 127, 128}) {
    cases.push_back({DType::bfloat16, width, 1000, 1000, false, 2, 3, Lie::odd});
    AttentionCase part{DType::float16, width, 1000, 1000, true, 2, 2, Lie::columns_last};
    part.all_keys = 4000;
    cases.push_back(part);
  }
  CHECK(problems_of(texts_of(cases)) == "");
}

TEST_CASE("NVRTC compiles attention with structure for some architecture, without local memory",
          "[cuda][nvrtc][slow]") {
  std::vector<AttentionCase> cases;
  for (const DType type : {DType::bfloat16, DType::float16, DType::float32}) {
    for (int64_t width : {64, 128}) {
      AttentionCase window{type, width, 1000, 1000, true, 2, 2, Lie::rows_first}, part;
      window.window = 256;
      AttentionCase documents = window;
      documents.window = 0;
      documents.segments = 4;
      AttentionCase all = part = documents;
      all.window = 256;
      all.soft_cap = 50;
      part.causal = false;
      part.all_keys = 4000;
      part.lie = Lie::odd;
      cases.insert(cases.end(), {window, documents, all, part});
    }
  }
  CHECK(problems_of(texts_of(cases), known_archs()) == "");
}

TEST_CASE("NVRTC compiles the grouped matmuls of experts for sm_80 or sm_90, without local memory",
          "[cuda][nvrtc][ragged][slow]") {
  std::vector<std::string> texts;
  for (const DType type : {DType::float32, DType::bfloat16}) {
    CudaEmulator gpu;
    const WithEmulator here(gpu);
    Clusters clusters;
    Graph g;
    const Tensor x = g.input("x", {Dim("batch", 4), Dim("length", 128), Dim("d_model", 64)}, type);
    nn::MoeOptions o;
    o.experts = Dim("experts", 128);
    o.hidden = Dim("ff", 48);
    o.expert.activations = {"silu", "linear"};
    o.routing.choices = 8;
    const nn::Moe mixed = nn::moe(x, "moe", "d_model", o);
    std::vector<Tensor> outputs = gradients(mean_all(square(mixed.y)), g.parameters());
    CompileOptions options{Mesh::parse("x:1"), {}, {{"f", outputs, false}}};
    options.device = "cuda";
    const Session session(g, clusters.of(1), options);
    for (const std::string& text : gpu.texts()) {
      const bool sorts = text.find("order[") != std::string::npos;
      if (sorts) texts.push_back(text);
    }
  }
  CHECK(texts.size() > 6);
  CHECK(problems_of(texts) == "");
}

/// The bytes before `what` in the compiler's log; -1 if they are not there.
int64_t bytes_of(const std::string& log, const std::string& what) {
  const size_t end = log.find(" bytes " + what);
  if (end == std::string::npos) return -1;
  size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(log[begin - 1])) != 0) --begin;
  return std::atoll(log.c_str() + begin);
}

TEST_CASE("NVRTC compiles products in order without spills, and open sums are in local memory",
          "[cuda][nvrtc][strict][slow]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  Graph g;
  const Tensor x = g.input("x", {{"batch", 16}, {"length", 1024}, {"d_model", 768}},
                           DType::bfloat16),
               w = g.input("w", {{"d_model", 768}, {"ff", 3072}}, DType::bfloat16),
               y = einsum({x, w}, {{"batch", 16}, {"length", 1024}, {"ff", 3072}});
  const std::vector<Tensor> wanted = {y.named("y"), einsum({x, y}, w.shape()).named("w_grad"),
                                      reduce_sum(y, {"batch", "length"}).named("b_grad")};
  CompileOptions options{Mesh::parse("x:1"), {}, {{"f", wanted, false}}};
  options.device = "cuda";
  options.strict_chunks = 16;
  const Session session(g, clusters.of(1), options);
  const Compile compile = compiler();
  int products = 0;
  for (const std::string& text : gpu.texts()) {
    if (text.find("OpenSums") == std::string::npos &&
        text.find("ordered_product") == std::string::npos)
      continue;
    ++products;
    std::string cubin, log;
    INFO(text);
    REQUIRE(compile(text, "sm_90", "", cubin, log));
    INFO(log);
    CHECK(bytes_of(log, "spill stores") == 0);
    CHECK(bytes_of(log, "spill loads") == 0);
    CHECK(bytes_of(log, "stack frame") <= 1024 + 64);  // OrderedTile, and some variables
  }
  CHECK(products >= 3);
}

/// Takes minutes: ctest leaves it out.
TEST_CASE("NVRTC compiles every kernel of op_cases for sm_80 and sm_90, without local memory",
          "[slow][nvrtc-all]") {
  const std::vector<std::string> texts = texts_of_cases();
  CHECK(texts.size() > 300);
  CHECK(problems_of(texts, kArchs, true) == "");
}

/// Prints what a first step of GPT-2 124M waits for; run by hand.
TEST_CASE("kernels of GPT-2's training step, with nothing cached and again", "[.][nvrtc-cold]") {
  std::vector<std::string> texts;
  {
    CudaEmulator gpu(1, int64_t{80} << 30);
    gpu.has_cudnn = true;
    const WithEmulator here(gpu);
    Clusters clusters;
    Graph g;
    nn::GptOptions o;
    o.layers = 12;
    o.d_model = 768;
    o.heads = 12;
    o.ff = 3072;
    o.length = 1024;
    o.vocab = 50304;
    o.batch = 16;
    o.dtype = DType::bfloat16;
    const nn::Model model = nn::gpt(g, o);
    MinimizeOptions clip;
    clip.clip = 1;
    minimize(model.loss, g.input("lr", {}, DType::float32), adam(), clip);
    CompileOptions options{Mesh::parse("x:1"), {}, {{"train", {model.loss}, true}}};
    options.device = "cuda";
    Session session(g, clusters.of(1), options);
    texts = gpu.texts();
  }
  const Compile compile = compiler();
  std::string folder = (std::filesystem::temp_directory_path() / "tessera-cold-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  for (const std::string expected : {"kept", "found"}) {
    const auto begin = std::chrono::steady_clock::now();
    size_t as_expected = 0;
    for (const std::string& text : texts) {
      std::string cubin, log;
      REQUIRE(compile(text, "sm_90", folder, cubin, log));
      as_expected += log == expected;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    CHECK(as_expected == texts.size());
    WARN(fmt::format("{} kernels {}: {:.2f} s", texts.size(), expected, seconds.count()));
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("compiled kernels are kept on disk, or not where that cannot be written",
          "[cuda][nvrtc]") {
  const Compile compile = compiler();
  std::string folder = (std::filesystem::temp_directory_path() / "tessera-cache-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string text = "extern \"C\" __global__ void tessera_kernel(int* p) { *p = 1; }\n";
  std::string first, second, log;
  REQUIRE(compile(text, "sm_90", folder, first, log));
  CHECK(log == "kept");
  REQUIRE(compile(text, "sm_90", folder, second, log));
  CHECK(log == "found");
  CHECK(first == second);
  REQUIRE(compile(text, "sm_80", folder, second, log));
  CHECK(log == "kept");
  std::string ptx, again;  // for a virtual architecture
  REQUIRE(compile(text, "compute_90", folder, ptx, log));
  CHECK(log == "kept");
  CHECK(ptx.find(".target sm_90\n") != std::string::npos);
  REQUIRE(compile(text, "compute_90", folder, again, log));
  CHECK(log == "found");
  CHECK(again == ptx);
  std::string kept;  // the file of sm_90
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().find("sm_90") != std::string::npos) kept = entry.path().string();
  }
  const std::string good = read_cache_file(kept, 1 << 20).value(),
                    is_damaged = "'" + kept + "': it is damaged or answers another question";
  std::string damaged = good;
  damaged[good.size() / 2] = static_cast<char>(~damaged[good.size() / 2]);
  for (const auto& [bad, why] : std::vector<std::pair<std::string, std::string>>{
           {"torn", "'" + kept + "': it is not in the format 'tessera-kernel 1'"},
           {good.substr(0, good.size() / 2), is_damaged},
           {damaged, is_damaged},
           {cache_entry("tessera-kernel 1", "another kernel", first), is_damaged}}) {
    std::ofstream(kept, std::ios::binary) << bad;
    REQUIRE(compile(text, "sm_90", folder, second, log));
    CHECK(log == "replaced " + why);
    CHECK(first == second);
    CHECK(read_cache_file(kept, 1 << 20).value() == good);
  }
  // A link that somebody put there is neither read nor written through.
  const std::string precious = folder + "/precious";
  std::ofstream(precious, std::ios::binary) << good;
  std::filesystem::remove(kept);
  std::filesystem::create_symlink(precious, kept);
  REQUIRE(compile(text, "sm_90", folder, second, log));
  CHECK(log ==
        "replaced '" + kept + "' is a symbolic link; a file of the cache has to lie there itself");
  CHECK(!std::filesystem::is_symlink(kept));
  const std::string file = folder + "/file";
  std::ofstream(file) << "no folder";
  REQUIRE(compile(text, "sm_90", file + "/below", second, log));
  CHECK(log == "the folder '" + file + "/below' cannot be written");
  CHECK(first == second);
  CHECK_FALSE(compile("nonsense", "sm_90", "", second, log));
  CHECK(log.find("does not compile for sm_90") != std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
