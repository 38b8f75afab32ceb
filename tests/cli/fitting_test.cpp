// What the command line says of storage, precision, overlap and offload that cannot be, and what a
// profile tells of communication.
#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("cli: storage rules that contradict each other are refused", "[cli]") {
  const TextFolder f;
  const std::string mesh = "--steps 1 --mesh \"data:2;model:2\" --layout ";
  expect_failure(train(f, mesh + "\"batch:data;@state d_model:data;@state d_model:model\""), 1,
                 {"'@state d_model:data' and '@state d_model:model' disagree about dim 'd_model'",
                  "join axes with '+'"});
  expect_failure(train(f, mesh + "\"batch:data;@params d_modle:data\""), 1,
                 {"'@params d_modle:data': no tensor has a dim 'd_modle'", "'d_model'"});
  expect_failure(train(f, mesh + "batch:data --zero 2 --over date"), 1,
                 {"has no axis 'date'", "did you mean 'data'?"});
  expect_failure(train(f, mesh + "batch:data --set recompute=atention"), 1,
                 {"recompute: no scope of the model matches 'atention'", "'attention'"});
}

TEST_CASE("cli: precision that cannot be is refused", "[cli]") {
  const TextFolder f;
  expect_failure(train(f, "--set rounding=stochastic"), 1,
                 {"train.rounding=stochastic is for parameters in 16 bits",
                  "train.parameters is float32", "train.parameters=bfloat16"});
  expect_failure(train(f, "--set rounding=random"), 1,
                 {"key 'train.rounding' is 'random'; it is nearest or stochastic"});
  expect_failure(train(f, "--set parameters=int32"), 1,
                 {"key 'train.parameters' is 'int32'; it is float32, bfloat16 or float16"});
  expect_failure(train(f, "--overlap maybe"), 1,
                 {"key 'train.overlap' is 'maybe'; it is on or off"});
  expect_failure(train(f, "--offload disk"), 1,
                 {"key 'train.offload' is 'disk'; it is none or state"});
  expect_failure(train(f, "--dtype float9"), 1, {"float9"});
}

TEST_CASE("cli: parameters in bfloat16, products in float8, state on the host", "[cli]") {
  const TextFolder f;
  const auto last_loss = [&](const std::string& more) {
    const CliResult result = train(f, "--steps 20 --log log.jsonl " + more);
    expect_success(result);
    return losses_of(f, "log.jsonl").at(20);
  };
  const double plain = last_loss("");
  CHECK(last_loss("--overlap off --mesh data:2") == Approx(plain).epsilon(1e-5));
  CHECK(last_loss("--offload state") == plain);
  CHECK(has(f.read("stdout.txt"),
            "of optimizer state in host memory, which is the CPU's "
            "own: nothing is gained"));
  CHECK(last_loss("--dtype float8") == Approx(plain).epsilon(0.05));
  expect_success(run_cli_in(f, "verify gpt --mesh a:2 --dtype float8 --set batch=4 layers=1"));
  CHECK(last_loss("--set parameters=bfloat16 rounding=stochastic --checkpoint ck") ==
        Approx(plain).epsilon(0.05));
  // What was saved is read again, also by a model that is built anew.
  expect_success(run_cli_in(f, "generate gpt --checkpoint ck --tokens 4"));
  expect_success(train(f,
                       "--steps 22 --set parameters=bfloat16 rounding=stochastic --checkpoint "
                       "ck --resume"));
}

TEST_CASE("cli: a profile shows what each bucket exposed beside what is predicted", "[cli]") {
  const TextFolder f;
  const CliResult result =
      train(f, "--steps 3 --mesh data:2 --profile --machine h100 --log log.jsonl");
  expect_success(result);
  CHECK(has(result.out, "communication of a training step, measured and predicted on h100:"));
  CHECK(has(result.out, "all_reduce over data: "));
  CHECK(has(result.out, "in all"));
  const auto records = log_of(f, "log.jsonl", "buckets");
  REQUIRE(records.size() == 1);
  REQUIRE_FALSE(records[0]["buckets"].empty());
  for (const nlohmann::json& row : records[0]["buckets"]) {
    CHECK(row["exposed_ms"].get<double>() > 0);
    CHECK(row["predicted_exposed_ms"].get<double>() + row["predicted_hidden_ms"].get<double>() > 0);
  }
  CHECK(has(result.out, "kernels of a training step against the roofline of h100, worst first:"));
  double before = INFINITY, ms = 0;
  for (const nlohmann::json& row : records[0]["kernels"]) {
    const double lost = row["ms"].get<double>() - row["roofline_ms"].get<double>();
    CHECK(lost <= before);
    CHECK(row["predicted_ms"].get<double>() >= row["roofline_ms"].get<double>());
    before = lost;
    ms += row["ms"].get<double>();
  }
  double computed = 0;  // what is no transfer and no wait
  for (const nlohmann::json& row : records[0]["profile"]) {
    if (row["op"] != "all_reduce" && row["op"] != "wait") computed += row["ms"].get<double>();
  }
  CHECK(ms > 0);
  CHECK(ms == Approx(computed).epsilon(0.01));
}

}  // namespace TESSERA_FILE
