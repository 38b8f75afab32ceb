// Strict numerics from the command line: one hash on every layout, in logs too.
#include <cstdio>
#include <set>

#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& log, const std::string& more,
                std::string gpt = kTinyGpt) {
  return run_cli_in(
      f, "train " + gpt + "numerics=strict --quiet --hash-every 2 " + "--log " + log + " " + more);
}

std::string last_hash(const Folder& f, const std::string& log) {
  return log_of(f, log, "state_hash").back()["state_hash"];
}

TEST_CASE("cli: runs under strict numerics have one hash", "[cli][strict]") {
  const TextFolder f;
  expect_success(train(f, "one.jsonl", "--steps 4 --mesh data:1 --threads 1"));
  const std::string expected = last_hash(f, "one.jsonl");
  CHECK(expected.size() == 64);
  const char* const kRuns[] = {
      "--mesh data:3 --fsdp data --threads 2",
      "--mesh \"data:2;model:2\" --layout \"batch:data;heads,ff,vocab:model\"",
      "--mesh length:2 --layout \"length:length\"", "--mesh data:2 --set microbatches=2",
      "--mesh model:5 --layout \"d_model:model\""};
  const char* const kOfTwelve[] = {"", "--set microbatches=2 --mesh data:2",
                                   "--set microbatches=4"};
  std::string gpt = kTinyGpt;
  gpt.replace(gpt.find("--batch 4"), 9, "--batch 12");
  std::set<std::string> of_twelve;
  for (const char* run : kOfTwelve) {
    expect_success(train(f, "twelve.jsonl", std::string("--steps 2 ") + run, gpt));
    of_twelve.insert(last_hash(f, "twelve.jsonl"));
  }
  CHECK(of_twelve.size() == 1);
  CHECK(run_cli_in(f, "explain gpt --batch 12 --set numerics=strict microbatches=4")
            .out.find("6 accumulated; 4 microbatches would change bits") != std::string::npos);
  for (const char* run : kRuns) {
    expect_success(train(f, "other.jsonl", std::string("--steps 4 ") + run));
    INFO(run);
    CHECK(last_hash(f, "other.jsonl") == expected);
  }
  // Stopped on three ranks, it goes on with two processes.
  expect_success(train(f, "first.jsonl", "--steps 2 --mesh data:3 --checkpoint saved"));
  const CliResult more = run_in(
      f, kLaunchLocal + "--max-restarts 0 --ranks 2 " TESSERA_CLI,
      std::string("train ") + kTinyGpt +
          "numerics=strict --quiet --hash-every 2 --log first.jsonl --steps 4 --checkpoint saved "
          "--resume");
  expect_success(more);
  CHECK(last_hash(f, "first.jsonl") == expected);
}

