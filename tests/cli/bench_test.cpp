// tessera bench: what it times is what it says; no test looks at a time.
#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

nlohmann::json bench(const Folder& f, const std::string& arguments) {
  expect_success(run_cli_in(f, "bench " + arguments + " --steps 2 --threads 1 --json report.json"));
  return json_of(f, "report.json");
}

TEST_CASE("cli: bench times each collective, with the bytes that a rank sends", "[cli]") {
  const Folder f;
  const std::string arguments = " --size 1024 4096 --mesh r:4";
  // Of the 4 * 1024 bytes of the larger operand of a rank; all_to_all has a quarter of them.
  const std::map<std::string, int> bytes = {{"all_reduce", 2 * 3072},
                                            {"all_gather", 3072},
                                            {"reduce_scatter", 3072},
                                            {"all_to_all", 768}};
  for (const auto& [kind, sent] : bytes) {
    INFO(kind);
    const nlohmann::json report = bench(f, kind + arguments);
    CHECK(report["what"] == kind);
    CHECK(report["mesh"] == "r:4");
    CHECK(report["backend"] == "threads");
    REQUIRE(report["results"].size() == 2);
    CHECK(report["results"][0]["bytes"] == sent);
    CHECK(report["results"][1]["bytes"] == 4 * sent);
    CHECK(report["results"][0]["ms"].get<double>() >= report["results"][0]["least_ms"]);
    CHECK(report["results"][0]["gbytes_per_s"] > 0);
    const nlohmann::json two_axes = bench(f, kind + " --size 1024 4096 --mesh \"a:2;b:2\"");
    CHECK(two_axes["results"][1]["bytes"] >= 4 * sent);
  }
}

TEST_CASE("cli: bench times products and training", "[cli]") {
  const Folder f;
  for (const char* more : {"", "--dtype float64", "--mesh r:2 --layout depth:r"}) {
    const nlohmann::json product = bench(f, std::string("matmul --size 32 ") + more);
    const nlohmann::json& result = product["results"][0];
    CHECK(result["size"] == 32);
    CHECK(result["gflops_per_s"].get<double>() * result["ms"].get<double>() * 1e6 ==
          Approx(2 * 32 * 32 * 32));
  }
  const nlohmann::json trained =
      bench(f, "train gpt --mesh data:2 --set layers=1 d_model=16 heads=2 ff=16 length=8 batch=4");
  const nlohmann::json& result = trained["results"][0];
  CHECK(trained["ranks"] == 2);
  CHECK(result["tokens_per_s"].get<double>() * result["ms"].get<double>() ==
        Approx(4 * 8 * 1000.0));
  CHECK(bench(f, "train mlp --set batch=4 hidden=8")["results"].size() == 1);
}

TEST_CASE("cli: bench says what it cannot do", "[cli]") {
  const Folder f;
  expect_failure(run_cli_in(f, "bench all_redcue"), 1, {"'all_redcue'", "mean 'all_reduce'?"});
  expect_failure(run_cli_in(f, "bench broadcast"), 1, {"'broadcast'", "known: matmul, all_reduce"});
  expect_failure(run_cli_in(f, "bench"), 2, {"WHAT"});
  expect_failure(run_cli_in(f, "bench matmul gpt"), 1, {"bench matmul takes no 'gpt'"});
  expect_failure(run_cli_in(f, "bench train gtp"), 1, {"'gtp'", "mean 'gpt'?"});
  expect_failure(run_cli_in(f, "bench train --size 4"), 1, {"--size", "--set"});
  expect_failure(run_cli_in(f, "bench all_reduce --layout a:b"), 1, {"--layout", "all_reduce"});
  expect_failure(run_cli_in(f, "bench matmul --size 0"), 1, {"--size 0"});
  expect_failure(run_cli_in(f, "bench matmul --steps 0"), 2, {"--steps: '0'"});
  expect_failure(run_cli_in(f, "bench matmul --dtype flaot32"), 1, {"'flaot32'"});
  expect_failure(run_cli_in(f, "bench matmul --dtype int32"), 1, {"int32"});
  expect_failure(run_cli_in(f, "bench all_gather"), 1, {"'ranks:1'", "--mesh"});
  expect_failure(run_cli_in(f, "bench all_gather --mesh r:2 --size 3"), 1, {"--size 3", "4"});
  expect_failure(run_cli_in(f, "bench matmul --json no/such.json"), 1, {"no/such.json"});
}

}  // namespace TESSERA_FILE
