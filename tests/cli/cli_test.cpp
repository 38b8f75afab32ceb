// The command line from outside: exit codes, one line on stderr, nothing half-written.
#include <cmath>

#include "cli/cli_run.h"
#include "tessera/build_info.h"
#include "tessera/optim.h"

using namespace tessera::test;

namespace TESSERA_FILE {

/// A folder with text to train on.
struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& more, const std::string& environment = "") {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more, environment);
}

TEST_CASE("cli: wrong words are usage errors with exit code 2", "[cli]") {
  const Folder f;
  expect_failure(run_cli_in(f, "trian gpt"), 2,
                 {"unknown command 'trian'", "did you mean 'train'?"});
  expect_failure(run_cli_in(f, "train gpt --stpes 3"), 2,
                 {"unknown argument '--stpes'", "did you mean '--steps'?", "tessera train --help"});
  expect_failure(run_cli_in(f, "train"), 2, {"model"});
  expect_failure(run_cli_in(f, "train gpt --keep many"), 2, {"--keep", "many"});
  expect_failure(run_cli_in(f, "eval gpt"), 1, {"eval needs --checkpoint DIR"});
}

TEST_CASE("cli: help works on each command", "[cli]") {
  const Folder f;
  expect_success(run_cli_in(f, "--help"));
  for (const std::string name : {"info", "train", "eval", "generate", "explain", "verify"}) {
    const CliResult help = run_cli_in(f, name + " --help");
    expect_success(help);
    CHECK(help.out.find("Example:") != std::string::npos);
  }
}

TEST_CASE("cli: the version", "[cli]") {
  const CliResult version = run_cli_in(Folder(), "--version");
  expect_success(version);
  CHECK(version.out == "tessera " + tessera::build_info().version + "\n");
}

TEST_CASE("cli: wrong models, keys, meshes and layouts", "[cli]") {
  const TextFolder f;
  const std::set<std::string> before = {"text.txt", "stdout.txt", "stderr.txt"};
  expect_failure(run_cli_in(f, "train gtp --data text.txt"), 1,
                 {"unknown model 'gtp'", "did you mean 'gpt'?"});
  expect_failure(run_cli_in(f, "train data/tiny-lama --data text.txt"), 1,
                 {"there is no model in 'data/tiny-lama'", "a folder with a config.json"});
  expect_success(train(f, "--steps 1 --mesh data:2 --checkpoint ck --layout \"\""));
  CHECK(f.read("stdout.txt").find("\nlayout  (nothing split)\n") != std::string::npos);
  expect_failure(run_cli_in(f, "generate mlp --checkpoint ck"), 1,
                 {"it holds a checkpoint of the model 'gpt', not of 'mlp'"});
  std::filesystem::remove_all(f("ck"));
  expect_failure(train(f, "--set layer=2"), 1, {"unknown key 'layer'", "did you mean 'layers'?"});
  expect_failure(train(f, "--set lerning_rate=3"), 1,
                 {"unknown key 'lerning_rate'; known: model.name, ", "train.lr", "data.held_out"});
  expect_failure(train(f, "--set layers"), 1, {"--set 'layers' is not key=value"});
  expect_failure(train(f, "--set layers=two"), 1, {"'model.layers' is 'two'"});
  expect_failure(train(f, "--set optimizer=adamv"), 1, {"unknown optimizer 'adamv'", "'adamw'?"});
  expect_failure(train(f, "--set rates=*.b"), 1, {"'train.rates'", "'*.b'", "glob=factor"});
  expect_failure(train(f, "--set rates=*.b=two"), 1, {"'*.b=two'", "glob=factor"});
  expect_failure(train(f, "--set rates=embeding=2"), 1, {"like 'embeding'", "gpt.embedding"});
  expect_failure(train(f, "--set schedule=cosin"), 1, {"unknown schedule 'cosin'", "'cosine'?"});
  expect_failure(train(f, "--set dtype=float31"), 1, {"unknown dtype 'float31'", "'float32'?"});
  expect_failure(train(f, "--steps 0"), 1, {"'train.steps' is 0"});
  expect_failure(run_cli_in(f, "train gpt --data text.txt --batch 0"), 1,
                 {"'train.batch' is 0", "from 1"});
  expect_failure(train(f, "--mesh data:0"), 1, {"mesh axis 'data' has size 0"});
  expect_failure(train(f, "--mesh 0"), 1, {"'0' is not 'axis:size'"});
  expect_failure(train(f, "--mesh \"data:2;data:2\""), 1, {"'data' is named twice"});
  expect_failure(train(f, "--mesh data:2 --layout btach:data"), 1,
                 {"no tensor has a dim 'btach'", "did you mean 'batch'?"});
  expect_failure(train(f, "--mesh data:2 --layout batch:dta"), 1, {"did you mean 'data'?"});
  expect_failure(train(f, "--mesh data:2 --layout batch,d_model:data"), 1,
                 {"both claim mesh axis 'data'", "transformer.cpp:"});
  expect_failure(train(f, "--mesh pipe:2 --layout layers:pipe"), 1,
                 {"layout rule 'layers:pipe': the layers of 'gpt' are built one by one",
                  "--set scan=true makes them a loop"});
  expect_failure(train(f,
                       "--mesh pipe:2 --layout layers:pipe --set scan=true microbatches=2 "
                       "--watch gpt.block.mlp.gelu"),
                 1,
                 {"'gpt.block.mlp.gelu' is only computed in a loop: it has a value in each layer "
                  "and microbatch, and none outside",
                  "--set scan=false microbatches=1"});
  expect_failure(train(f, "--mesh data:2 --layout @rules.txt"), 1, {"rules.txt"});
  expect_failure(run_cli_in(f, "train run.toml"), 1, {"cannot open configuration 'run.toml'"});
  CHECK(f.names() == before);
}