TEST_CASE("cli: compare takes logs with hashes", "[cli][strict]") {
  const TextFolder f;
  expect_success(train(f, "a.jsonl", "--steps 6 --mesh data:1"));
  expect_success(train(f, "b.jsonl", "--steps 4 --mesh data:2"));
  const CliResult equal = run_cli_in(f, "compare a.jsonl b.jsonl --json equal.json");
  expect_success(equal);
  CHECK(equal.out == "2 steps agree to the last bit, the last one is step 4\n");
  CHECK(json_of(f, "equal.json")["equal"] == true);
  // A wrong bit in one tensor at step 4.
  std::string text = f.read("b.jsonl");
  const std::string hash = last_hash(f, "b.jsonl");
  text.replace(text.rfind(hash), 1, hash[0] == '0' ? "1" : "0");
  const std::string name = "\"gpt.block0.mlp.up.w\":\"";
  const size_t at = text.rfind(name) + name.size();
  text[at] = text[at] == '0' ? '1' : '0';
  f.write("b.jsonl", text);
  const CliResult other = run_cli_in(f, "compare a.jsonl b.jsonl --json other.json");
  CHECK(other.code == 1);
  CHECK(other.out.find("first difference: after step 4, 1 of ") == 0);
  CHECK(other.out.find("gpt.block0.mlp.up.w\nafter step 2 all were equal") != std::string::npos);
  CHECK(json_of(f, "other.json")["step"] == 4);
  // strict is strict:16, and other jobs are told by their keys.
  expect_success(train(f, "d.jsonl", "--steps 4 --set numerics=strict:16 --mesh data:2"));
  expect_success(run_cli_in(f, "compare a.jsonl d.jsonl"));
  expect_success(train(f, "e.jsonl", "--steps 2 --set seed=1 microbatches=2"));
  const CliResult seed = run_cli_in(f, "compare a.jsonl e.jsonl");
  CHECK(seed.code == 1);
  CHECK(
      seed.out.find("the jobs differ: train.microbatches is 1 in A and 2 in B; train.seed is 0 in "
                    "A and 1 in B") != std::string::npos);
  expect_failure(run_cli_in(f, "compare a.jsonl missing.jsonl"), 1,
                 {"there is no dump or log 'missing.jsonl'"});
  // What cannot be compared.
  expect_success(run_cli_in(
      f, std::string("train ") + kTinyGpt + "--steps 2 --hash-every 2 --log plain.jsonl --quiet"));
  expect_failure(run_cli_in(f, "compare a.jsonl plain.jsonl"), 1,
                 {"train.numerics=strict", "default", "one kind of numerics"});
  expect_success(train(f, "none.jsonl", "--steps 1"));
  expect_failure(run_cli_in(f, "compare a.jsonl none.jsonl"), 1,
                 {"'none.jsonl' has no hashes", "--hash-every N"});
  f.write("c.jsonl", text.substr(0, text.find('\n') + 1) +
                         R"({"step":3,"state_hash":"0","tensor_hashes":{"a":"0"}})" + "\n");
  expect_failure(run_cli_in(f, "compare a.jsonl c.jsonl"), 1, {"hashes of no step in common"});
}

TEST_CASE("cli: a wrong bit on one rank is found at its step and node", "[cli][strict]") {
  const Folder f;
  const std::string settings = " --set model.wrong=bit numerics=strict ";
  const auto own = [&](const std::string& arguments) {
    return run_in(f, TESSERA_OWN_MODELS, arguments + settings);
  };
  for (const char* ranks : {"1", "2"})
    expect_success(
        own(std::string("train weighted --quiet --batch 8 --steps 4 --hash-every 1 --log ") +
            ranks + ".jsonl --mesh data:" + ranks));
  const CliResult logs = run_cli_in(f, "compare 1.jsonl 2.jsonl");
  CHECK(logs.code == 1);
  CHECK(logs.out.find("first difference: after step 3, ") == 0);
  CHECK(logs.out.find("after step 2 all were equal") != std::string::npos);
  const CliResult node = own("compare weighted \"\" batch:data --mesh data:2 --steps 4");
  INFO(node.out);
  CHECK(node.code == 1);
  CHECK(node.out.find("flipped") != std::string::npos);
}

TEST_CASE("cli: verify --bits gives one hash, or the layout with another one", "[cli][strict]") {
  const Folder f;
  const CliResult result = run_cli_in(f, "verify gpt --mesh a:2 --bits --json bits.json");
  expect_success(result);
  CHECK(result.out.find("equal: every layout has the bits of one rank, state ") !=
        std::string::npos);
  const nlohmann::json report = json_of(f, "bits.json");
  CHECK(report["state_hash"].get<std::string>().size() == 64);
  CHECK(report["other_bits"].empty());
  const CliResult other =
      run_cli_in(f, "verify gpt --mesh a:2 --bits --set numerics=default --layout \"d_model:a\"");
  CHECK(other.code == 1);
  CHECK(other.out.find("NOT EQUAL: 1 layouts have other bits than one rank") != std::string::npos);
  CHECK(other.out.find("tessera compare gpt \"\" \"d_model:a\" --mesh \"a:2\" --steps 3 "
                       "--tolerance 0 --set train.numerics=strict numerics=default") !=
        std::string::npos);
}

/// Folders hold constants, such as frequencies and the mean of images: no example replaces them.
TEST_CASE("cli: verify --bits has one hash for any number of microbatches", "[cli][strict]") {
  const Folder f;
  for (const std::string name : {"llama", "vit", "t5"}) {
    std::set<std::string> hashes;
    for (const char* microbatches : {"1", "2", "4"}) {
      const std::string settings = std::string(" --set batch=8 microbatches=") + microbatches;
      expect_success(run_cli_in(f, "verify " TESSERA_SOURCE_DIR "/tests/models/" + name + settings +
                                       " --init random --bits --steps 2 --mesh a:2"
                                       " --layout batch:a --json bits.json"));
      hashes.insert(json_of(f, "bits.json")["state_hash"].get<std::string>());
    }
    INFO(name);
    CHECK(hashes.size() == 1);
  }
}

