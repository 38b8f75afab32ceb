// float16 from the command line: the scale of the loss, skipped steps, overflow.
#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}

/// What skips the first steps: with it gradients are beyond 65504.
const char* const kTooLarge = "--dtype float16 --set loss_scale=16777216 ";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("cli: verify in 16 bits allows for their rounding", "[cli]") {
  const Folder f;
  for (const char* dtype : {"bfloat16", "float16"})
    expect_success(run_cli_in(f, std::string("verify gpt --mesh a:2 --dtype ") + dtype));
  for (const char* dtype : {"bfloat16", "float16"})
    expect_success(run_cli_in(f, std::string("verify gpt --mesh a:2 --set parameters=") + dtype));
  expect_failure(run_cli_in(f, "verify gpt --mesh a:2 --dtype float16 --set loss_scale=1e30"), 1,
                 {"the gradients of the first step overflow on one rank", "train.loss_scale 1e30",
                  "--set loss_scale=1024"});
  expect_failure(run_cli_in(f, "verify gpt --mesh a:2 --dtype bf16"), 1,
                 {"unknown dtype 'bf16'", "float32, bfloat16, float16, float64, float8"});
}

TEST_CASE("cli: float16 scales the loss and says so", "[cli]") {
  const TextFolder f;
  const CliResult half =
      train(f, "--steps 4 --dtype float16 --set loss_scale=1024 --log half.jsonl --mesh data:2");
  expect_success(half);
  CHECK(has(half.out, "  scale 1024, 0 skipped"));
  expect_success(train(f, "--steps 4 --log wide.jsonl"));
  const auto narrow = losses_of(f, "half.jsonl"), wide = losses_of(f, "wide.jsonl");
  REQUIRE(narrow.size() == 4);
  for (const auto& [step, loss] : narrow) CHECK(loss == Approx(wide.at(step)).epsilon(5e-3));
  for (const nlohmann::json& record : log_of(f, "half.jsonl", "loss"))
    CHECK(record["loss_scale"] == 1024);
  expect_success(train(f, "--steps 8 --dtype float16 --log auto.jsonl"));
  const nlohmann::json last = log_of(f, "auto.jsonl", "loss").back();
  CHECK(last["skipped"].get<int>() < 7);
  CHECK(last["loss_scale"] == 65536 / (1 << last["skipped"].get<int>()));
  for (const nlohmann::json& record : log_of(f, "wide.jsonl", "loss"))
    CHECK(record["loss_scale"] == 0);
}

TEST_CASE("cli: steps that overflow float16 are skipped, counted and kept", "[cli]") {
  const TextFolder f;
  const std::string job = std::string(kTooLarge) + "--checkpoint ck --log log.jsonl ";
  const CliResult all = train(f, std::string(kTooLarge) + "--steps 12 --log all.jsonl");
  expect_success(all);
  CHECK(has(all.out,
            "step 1 is skipped (1 so far): a gradient is not finite in float16; the loss is scaled "
            "by 8388608 from now on"));
  const auto records = log_of(f, "all.jsonl", "loss");
  const auto skipped = records.back()["skipped"].get<int>();
  CHECK(skipped >= 1);
  CHECK(skipped < 11);
  CHECK(records.back()["loss_scale"] == 16777216 / (1 << skipped));
  CHECK(records.back()["loss"].get<double>() < records.front()["loss"].get<double>());
  expect_success(train(f, job + "--steps 2"));
  expect_success(train(f, job + "--steps 12 --resume"));
  CHECK(log_of(f, "log.jsonl", "loss").back()["skipped"] == skipped);
  CHECK(losses_of(f, "log.jsonl") == losses_of(f, "all.jsonl"));
}

TEST_CASE("cli: float16 without a scale that overflows is told what helps", "[cli]") {
  const TextFolder f;
  expect_failure(train(f,
                       "--dtype float16 --steps 20 --set loss_scale=none optimizer=sgd lr=1e7 "
                       "clip=0"),
                 1, {"not finite", "float16 ends at 65504", "train.loss_scale=auto"});
  expect_failure(train(f, "--dtype float16 --set loss_scale=-3"), 1,
                 {"train.loss_scale -3 must be positive"});
  expect_failure(train(f, "--dtype flaot16"), 1, {"flaot16", "did you mean 'float16'?"});
}

}  // namespace TESSERA_FILE
