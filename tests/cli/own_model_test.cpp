// What a model of a user's own says through nn::Model, from the command line.
#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

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

TEST_CASE("cli: a model that breaks a rule of ModelSpec::build is told which", "[cli]") {
  const Folder f;
  for (const char* command :
       {"train weighted --steps 1", "explain weighted", "verify weighted --mesh a:2"}) {
    INFO(command);
    expect_failure(own(f, std::string(command) + " --set \"wrong=no loss\""), 1,
                   {"the build of model 'weighted' gives no loss; set nn::Model::loss"}, "tessera");
  }
  const std::string train = "train weighted --steps 1 --set batch=6 ";
  expect_failure(own(f, train + "wrong=loss"), 1,
                 {"the loss of model 'weighted' is [batch=6]; it must be a scalar"}, "tessera");
  expect_failure(own(f, train + "wrong=batch"), 1,
                 {"input 'more' of model 'weighted' is [width=4], without the dim "
                  "nn::batch_dim(6, false)"},
                 "tessera");
  for (const std::string dtype : {"bfloat16", "float16", "float64", "float8"})
    expect_failure(own(f, train + "--dtype " + dtype), 1,
                   {"model 'weighted' ignores --dtype " + dtype, "cast() to parse_dtype("},
                   "tessera");
  expect_success(own(f, train + "--dtype float32"));
}

TEST_CASE("cli: what a ModelSpec lacks or throws is told", "[cli]") {
  const Folder f;
  const auto fails = [&](const std::string& command, const std::string& message) {
    INFO(command);
    expect_failure(own(f, command), 1, {"usage error: ", message}, "tessera");
  };
  fails("explain empty", "model 'empty' cannot be built; set ModelSpec::build");
  const std::string train = "train weighted --steps 2 --set batch=6 \"wrong=";
  fails("train without_data --steps 1", "model 'without_data' gives no data; set ModelSpec::data");
  fails(train + "no data\"", "the data of model 'weighted' gives no training data");
  fails(train + "throws\"", "the build of model 'weighted' failed: no model today");
  fails(train + "throws 42\"",
        "the build of model 'weighted' failed: an exception that is no std::exception");
  fails(train + "evaluation\"", "the build of model 'weighted' failed: no evaluation today");
  CHECK(f.read("stdout.txt").find("first step") == std::string::npos);  // not after the last one
  fails(train + "data throws\"", "the data of model 'weighted' failed: no data today");
  fails(train + "rate\"", "the learning_rate of model 'weighted' gives nan for step 2");
  fails("explain taken", "model 'taken' has a key 'train.lr', as all models have");
}

TEST_CASE("cli: the learning rate has its own precision, whatever the loss's", "[cli]") {
  const Folder f;
  const auto losses = [&](const std::string& more) {
    expect_success(own(f,
                       "train weighted --steps 4 --log log.jsonl --watch lr --set batch=6 lr=0.05 "
                       "warmup=0 schedule=constant " +
                           more));
    std::vector<double> all;
    for (const nlohmann::json& record : log_of(f, "log.jsonl", "loss"))
      all.push_back(record["loss"].get<double>());
    return all;
  };
  const std::vector<double> wide = losses("microbatches=2 \"wrong=16 bits\""),
                            narrow = losses("\"wrong=16 bits\"");
  REQUIRE(wide.size() == 4);
  REQUIRE(narrow.size() == 4);
  CHECK(narrow[3] < narrow[0]);
  for (size_t step = 0; step < 4; ++step)
    CHECK(std::abs(narrow[step] - wide[step]) <= 0.05 * std::abs(wide[step]));
}

TEST_CASE("cli: --watch sees scalars that nothing uses", "[cli]") {
  const Folder f;
  const CliResult r =
      own(f, "train weighted --steps 2 --mesh data:2 --watch spread --log log.jsonl");
  expect_success(r);
  CHECK(log_of(f, "log.jsonl", "tensor").size() == 2);
  CHECK(log_of(f, "log.jsonl", "tensor").at(0).at("tensor") == "spread");
  CHECK(log_of(f, "log.jsonl", "tensor").at(0).at("mean").get<double>() > 0);
}

TEST_CASE("cli: generate takes any model that says where its tokens and logits are", "[cli]") {
  const Folder f;
  expect_success(own(f, "train counter --steps 60 --checkpoint ck --set batch=16 lr=0.3"));
  const CliResult r = own(f,
                          "generate counter --checkpoint ck --prompt 34 --tokens 12 "
                          "--temperature 0 --mesh \"data:1;model:2\"");
  expect_success(r);
  CHECK(r.out == "34567890123456\n");
  expect_failure(own(f, "generate counter --checkpoint ck --prompt \"\xc3\xa9\""), 1,
                 {"the prompt has byte 195, beyond the model's vocabulary of 128"}, "tessera");
  expect_success(own(f, "train counter --steps 1 --checkpoint silent --set batch=16 says=nothing"));
  expect_failure(own(f, "generate counter --checkpoint silent"), 1,
                 {"generate needs a language model, and 'counter' is not one: its build sets no "
                  "nn::Model::tokens"},
                 "tessera");
  expect_success(own(f, "train counter --steps 1 --checkpoint odd --set batch=16 says=labels"));
  expect_failure(
      own(f, "generate counter --checkpoint odd"), 1,
      {"the tokens of model 'counter' are float32 [] and its logits", "int32 [batch, p]"},
      "tessera");
}

TEST_CASE("cli: the planner takes the key of layers that the model names", "[cli]") {
  const Folder f;
  const std::string flags = " --machine h100 --mesh \"data:2;model:2\" --set batch=16 depth=3 ";
  expect_success(own(f, "plan counter" + flags + "--json plan.json"));
  const nlohmann::json plan = json_of(f, "plan.json");
  int extrapolated = 0;  // from one and two layers
  for (const nlohmann::json& p : plan.at("runners_up")) extrapolated += !p.at("whole").get<bool>();
  CHECK(extrapolated > 0);
  expect_failure(own(f, "plan lost" + flags), 1,
                 {"ModelSpec::layers_key of model 'lost' is 'model.layers', which is none of its "
                  "keys"},
                 "tessera");
}

}  // namespace TESSERA_FILE