TEST_CASE("cli: generate --check compares with the training forward", "[cli][strict]") {
  const Folder f;
  const std::string generate = "generate " TESSERA_SOURCE_DIR
                               "/data/tiny-llama --prompt \"Call me\" "
                               "--tokens 12 --samples 3 --rows 2 --check ";
  const CliResult strict =
      run_cli_in(f, generate + "--set numerics=strict --mesh a:2 --layout ff:a");
  expect_success(strict);
  CHECK(strict.out.find("36 log-probabilities are those of the training forward, bit for bit") !=
        std::string::npos);
  const CliResult other = run_cli_in(f, generate);
  expect_success(other);
  CHECK(other.out.find("differ from those of the training forward, by up to") != std::string::npos);
  CHECK(other.out.find("with --set numerics=strict none does") != std::string::npos);
  expect_failure(run_cli_in(f, generate + "--no-cache"), 1,
                 {"--check compares texts", "--no-cache"});
}

TEST_CASE("cli: explain and plan know what strict numerics cost", "[cli][strict]") {
  const Folder f;
  const std::string sizes = " gpt --device cpu --set layers=2 d_model=64 heads=4 ff=128 length=64 ",
                    gpt = sizes + "numerics=strict ";
  const CliResult explained = run_cli_in(f, "explain" + gpt + "--mesh data:2 --machine h100");
  expect_success(explained);
  CHECK(explained.out.find("strict numerics: ") != std::string::npos);
  CHECK(explained.out.find(" ms a step (") != std::string::npos);
  CHECK(explained.out.find(" sent by a rank (") != std::string::npos);
  CHECK(run_cli_in(f, "explain gpt --mesh data:2").out.find("strict numerics:") ==
        std::string::npos);
  // The plan is one that strict numerics can run, and its step is priced as they run it.
  expect_success(run_cli_in(f, "plan" + gpt + "--devices 4 --time 3 --json strict.json"));
  expect_success(run_cli_in(f, "plan" + sizes + "--devices 4 --time 3 --json default.json"));
  const auto seconds = [&](const char* file) {
    return json_of(f, file)["best"]["seconds"].get<double>();
  };
  CHECK(seconds("strict.json") > seconds("default.json"));
  // A GPU's matmuls leave the tensor cores.
  const CliResult gpu = run_cli_in(
      f, "explain gpt --machine h100 --set numerics=strict layers=1 d_model=1024 ff=4096 batch=16");
  expect_success(gpu);
  double strict = 0, other = 0;
  const size_t line = gpu.out.find("strict numerics: ");
  REQUIRE(line != std::string::npos);
  REQUIRE(std::sscanf(gpu.out.c_str() + line, "strict numerics: %lf ms a step (%lf by", &strict,
                      &other) == 2);
  CHECK(strict > 3 * other);
}

TEST_CASE("cli: what strict numerics cannot do is refused", "[cli][strict]") {
  const TextFolder f;
  const std::string gpt = std::string("train ") + kTinyGpt;
  expect_failure(run_cli_in(f, gpt + "numerics=strickt --steps 1"), 1,
                 {"'train.numerics' is 'strickt'", "default, strict, or strict:C"});
  expect_failure(run_cli_in(f, gpt + "numerics=strict:12 --steps 1"), 1,
                 {"'strict:12'", "a power of two C up to 1048576"});
  expect_failure(run_cli_in(f, gpt + "numerics=strict: --steps 1"), 1, {"'strict:'"});
  expect_failure(run_cli_in(f, gpt + "--hash-every -1 --steps 1"), 1, {"--hash-every -1"});
  expect_failure(
      run_cli_in(f, "explain gpt --set numerics=strict matmul_precision=tf32 --machine h100"), 1,
      {"strict numerics", "leave train.matmul_precision=tf32 out"});
}

}  // namespace TESSERA_FILE
