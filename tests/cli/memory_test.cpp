// What the command line says of memory and of how a batch is worked off.
#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

/// A folder with text to train on.
struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f,
                    "train gpt --data text.txt --set layers=1 d_model=16 heads=2 ff=16 length=8 "
                    "schedule=constant warmup=2 " +
                        more);
}

void has(const std::string& text, const std::string& part) {
  INFO("missing: " << part << " in " << text);
  CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("cli: --memory refuses what does not fit, and says what would", "[cli]") {
  const TextFolder f;
  const std::string big =
      "train gpt --data text.txt --mesh data:4 --steps 2 --batch 8 --set layers=6 d_model=32 "
      "heads=2 "
      "ff=128 length=32 warmup=1 ";
  expect_failure(run_cli_in(f, big + "--memory 100kB"), 1,
                 {"usage error", "--memory is 100.0 kB", "parameters", "optimizer state",
                  "comes closest", "--zero 3 --over data", "--recompute block"});
  expect_failure(run_cli_in(f, big + "--memory 2MB"), 1,
                 {"a rank needs 2.0", "--recompute attention would fit with 1.8"});
  expect_failure(run_cli_in(f, big + "--memory 1.8MB"), 1,
                 {"--recompute block would fit", "--zero 1 --over data would fit"});
  expect_failure(run_cli_in(f, big + "--memory 1.2MB"), 1, {"--zero", "--over data", "would fit"});
  expect_failure(run_cli_in(f, big + "--memory lots"), 1, {"--memory 'lots'", "16GB"});
  expect_failure(run_cli_in(f, big + "--memory 16gigs"), 1, {"--memory '16gigs'"});
  expect_failure(run_cli_in(f, big + "--set recompute=auto"), 1, {"'auto' needs --memory"});
  CHECK(f.read("run.jsonl").empty());
  expect_success(run_cli_in(f, big + "--memory 1GiB --set recompute=auto"));
  CHECK(f.read("stdout.txt").find("recompute=none") != std::string::npos);
  expect_success(run_cli_in(f, big + "--memory 1.8MB --set recompute=auto"));
  CHECK(f.read("stdout.txt").find("recompute=block") != std::string::npos);
}

TEST_CASE("cli: --microbatch-size says how a batch is worked off", "[cli]") {
  const TextFolder f;
  const auto run = [&](const std::string& more) {
    return train(f, "--steps 1 --mesh data:2 --layout batch:data " + more);
  };
  const CliResult whole = run("--batch 8"), parts = run("--batch 8 --microbatch-size 2");
  expect_success(whole);
  expect_success(parts);
  has(whole.out, "batch   8 examples = 4 in a microbatch x 2 data ranks x 1 accumulated");
  has(parts.out, "batch   8 examples = 2 in a microbatch x 2 data ranks x 2 accumulated");
  has(parts.out, "microbatches=2 ");
  has(run("--batch 6 --set microbatches=2").out,
      "6 examples = 3 x 2 accumulated, unevenly over 2 data ranks");
  expect_failure(run("--batch 8 --microbatch-size 3"), 1,
                 {"train.batch 8", "--microbatch-size 3 x 2 data ranks = 6", "6 and 12"});
  expect_failure(run("--batch 4 --microbatch-size 3"), 1, {"nearest batch is 6"});
  expect_failure(run("--batch 8 --microbatch-size 2 --set microbatches=4"), 1,
                 {"8 = 2 in a microbatch x 2 data ranks x 2", "microbatches is 4"});
  expect_failure(run("--microbatch-size few"), 1, {"'few' is neither a number", "auto"});
  expect_failure(run("--microbatch-size auto"), 1, {"train.microbatches 'auto' needs --memory"});
}

TEST_CASE("cli: --microbatch-size auto takes the largest that fits", "[cli]") {
  const TextFolder f;
  const std::string job =
      "explain gpt --mesh data:2 --set batch=16 layers=4 d_model=32 heads=2 ff=128 length=32 ";
  const auto bytes = [&](const std::string& more) {
    expect_success(run_cli_in(f, job + more + " --json plan.json"));
    const nlohmann::json memory = json_of(f, "plan.json")["memory"];
    int64_t sum = 0;
    for (const char* part : {"params", "state", "inputs", "transient"})
      sum += memory[part].get<int64_t>();
    return sum;
  };
  const auto chosen = [&](const std::string& memory) {
    const CliResult result = run_cli_in(f, job + "--microbatch-size auto --memory " + memory);
    expect_success(result);
    return result.out;
  };
  const int64_t four = bytes("--microbatch-size 4"), two = bytes("--microbatch-size 2");
  CHECK(two < four);
  CHECK(four < bytes(""));
  expect_failure(run_cli_in(f, job + "--memory " + std::to_string(four)), 1,
                 {"a rank needs", "--microbatch-size 4 would fit with"});
  has(chosen("1GB"), "16 examples = 8 in a microbatch x 2 data ranks x 1 accumulated");
  has(chosen(std::to_string(four)),
      "16 examples = 4 in a microbatch x 2 data ranks x 2 accumulated");
  has(chosen(std::to_string(four - 1)),
      "16 examples = 2 in a microbatch x 2 data ranks x 4 accumulated");
  const std::string least = "--microbatch-size auto --set recompute=auto --memory ";
  const int64_t again = bytes("--microbatch-size 1 --set recompute=block");
  CHECK(again < bytes("--microbatch-size 1"));
  expect_success(run_cli_in(f, job + least + std::to_string(again)));
  expect_failure(run_cli_in(f, job + least + "50kB"), 1, {"comes closest"});
}

}  // namespace TESSERA_FILE
