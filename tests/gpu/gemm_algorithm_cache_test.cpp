// Algorithms of matmuls: measured once, then the same in every run and on every rank.
#include "gpu/device/gemm_algorithm_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

namespace fs = std::filesystem;

struct Folder {
  std::string path = (fs::temp_directory_path() / "tessera-choices-XXXXXX").string();
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { fs::remove_all(path); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(path)) all.push_back(entry.path());
    return all;
  }
};

/// The choices of this process, as if it had just begun.
class Process {
 public:
  explicit Process(const std::string& folder) : choices(folder) {
    replace_gemm_algorithm_cache(&choices);
  }
  ~Process() { replace_gemm_algorithm_cache(nullptr); }
  GemmAlgorithmCache choices;
};

GptOutcome train(CudaEmulator& gpu, int ranks, int steps = 3) {
  const WithEmulator here(gpu);
  Clusters clusters;
  return train_small_gpt(clusters.of(ranks), Mesh::parse(fmt::format("a:{}", ranks)),
                         ranks > 1 ? "batch:a" : "", DType::float32, steps, "cuda");
}

/// How often matmuls were told to use each algorithm.
std::vector<size_t> uses(const CudaEmulator& gpu) {
  std::vector<size_t> count(gpu.algorithm_seconds.size());
  for (const std::string& word : gpu.used) ++count.at(static_cast<size_t>(word[1] - '0'));
  return count;
}

TEST_CASE("the choice of an algorithm: the first one counts, and lasts", "[cuda]") {
  const Folder folder;
  const auto never = []() -> std::string { throw std::runtime_error("measured again"); };
  GemmAlgorithmCache one(folder.path), two(folder.path);
  CHECK(one.choose("8x8", [&] {
    CHECK(two.choose("8x8", [] { return "0 theirs"; }) == "0 theirs");
    return std::string("0 ours");
  }) == "0 theirs");
  CHECK(one.choose("8x8", never) == "0 theirs");
  CHECK(GemmAlgorithmCache(folder.path).choose("8x8", never) == "0 theirs");
  CHECK(one.choose("9x9", [] { return ""; }).empty());  // nothing to keep
  CHECK(folder.files().size() == 1);
}

TEST_CASE("the choice of an algorithm: torn, damaged and foreign files are measured again",
          "[cuda]") {
  const Folder folder;
  GemmAlgorithmCache(folder.path).choose("8x8", [] { return "0 old"; });
  const fs::path file = folder.files().at(0);
  std::string text;
  {
    std::ifstream in(file);
    text.assign((std::istreambuf_iterator<char>(in)), {});
  }
  const std::string is_damaged = "it is damaged or answers another question",
                    is_other = "it is not in the format 'tessera-product 2'",
                    is_no_text = ", is no text of 1 to 256 characters";
  const auto changed = [&](const char* old, char letter) {
    std::string bad = text;
    bad[text.find(old)] = letter;
    return bad;
  };
  const std::vector<std::pair<std::string, std::string>> all = {
      {"x", is_other},
      {"", is_other},
      {changed("2\n", '3'), is_other},
      {text.substr(0, text.size() / 2), is_damaged},
      {changed("old", 'a'), is_damaged},
      {changed("8x8", '9'), is_damaged},
      {text + "0", is_damaged},
      {text_of_gemm_choice("9x9", "0 old"), is_damaged},
      {text_of_gemm_choice("8x8", ""), "its choice, of 0 bytes" + is_no_text},
      {text_of_gemm_choice("8x8", std::string(257, '0')), "its choice, of 257 bytes" + is_no_text},
      {text_of_gemm_choice("8x8", "0 \x1b[2J"), "its choice, of 6 bytes" + is_no_text}};
  for (const auto& [bad, why] : all) {
    INFO(why);
    std::ofstream(file) << bad;
    GemmAlgorithmCache again(folder.path);
    CHECK(again.choose("8x8", [] { return "0 new"; }) == "0 new");
    CHECK(again.ignored() == std::vector<std::string>{"'" + file.string() + "': " + why});
    CHECK(folder.files().size() == 1);
    std::ifstream in(file);
    CHECK(std::string((std::istreambuf_iterator<char>(in)), {}).find("0 new") != std::string::npos);
  }
}

TEST_CASE("the choice of an algorithm: what is no file of ours is neither awaited nor read whole",
          "[cuda]") {
  const Folder folder;
  GemmAlgorithmCache(folder.path).choose("8x8", [] { return "0 old"; });
  const fs::path file = folder.files().at(0);
  const auto ignored = [&] {
    GemmAlgorithmCache again(folder.path);
    CHECK(again.choose("8x8", [] { return "0 new"; }) == "0 new");
    CHECK(GemmAlgorithmCache(folder.path).choose("8x8", [] { return "0 newer"; }) == "0 new");
    return again.ignored();
  };
  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  CHECK(ignored() == std::vector<std::string>{"'" + file.string() + "' is not a regular file"});
  fs::resize_file(file, 65537);
  CHECK(ignored() == std::vector<std::string>{"'" + file.string() + "' has more than 65536 bytes"});
}