TEST_CASE("cli: every optimizer trains", "[cli]") {
  const TextFolder f;
  std::set<std::string> outcomes;
  for (const std::string name : {"adamw", "adam", "adam_uncorrected", "adafactor", "lamb", "lion",
                                 "momentum", "sgd", "sgd rates=*embedding=0,*.b=2"}) {
    INFO(name);
    expect_success(train(f,
                         "--steps 6 --mesh data:2 --layout \"batch:data;@state ff:data\" "
                         "--log log.jsonl --set optimizer=" +
                             name));
    const std::map<int64_t, double> losses = losses_of(f, "log.jsonl");
    CHECK(losses.rbegin()->second < losses.begin()->second);
    outcomes.insert(std::to_string(losses.rbegin()->second));
    std::remove((f.dir + "/log.jsonl").c_str());
  }
  CHECK(outcomes.size() == 9);
}

TEST_CASE("cli: the keys of a schedule make its rates", "[cli]") {
  const TextFolder f;
  const std::string set = "schedule=rsqrt lr=0.01 warmup=2 start=0.5 flat=4 cooldown=0.25 ";
  expect_success(train(f, set + "floor=0 --steps 8 --log log.jsonl"));
  const tessera::Schedule same = {"rsqrt", 0.01, 2, 8, 0, 0.5, 4, 0.25};
  const auto records = log_of(f, "log.jsonl", "loss");
  REQUIRE(records.size() == 8);
  for (int64_t step = 0; step < 8; ++step)
    CHECK(records[step]["lr"].get<double>() == Approx(same.at(step)).epsilon(1e-5));
  CHECK(same.at(0) == Approx(0.0075));
  CHECK(same.at(3) == Approx(0.01));
  CHECK(same.at(5) == Approx(0.01 * std::sqrt(0.8)));
  CHECK(same.at(7) == Approx(0.01 * std::sqrt(4.0 / 7) * 0.5));
}

TEST_CASE("cli: a batch in microbatches trains as the whole batch does", "[cli]") {
  const TextFolder f;
  std::vector<double> losses;
  for (const std::string parts : {"1", "2", "4"}) {
    expect_success(train(f,
                         "--steps 3 --mesh data:2 --layout batch:data --log log.jsonl "
                         "--set dropout=0.1 microbatches=" +
                             parts));
    losses.push_back(losses_of(f, "log.jsonl").rbegin()->second);
    std::remove((f.dir + "/log.jsonl").c_str());
  }
  CHECK(losses[1] == Approx(losses[0]).epsilon(1e-5));
  CHECK(losses[2] == Approx(losses[0]).epsilon(1e-5));
  expect_failure(train(f, "--set microbatches=3"), 1, {"train.batch 4", "train.microbatches 3"});
  expect_success(run_cli_in(f, "verify gpt --mesh a:2 --set batch=4 microbatches=2"));
}

