// The names and texts of the command line: help is made of sentences, info --keys is the list of
// keys, and what had another name says its name of today.
#include <CLI/CLI.hpp>
#include <cctype>

#include "base/crc32c.h"
#include "base/fail.h"
#include "cli/cli_run.h"
#include "cli/commands.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}

void expect_sentence(const std::string& what, const std::string& text) {
  INFO(what << ": " << text);
  REQUIRE(!text.empty());
  const auto first = static_cast<unsigned char>(text.front());
  CHECK((std::isupper(first) || std::isdigit(first) || first == '"'));
  CHECK(text.back() == '.');
  CHECK(text.find("  ") == std::string::npos);
}

std::string replaced(std::string text, const std::string& old, const std::string& now) {
  const size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), now);
}

/// The manifest with other text in it and a checksum that agrees.
std::string manifest_with(const std::string& manifest,
                          const std::vector<std::pair<std::string, std::string>>& changes) {
  const std::string middle = "\",\"manifest\":", tail = "}\n";
  const size_t begin = manifest.find(middle) + middle.size();
  std::string inner = manifest.substr(begin, manifest.size() - begin - tail.size());
  for (const auto& [old, now] : changes) inner = replaced(inner, old, now);
  return fmt::format("{{\"crc32c\":\"{:08x}{}{}{}", crc32c(inner.data(), inner.size()), middle,
                     inner, tail);
}

TEST_CASE("cli: every help text is a sentence", "[cli]") {
  const std::vector<cli::Command> commands = cli::all_commands();
  CHECK(commands.size() == 21);
  for (const cli::Command& command : commands) {
    expect_sentence(command.name, command.help);
    for (const cli::Flag& flag : command.table.rows())
      expect_sentence(std::string(command.name) + " " + flag.name, flag.help);
  }
  for (const ModelSpec& model : builtin_models()) {
    expect_sentence(model.name, model.help);
    const Config config = cli::default_config(model);
    for (const ConfigKey& key : config.keys()) expect_sentence(key.name, key.help);
  }
}

TEST_CASE("cli: ranks are compared by every flag that does not say why they may differ", "[cli]") {
  for (const cli::Command& command : cli::all_commands()) {
    std::vector<std::string> compared;
    for (const auto& [name, value] : command.table.facts()) compared.push_back(name);
    for (const cli::Flag& flag : command.table.rows()) {
      INFO(command.name << " " << flag.name);
      const char* why = flag.ranks.may_differ;
      const bool is_compared =
          std::find(compared.begin(), compared.end(), flag.word()) != compared.end();
      CHECK(is_compared == (why == nullptr || flag.ranks.all_or_none));
      CHECK((why == nullptr || std::string(why).size() > 10));
      const auto* const key = std::get_if<cli::SetsKey>(&flag.target);
      CHECK((key == nullptr || why != nullptr));  // a key is compared as one
      const std::set<std::string> of_files = {"model.init", "model.loss", "model.dims"};
      if (key == nullptr || of_files.count(key->key) != 0) continue;
      const Config config = cli::default_config(builtin_models()[0]);
      CHECK_NOTHROW(config.text(key->key));
    }
    CHECK(std::set<std::string>(compared.begin(), compared.end()).size() == compared.size());
  }
}

TEST_CASE("cli: the value of a flag as text", "[cli]") {
  CLI::App app("Is tested.", "tessera");
  const std::vector<cli::Command> commands = cli::all_commands();
  cli::add_commands(app, commands);
  app.parse("train gpt --keep 7 --keep-best --top-p 0.5 --watch a b --check-replicas 9 --steps 3");
  std::map<std::string, std::string> values;
  for (const auto& [name, value] : commands[1].table.facts()) values[name] = value;
  CHECK(values.at("--keep") == "7");
  CHECK(values.at("--keep-best") == "true");
  CHECK(values.at("--resume") == "false");
  CHECK(values.at("--top-p") == "0.5");
  CHECK(values.at("--watch") == "a,b");
  CHECK(values.at("--check-replicas") == "9");
  CHECK(values.at("--tokens").empty());
  CHECK(!values.contains("--steps"));
}