TEST_CASE("the choice of an algorithm: where nothing can be kept it lasts as long as the process",
          "[cuda]") {
  const Folder folder;
  const std::string file = folder.path + "/file";
  std::ofstream(file) << "no folder";
  GemmAlgorithmCache lost(file + "/below");
  CHECK(lost.why_not_kept() == "the folder '" + file + "/below' cannot be written");
  int measured = 0;
  for (int again = 0; again < 2; ++again)
    CHECK(lost.choose("8x8", [&] { return ++measured, "0 a"; }) == "0 a");
  CHECK(measured == 1);
  GemmAlgorithmCache gone(folder.path + "/soon");
  fs::remove_all(folder.path + "/soon");
  CHECK(gone.choose("8x8", [] { return "0 a"; }) == "0 a");
  CHECK(gone.why_not_kept().find("could not be written") != std::string::npos);
  CHECK(GemmAlgorithmCache("").why_not_kept() ==
        "neither TESSERA_CACHE, XDG_CACHE_HOME nor HOME is set");
}

TEST_CASE("what a session does without a file of the cache is told", "[cuda]") {
  const Folder folder;
  CudaEmulator gpu;
  gpu.ignore_files({"'x.cubin': it is damaged"});
  const Process process(folder.path);
  CHECK(train(gpu, 1, 1).fallbacks ==
        std::vector<std::string>{
            "a cached kernel is ignored and compiled anew: 'x.cubin': it is damaged"});
}

TEST_CASE("matmuls take the fastest algorithm, measured once for all runs", "[cuda]") {
  const Folder folder;
  CudaEmulator gpu, later;
  gpu.algorithm_seconds = {0.03, 0.01, 0.02};
  {
    const Process process(folder.path);
    train(gpu, 1, 2);
  }
  const std::vector<size_t> used = uses(gpu);
  CHECK(used[1] > used[0]);  // each was tried, and this one told to matmuls that bind later
  CHECK(gpu.captures > 0);   // and no measurement was captured: the emulator would refuse to wait
  CHECK(folder.files().size() > 5);
  later.algorithm_seconds = {0.01, 0.03, 0.03};  // by now another one would win
  {
    const Process process(folder.path);
    train(later, 1, 2);
  }
  CHECK(uses(later)[0] + uses(later)[2] == 0);
  CudaEmulator updated;
  updated.algorithm_seconds = later.algorithm_seconds;
  updated.library = "emulated 2";
  const Process process(folder.path);
  train(updated, 1, 2);
  CHECK(uses(updated)[0] > uses(updated)[1]);
}

TEST_CASE("an algorithm that is hardly faster than the library's favourite is not taken",
          "[cuda]") {
  const Folder folder;
  const Process process(folder.path);
  CudaEmulator gpu;
  gpu.algorithm_seconds = {0.05, 0.0495};
  train(gpu, 1, 1);
  CHECK(uses(gpu)[0] > uses(gpu)[1]);
}

TEST_CASE("measuring a matmul has an end", "[cuda]") {
  const Folder folder;
  const Process process(folder.path);
  CudaEmulator gpu;
  gpu.algorithm_seconds = {2, 1};  // longer than is spent on all of them
  train(gpu, 1, 1);
  CHECK(uses(gpu)[1] == 0);
}

TEST_CASE("an epilogue that costs more than a kernel of Tessera's is left out", "[cuda]") {
  const Folder folder;
  const auto launches = [&](double seconds, const char* library) {
    const Process process(folder.path);
    CudaEmulator gpu;
    gpu.algorithm_seconds = {0.01, 0.02};
    gpu.epilogue_seconds = seconds;
    gpu.library = library;
    const WithEmulator here(gpu);
    Clusters clusters;
    Graph g;
    const nn::Model model = nn::gpt(g, small_gpt(DType::float32));
    CompileOptions options{Mesh::parse("a:1"), {}, {{"loss", {model.loss}, false}}};
    options.device = "cuda";
    Session session(g, clusters.of(1), options);
    feed_tokens(session, model, 0);
    gpu.launches = 0;
    session.run("loss");
    return gpu.launches.load();
  };
  CHECK(launches(0, "quick") + 4 <= launches(0.1, "slow"));
}

TEST_CASE("all ranks use the first one's algorithms", "[cuda]") {
  const Folder folder;
  const Process process(folder.path);
  CudaEmulator gpus(2);
  gpus.has_groups = true;
  gpus.algorithm_seconds = {0.03, 0.01, 0.02};
  const GptOutcome outcome = train(gpus, 2);
  const std::vector<size_t> used = uses(gpus);
  CHECK(used[1] >= used[0] + 10);
  Clusters clusters;
  const auto expected = train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 3);
  for (size_t i = 0; i < outcome.losses.size(); ++i)
    CHECK(std::abs(outcome.losses[i] - expected.losses[i]) < 2e-5);
}

TEST_CASE("TESSERA_TIMED_MATMULS=off takes the library's favourites", "[cuda]") {
  const Folder folder;
  const Process process(folder.path);
  setenv("TESSERA_TIMED_MATMULS", "off", 1);
  CudaEmulator gpu;
  gpu.algorithm_seconds = {0.03, 0.01};
  train(gpu, 1, 1);
  unsetenv("TESSERA_TIMED_MATMULS");
  CHECK(uses(gpu)[1] == 0);
  CHECK(folder.files().empty());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