TEST_CASE("cli: data files that are missing, empty, too short or damaged", "[cli]") {
  const TextFolder f;
  f.write("empty.txt", "");
  f.write("short.txt", "abc");
  expect_failure(run_cli_in(f, "train gpt --log log.jsonl"), 1, {"--data PATH"});
  expect_failure(run_cli_in(f, "train gpt --data nope.txt"), 1, {"nope.txt"});
  expect_failure(run_cli_in(f, "train gpt --data empty.txt"), 1, {"empty.txt"});
  expect_failure(run_cli_in(f, "train gpt --data short.txt"), 1, {"short.txt"});
  expect_failure(run_cli_in(f, "train mlp --data ."), 1, {"train-images-idx3-ubyte.gz"});
  f.write("train-images-idx3-ubyte.gz", "not an image file");
  f.write("train-labels-idx1-ubyte.gz", "nor labels");
  expect_failure(run_cli_in(f, "train mlp --data . --log log.jsonl"), 1,
                 {"train-images-idx3-ubyte.gz"});
  CHECK(f.names().count("log.jsonl") == 0);
}

TEST_CASE("cli: a launcher that MPI does not see is refused", "[cli]") {
  const TextFolder f;
  // MPI starts here, and what it leaves behind is not ours.
  expect_failure(train(f, "--steps 1", "OMPI_COMM_WORLD_SIZE=4 LSAN_OPTIONS=detect_leaks=0"), 1,
                 {"OMPI_COMM_WORLD_SIZE says this job has 4 ranks"});
}

TEST_CASE("cli: flags of checkpoints", "[cli]") {
  const TextFolder f;
  expect_failure(train(f, "--resume --log log.jsonl"), 1, {"--checkpoint DIR"});
  expect_failure(train(f, "--save-every 2"), 1, {"--checkpoint DIR"});
  expect_failure(train(f, "--checkpoint ck --keep 0"), 2, {"--keep", "'0'"});
  expect_failure(train(f, "--checkpoint ck --keep 4294967297"), 2, {"--keep", "1000000"});
  expect_failure(run_cli_in(f, "eval gpt --data text.txt --checkpoint none"), 1,
                 {"'none' holds no checkpoint"});
  CHECK(f.names().count("log.jsonl") == 0);
}

TEST_CASE("cli: an earlier run is not overwritten, nor its log", "[cli]") {
  const TextFolder f;
  expect_success(train(f, "--steps 2 --checkpoint ck --log log.jsonl"));
  const std::string log = f.read("log.jsonl");
  expect_failure(train(f, "--steps 2 --checkpoint ck --log log.jsonl"), 1,
                 {"earlier run", "step 2", "--resume"});
  CHECK(f.read("log.jsonl") == log);
}

TEST_CASE("cli: the checkpoint of another model is refused", "[cli]") {
  const TextFolder f;
  expect_success(train(f, "--steps 1 --checkpoint ck"));
  const std::string name = "ck/step-00000001/rank-00000.safetensors", file = f.read(name);
  REQUIRE(!file.empty());
  const std::string go_on = "--steps 3 --checkpoint ck --resume ";
  const std::pair<const char*, const char*> changes[] = {
      {"--set d_model=32", "model.d_model was '16' and is '32'"},
      {"--set optimizer=lion", "train.optimizer was 'adamw' and is 'lion'"},
      {"--set dtype=bfloat16", "train.dtype was 'float32' and is 'bfloat16'"},
      {"--seed 3", "train.seed was '0' and is '3'"}};
  for (const auto& [change, words] : changes)
    expect_failure(train(f, go_on + change), 1,
                   {"'ck/step-00000001' was saved by another job: ", words, "--allow-changes"});
  f.write("text.txt", some_text() + "and more of it");
  expect_failure(train(f, go_on), 1, {"by another job: the data was '", "bytes, crc32c "});
  f.write("text.txt", some_text());
  CHECK(f.read(name) == file);
  const auto allowed = [&](const std::string& change, const std::string& words) {
    std::filesystem::remove_all(f("other"));
    std::filesystem::copy(f("ck"), f("other"), std::filesystem::copy_options::recursive);
    const CliResult r = train(f, "--steps 3 --checkpoint other --resume --allow-changes " + change);
    expect_success(r);
    INFO(r.out);
    CHECK(r.out.find(words) != std::string::npos);
    CHECK(std::filesystem::exists(f("other/step-00000003")));
  };
  allowed("--set layers=2", "the others start anew; the file lacks gpt.block1");
  allowed("--set optimizer=lion", "; the model lacks optimizer.");
  const CliResult done = train(f, "--steps 1 --checkpoint ck --resume");
  expect_success(done);
  CHECK(done.out.find("nothing to do: train.steps is 1") != std::string::npos);
  const CliResult tuned = train(f, go_on + "--set lr=2e-3");
  expect_success(tuned);
  CHECK(tuned.out.find("train.lr was 0.001 and is 2e-3 from here on") != std::string::npos);
  CHECK(tuned.out.find("train.weight_decay was") == std::string::npos);
  // The curve of a schedule depends on the number of steps; a constant rate does not.
  const std::string rates = "--set warmup=1 floor=0.1 lr=1e-2 schedule=";
  for (const char* kind : {"cosine", "constant"}) {
    const std::string job = "--checkpoint " + std::string(kind) + " " + rates + kind;
    expect_success(train(f, "--steps 4 " + job));
    const CliResult more = train(f, "--steps 8 --resume " + job);
    expect_success(more);
    INFO(more.out);
    const bool is_said =
        more.out.find(
            "warning: the curve of learning rates changes, as train.steps was 4 and is "
            "8: step 5 had 0.001 and has 0.006501") != std::string::npos;
    CHECK(is_said == (kind == std::string("cosine")));
    CHECK(is_said == (more.out.find("curve") != std::string::npos));
  }
  expect_failure(run_cli_in(f, "eval mlp --data . --checkpoint ck"), 1,
                 {"not written by the model 'mlp'"});
}