TEST_CASE("cli: info lists every key", "[cli]") {
  const Folder f;
  const CliResult info = run_cli_in(f, "info --keys --json keys.json");
  expect_success(info);
  const nlohmann::json models = json_of(f, "keys.json")["models"];
  REQUIRE(models.size() == builtin_models().size());
  for (size_t m = 0; m < models.size(); ++m) {
    const ModelSpec& model = builtin_models()[m];
    CHECK(models[m]["name"] == model.name);
    CHECK(models[m]["help"] == model.help);
    CHECK(models[m]["layout"] == model.layout);
    const Config config = cli::default_config(model);
    REQUIRE(models[m]["keys"].size() == config.keys().size());
    for (size_t k = 0; k < config.keys().size(); ++k) {
      const ConfigKey& key = config.keys()[k];
      const nlohmann::json& listed = models[m]["keys"][k];
      CHECK(listed["name"] == key.name);
      CHECK(listed["default"] == key.value);
      CHECK(listed["help"] == key.help);
      CHECK(listed["words"] == key.range.words);
      CHECK(info.out.find("  " + key.name + " = ") != std::string::npos);
      CHECK(info.out.find("\n      " + key.help + "\n") != std::string::npos);
    }
  }
  const auto has = [&](const std::string& text) {
    return info.out.find(text) != std::string::npos;
  };
  CHECK(has("model.layers = 4 (a whole number from 1 to 2000)\n      Number of blocks.\n"));
  CHECK(has("train.overlap = on (on or off)\n"));
  CHECK(has("train.chunks = auto (auto, or a whole number from 1 to 1000000)\n"));
  CHECK(has("data.path = \"\"\n"));
  CHECK(models[0]["keys"][1]["kind"] == "whole");
  CHECK(models[0]["keys"][1]["most"] == 2000);
}

TEST_CASE("cli: a key that was renamed says its name of today", "[cli]") {
  const TextFolder f;
  const std::pair<const char*, const char*> renamed[] = {
      {"sums", "train.grad_reduce_dtype"},
      {"reduce", "train.grad_reduce"},
      {"products", "train.matmul_precision"},
      {"regather", "train.reshard_after_forward"}};
  for (const auto& [old, now] : renamed) {
    const std::string key = old;
    for (const std::string& form : {key, "train." + key})
      expect_failure(run_cli_in(f, "explain gpt --set " + form + "=none"), 1,
                     {"unknown key '" + form + "'; it is called " + now + " now"});
    f.write("run.toml", "[train]\n" + key + " = \"none\"\n");
    expect_failure(run_cli_in(f, "explain run.toml"), 1,
                   {"unknown key 'train." + key + "'; it is called " + now + " now"});
  }
  expect_failure(run_cli_in(f, "explain gpt --set grad_reduce=part"), 1,
                 {"key 'train.grad_reduce' is 'part'; that is called microbatch now"});
  expect_failure(run_cli_in(f, "explain gpt --set grad_reduce=often"), 1,
                 {"key 'train.grad_reduce' is 'often'; it is step or microbatch"});
  expect_failure(run_cli_in(f, "explain gpt --set pipeline_schedule=1fb1"), 1,
                 {"unknown pipeline_schedule '1fb1'; did you mean '1f1b'?"});
  const std::string stages = "explain gpt --mesh pipe:2 --set scan=true microbatches=4 batch=8 ";
  expect_failure(
      run_cli_in(f, stages + "pipeline_schedule=interleaved --layout layers:pipe"), 1,
      {"train.pipeline_schedule=interleaved wants 2 chunks of layers a stage, and layout "
       "'layers:pipe' has one; write layers:AXIS*2, or pipeline_schedule=1f1b"});
  expect_failure(run_cli_in(f, stages + "pipeline_schedule=zb_v --layout layers:pipe"), 1,
                 {"train.pipeline_schedule=zb_v wants 2 chunks of layers a stage",
                  "write layers:AXIS*2, or pipeline_schedule=1f1b"});
  expect_failure(
      run_cli_in(f, stages + "layers=12 pipeline_schedule=zb_v --layout layers:pipe*3"), 1,
      {"layout rule 'layers:pipe*3': 3 chunks of layers a stage need pipeline_schedule=1f1b",
       "zb_v has at most 2"});
  expect_failure(
      run_cli_in(f, stages + "layers=6 pipeline_schedule=zb_v --layout layers:pipe*2"), 1,
      {"layout rule 'layers:pipe*2': 6 layers cannot be dealt to 2 stages with 2 chunks each",
       "give the model a multiple of 4"});
  expect_failure(run_cli_in(f, stages + "pipeline_schedule=gpipe --layout layers:pipe*2"), 1,
                 {"layout rule 'layers:pipe*2': 2 chunks of layers a stage need "
                  "pipeline_schedule=1f1b"});
  expect_failure(run_cli_in(f,
                            "verify gpt --mesh pipe:2 --set scan=true layers=4 microbatches=2 "
                            "pipeline_schedule=gpipe --layout layers:pipe*2"),
                 1, {"2 chunks of layers a stage need pipeline_schedule=1f1b"});
  expect_failure(run_cli_in(f, stages + "layers=6 --layout layers:pipe*2"), 1,
                 {"layout rule 'layers:pipe*2': 6 layers cannot be dealt to 2 stages with 2 chunks "
                  "each",
                  "give the model a multiple of 4"});
  expect_failure(run_cli_in(f, stages + "--layout stage:pipe"), 1,
                 {"layout rule 'stage:pipe': no tensor has a dim 'stage'",
                  "stages are the ranks along the axis of the layers: layers:AXIS"});
  // A model's own key may have such a name.
  Config own({{"model.sums", "1", "Number of sums."}, {"train.grad_reduce", "step", "When."}});
  own.set("sums", "2");
  CHECK(own.text("model.sums") == "2");
}

