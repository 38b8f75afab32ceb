// What a model of a user's own says through nn::Model, from the command line.
#include "cli/cli_run.h"

using namespace tessera::test;

namespace {

CliResult own(const Folder& f, const std::string& arguments) {
  return run_in(f, TESSERA_OWN_MODELS, arguments);
}

/// The records of the log that have `key`, after three steps of a batch of 6.
std::vector<nlohmann::json> trained(const Folder& f, const std::string& arguments,
                                    const std::string& key) {
  expect_success(
      own(f, "train weighted --steps 3 --log log.jsonl --set batch=6 lr=0.1 " + arguments));
  return log_of(f, "log.jsonl", key);
}

}  // namespace

TEST_CASE("cli: a loss with a weight and its metrics do not depend on microbatches and ranks",
          "[cli]") {
  const Folder f;
  const auto whole = trained(f, "--mesh data:1", "loss");
  const auto evaluated = log_of(f, "log.jsonl", "eval_loss").at(0);
  REQUIRE(whole.size() == 3);
  const double share = whole[0].at("right");
  CHECK(share > 0);
  CHECK(share < 1);
  CHECK(whole[2].at("loss").get<double>() < whole[0].at("loss").get<double>());
  for (const char* other : {"microbatches=3 --mesh data:1", "microbatches=2 --mesh data:3"}) {
    INFO(other);
    const auto parts = trained(f, other, "loss");
    for (size_t step = 0; step < 3; ++step) {
      for (const char* key : {"loss", "grad_norm", "right", "mean_output"}) {
        INFO("step " << step + 1 << ", " << key);
        CHECK(parts.at(step).at(key).get<double>() ==
              Approx(whole[step].at(key).get<double>()).epsilon(1e-5));
      }
    }
    const auto held_out = log_of(f, "log.jsonl", "eval_loss").at(0);
    for (const char* key : {"eval_loss", "eval_right", "eval_mean_output"})
      CHECK(held_out.at(key).get<double>() ==
            Approx(evaluated.at(key).get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("cli: batches of an evaluation count by their weight", "[cli]") {
  const Folder f;
  expect_success(own(f, "train weighted --steps 1 --checkpoint ck"));
  const auto of_batch = [&](int size) {
    const std::string batch = std::to_string(size);
    const CliResult r = own(f, "eval weighted --checkpoint ck --json e.json --set batch=" + batch);
    expect_success(r);
    CHECK(r.out.find("right 0.") != std::string::npos);
    return json_of(f, "e.json");
  };
  const nlohmann::json whole = of_batch(11), parts = of_batch(4);  // 11 examples: 4, 4 and 3
  for (const char* key : {"eval_loss", "eval_right", "eval_mean_output"}) {
    INFO(key);
    CHECK(parts.at(key).get<double>() == Approx(whole.at(key).get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("cli: metrics are columns of the table, and no field has two meanings", "[cli]") {
  const Folder f;
  const CliResult r = own(f, "train weighted --steps 1 --csv run.csv --json report.json");
  expect_success(r);
  const std::string table = f.read("run.csv");
  CHECK(table.substr(0, table.find('\n')).ends_with(",median_ms,right,mean_output"));
  CHECK(r.out.find("  right 0.") != std::string::npos);
  CHECK(json_of(f, "report.json").contains("right"));
  CHECK(json_of(f, "report.json").contains("eval_right"));
  for (const char* taken : {"loss", "step", "accuracy"})
    expect_failure(
        own(f, std::string("train weighted --steps 1 --log no.jsonl --set metric=") + taken), 1,
        {"a metric '" + std::string(taken) + "'", "give it another name"}, "tessera");
}