TEST_CASE("cli: damaged checkpoints", "[cli]") {
  const TextFolder f;
  expect_success(train(f, "--steps 1 --checkpoint ck"));
  const std::string name = "ck/step-00000001/manifest.json", good = f.read(name);
  REQUIRE(!good.empty());
  const std::string resume = "--steps 2 --checkpoint ck --resume";
  const std::string damaged[] = {good.substr(0, good.size() - 10), good.substr(0, 4), "",
                                 std::string(8, '\xff') + good.substr(8)};
  for (const std::string& bytes : damaged) {
    f.write(name, bytes);
    expect_failure(train(f, resume), 1, {"step-00000001"});
    expect_failure(run_cli_in(f, "generate gpt --checkpoint ck"), 1, {"step-00000001"});
    CHECK(f.read(name) == bytes);
  }
  f.write(name, good);
  std::filesystem::create_directory(f("ck/step-00000009"));
  f.write("ck/step-00000009/manifest.json", "rubbish");
  const CliResult result = train(f, resume);
  expect_success(result);
  CHECK(result.out.find("step-00000009") != std::string::npos);
  CHECK(result.out.find("resumed from ck/step-00000001 at") != std::string::npos);
}

TEST_CASE("cli: the log has the documented fields", "[cli]") {
  const TextFolder f;
  expect_success(train(f, "--steps 3 --mesh data:2 --log log.jsonl"));
  const std::vector<nlohmann::json> steps = log_of(f, "log.jsonl", "loss");
  REQUIRE(steps.size() == 3);
  const std::string documented = [] {
    std::ifstream in(TESSERA_SOURCE_DIR "/docs/reference/log-fields.md");
    return std::string(std::istreambuf_iterator<char>(in), {});
  }();
  const std::set<std::string> fields = {
      "step",       "steps",        "loss",        "grad_norm",  "lr",           "ms",
      "planned_ms", "tokens_per_s", "flops_per_s", "peak_share", "memory_bytes", "eta_s",
      "skipped",    "slowest_rank", "slowest_ms",  "median_ms",  "loss_scale",   "data_ms"};
  for (const nlohmann::json& record : steps) {
    std::set<std::string> present;
    for (const auto& [key, value] : record.items()) {
      present.insert(key);
      CHECK(value.is_number());
      CHECK(documented.find("`" + key + "`") != std::string::npos);
    }
    CHECK(present == fields);
    CHECK(record["data_ms"].get<double>() > 0);
    CHECK(record["data_ms"].get<double>() < record["ms"].get<double>());
  }
  CHECK(log_of(f, "log.jsonl", "eval_loss").size() == 1);
}

TEST_CASE("cli: eval and generate from a checkpoint", "[cli]") {
  const TextFolder f;
  expect_success(train(f, "--steps 2 --mesh model:2 --checkpoint ck"));
  const CliResult eval =
      run_cli_in(f, "eval gpt --data text.txt --checkpoint ck --mesh data:2 --set batch=4");
  expect_success(eval);
  CHECK(eval.out.find("step 2, loss ") != std::string::npos);
  const CliResult text = run_cli_in(
      f, "generate gpt --checkpoint ck --prompt line --tokens 5 --temperature 0 --mesh model:2");
  expect_success(text);
  CHECK(text.out.find("line") != std::string::npos);
}