TEST_CASE("cli: flags and passes that were renamed say their names of today", "[cli]") {
  const Folder f;
  for (const std::string runs : {"--runs published.csv", "--runs=published.csv --json r.json"})
    expect_failure(run_cli_in(f, "simulate " + runs), 2,
                   {"'simulate --runs FILE' is the program 'bench_published_runs FILE' now"});
  const std::pair<const char*, const char*> passes[] = {
      {"masks", "insert_padding_masks"}, {"fuse", "fuse_pointwise"},
      {"epilogue", "fuse_epilogues"},    {"prologue", "fuse_prologues"},
      {"combine", "bucket_collectives"}, {"chunk", "collective_matmul"},
      {"memory", "plan_memory"}};
  for (const auto& [old, now] : passes) {
    const std::string explain = "explain mlp --mesh data:2 --print-after=";
    expect_failure(run_cli_in(f, explain + old), 1,
                   {std::string("--print-after=") + old + ": there is no such pass; it is called " +
                    now + " now"});
    if (std::string(now) != "fuse_prologues")  // of a GPU
      expect_success(run_cli_in(f, explain + now));
  }
  expect_failure(run_cli_in(f, "explain mlp --print-after=partitoin"), 1,
                 {"there is no such pass; did you mean 'partition'?"});
  expect_failure(run_cli_in(f, "explain mlp --print-after=group_tensors"), 1,
                 {"this pass does not run for a device 'cpu'; give another --device"});
}

TEST_CASE("cli: a checkpoint whose keys had other names is resumed and evaluated", "[cli]") {
  const TextFolder f;
  const std::string set = "--mesh data:2 --set microbatches=2 grad_reduce=microbatch ";
  expect_success(train(f, set + "--steps 2 --checkpoint ck --log new.jsonl"));
  const std::string name = "ck/step-00000002/manifest.json";
  f.write(name, manifest_with(f.read(name),
                              {{"grad_reduce_dtype = ", "sums = "},
                               {"grad_reduce = \\\"microbatch\\\"", "reduce = \\\"part\\\""},
                               {"matmul_precision = ", "products = "},
                               {"reshard_after_forward = ", "regather = "}}));
  expect_success(run_cli_in(f, "eval gpt --data text.txt --checkpoint ck --set batch=4"));
  const CliResult resumed = train(f, set + "--steps 3 --checkpoint ck --resume");
  expect_success(resumed);
  CHECK(resumed.out.find("resumed from ck/step-00000002 at step 2") != std::string::npos);
  // What differs is named as it is called now.
  std::filesystem::remove_all(f("ck/step-00000003"));
  expect_failure(train(f, "--mesh data:2 --set microbatches=2 --steps 3 --checkpoint ck --resume"),
                 1, {"train.grad_reduce was 'microbatch' and is 'step'"});
}

}  // namespace TESSERA_FILE