TEST_CASE("cli: an evaluation that is not finite is an error", "[cli]") {
  const TextFolder f;
  const std::string eval = "eval gpt --data text.txt --set batch=4 --json eval.json --checkpoint ";
  expect_success(train(f, "--steps 1 --mesh data:1 --set lr=1e38 --checkpoint large"));
  expect_failure(run_cli_in(f, eval + "large"), 1,
                 {"the loss of", "is NaN", "the parameters are finite"});
  CHECK(json_of(f, "eval.json")["eval_loss"].is_null());
  expect_success(train(f, "--steps 1 --mesh data:1 --set lr=1e39 --checkpoint endless"));
  expect_failure(run_cli_in(f, eval + "endless --mesh data:2"), 1,
                 {"is NaN", "' has ", " values that are not finite; take an earlier checkpoint"});
}

TEST_CASE("cli: reports parse as JSON", "[cli]") {
  const Folder f;
  expect_success(run_cli_in(f, "explain gpt --mesh \"data:4;model:8\" --json explain.json"));
  CHECK(json_of(f, "explain.json").is_object());
  expect_success(run_cli_in(f, "info --mesh data:2 --json info.json"));
  CHECK(json_of(f, "info.json").is_object());
  expect_failure(run_cli_in(f, "explain gpt --print-after=nothing"), 1, {"nothing"});
  expect_failure(run_cli_in(f, "explain gpt --json no/such/dir.json"), 1, {"no/such/dir.json"});
}

TEST_CASE("cli: verify compares and its exit code says so", "[cli]") {
  const Folder f;
  const std::string data = " --set data.path='" TESSERA_SOURCE_DIR "/data/digits' ";
  const CliResult equal = run_cli_in(f, "verify mlp --mesh a:2 --json v.json" + data);
  expect_success(equal);
  const nlohmann::json report = json_of(f, "v.json");
  CHECK(report["equal"] == true);
  CHECK(report["layouts"].get<int>() >= 4);
  // The gradient to the queries of a single position is 0 but for rounding.
  expect_success(run_cli_in(f, "verify gpt --mesh a:2 --set length=1"));
  const CliResult strict = run_cli_in(f, "verify mlp --mesh a:2 --tolerance 1e-30" + data);
  CHECK(strict.code == 1);
  CHECK(strict.out.find("NOT EQUAL") != std::string::npos);
  CHECK(strict.err.empty());
  expect_failure(run_cli_in(f, "verify mlp" + data), 1,
                 {"mesh 'data:1' has one rank, so there is nothing to compare", "--mesh"});
}

TEST_CASE("cli: output that cannot be written is an error", "[cli]") {
  const Folder f;
  expect_failure(run_cli_in(f, "info", "", "/dev/full"), 1,
                 {"standard output could not be written", "No space left"});
  const TextFolder text;
  expect_failure(run_cli_in(text, std::string("train ") + kTinyGpt, "", "/dev/full"), 1,
                 {"standard output could not be written"});
}

TEST_CASE("cli: storage rules and recompute are flags, and change no loss", "[cli]") {
  const TextFolder f;
  auto loss = [&](const std::string& more) {
    expect_success(train(f, "--mesh data:2 --log run.jsonl " + more));
    return log_of(f, "run.jsonl", "loss").back()["loss"].get<double>();
  };
  const double plain = loss("");
  CHECK(log_of(f, "run.jsonl", "config")[0]["config"]["train.recompute"] == "none");
  CHECK(std::abs(loss("--fsdp data --set reshard_after_forward=block") - plain) < 1e-5 * plain);
  CHECK(f.read("stdout.txt").find("@params/*gpt.block*.mlp.up.w*/ d_model:data") !=
        std::string::npos);
  CHECK(std::abs(loss("--zero 1 --over data") - plain) < 1e-5 * plain);
  CHECK(f.read("stdout.txt").find("@state/*gpt.block*.mlp.up.w*/ d_model?:data") !=
        std::string::npos);
  CHECK(loss("--recompute attention,gpt.block0.mlp") == plain);
  expect_failure(train(f, "--recompute atention"), 1, {"recompute: no scope", "'attention'?"});
  expect_failure(train(f, "--mesh data:2 --zero 1"), 1, {"--zero 1 needs --over AXIS", "data:2"});
  expect_failure(train(f, "--mesh data:2 --over data"), 1, {"--over 'data' needs --zero"});
  expect_failure(train(f, "--mesh data:2 --fsdp data --zero 2 --over data"), 1,
                 {"--fsdp data is --zero 3 --over data"});
  expect_failure(train(f, "--mesh data:2 --fsdp dta"), 1,
                 {"no axis 'dta'", "did you mean 'data'?"});
}

}  // namespace TESSERA_FILE
