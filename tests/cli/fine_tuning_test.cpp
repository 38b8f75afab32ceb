// Fine-tuning on the command line: parts of a model, LoRA, averages, the best checkpoint, samples.
#include <filesystem>

#include "cli/best.h"
#include "cli/cli_run.h"
#include "tessera/checkpoint.h"

using namespace tessera;
using test::CliResult;
using test::expect_failure;
using test::expect_success;
using test::Folder;
using test::json_of;
using test::kTinyGpt;
using test::log_of;
using test::losses_of;
using test::run_cli_in;
using test::some_text;
namespace fs = std::filesystem;

namespace TESSERA_FILE {

const std::string kModel = TESSERA_SOURCE_DIR "/data/tiny-llama";
const std::string kTokenizer = TESSERA_SOURCE_DIR "/tests/tokenizer/fixtures/byte_level.json";

/// `eval` has no --batch.
const std::string kEval =
    "eval gpt --data text.txt --set batch=4 layers=1 d_model=16 heads=2 ff=16 length=8 ";

std::string folder_run(const std::string& command) {
  return command + " " + kModel + " --data text.txt --set length=16 batch=4 lr=0.01 ";
}

TEST_CASE("LoRA of a folder: trained, resumed, evaluated, exported", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string lora = "--lora-rank 2 --lora-alpha 4 --lora-targets query,mlp.* ";
  const std::string train = folder_run("train") + lora +
                            "--mesh \"data:2;model:2\" --fsdp data --checkpoint run --json a.json ";
  expect_success(run_cli_in(f, train + "--steps 3"));
  expect_success(run_cli_in(f, train + "--steps 6 --resume"));
  // The keys of LoRA come from the checkpoint.
  expect_success(run_cli_in(f, folder_run("eval") + "--checkpoint run --json b.json"));
  const double tuned = json_of(f, "a.json")["eval_loss"];
  CHECK(json_of(f, "b.json")["eval_loss"].get<double>() == Approx(tuned).epsilon(1e-5));
  expect_success(run_cli_in(f, "export --checkpoint run --like " + kModel + " out"));
  expect_success(run_cli_in(f, "eval out --data text.txt --set length=16 batch=4 --json c.json"));
  CHECK(json_of(f, "c.json")["eval_loss"].get<double>() == Approx(tuned).epsilon(1e-2));
  const CliResult adapter =
      run_cli_in(f, "export --checkpoint run --like " + kModel + " --adapter adapter");
  expect_success(adapter);
  CHECK(adapter.out == "16 tensors from run to adapter\n");
  CHECK(json_of(f, "adapter/adapter_config.json")["lora_alpha"] == 4);
  // What was frozen is as it was.
  const std::string newest = find_latest(f("run"))->path;
  expect_success(run_cli_in(f, folder_run("train") + lora + "--steps 1 --checkpoint first"));
  for (const char* name : {"llama.embedding", "llama.block.mlp.up.w", "llama.norm.scale"})
    CHECK(read_tensor(newest, name).bytes ==
          read_tensor(find_latest(f("first"))->path, name).bytes);
  CHECK(read_tensor(newest, "llama.block.mlp.up.lora_b").bytes !=
        read_tensor(find_latest(f("first"))->path, "llama.block.mlp.up.lora_b").bytes);
}

TEST_CASE("LoRA of experts is merged, and dropout is kept for training", "[cli]") {
  const Folder f;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>((i * i + i / 7) % 96);
  f.write("text.txt", text);
  const std::string model = TESSERA_SOURCE_DIR "/tests/models/mixtral",
                    data = " --data text.txt --set length=16 batch=4 lr=0.03 ";
  expect_success(run_cli_in(f, "train " + model + data +
                                   "--lora-rank 2 --lora-targets expert.up,expert.down,query "
                                   "--steps 6 --checkpoint run --json a.json --mesh \"data:2\""));
  expect_success(run_cli_in(f, "export --checkpoint run --like " + model + " out"));
  expect_success(run_cli_in(f, "eval out" + data + "--json b.json"));
  expect_success(run_cli_in(f, "eval " + model + data + "--json c.json"));
  const auto loss = [&](const char* file) { return json_of(f, file)["eval_loss"].get<double>(); };
  CHECK(loss("b.json") == Approx(loss("a.json")).epsilon(1e-2));  // the folder has bfloat16
  CHECK(std::abs(loss("a.json") - loss("c.json")) > 3 * std::abs(loss("a.json") - loss("b.json")));
  const std::string train = folder_run("train") + "--lora-rank 2 --lora-targets query --steps 3 ";
  f.write("text.txt", some_text());
  expect_success(run_cli_in(f, train + "--lora-dropout 0.5 --checkpoint with --json d.json"));
  expect_success(run_cli_in(f, train + "--json e.json"));
  CHECK(loss("d.json") != loss("e.json"));
  // Evaluation has no dropout: it comes out the same twice.
  expect_success(run_cli_in(f, folder_run("eval") + "--checkpoint with --json f.json"));
  CHECK(loss("f.json") == Approx(loss("d.json")).epsilon(1e-6));
  expect_success(run_cli_in(f, "export --checkpoint with --like " + kModel + " --adapter adapter"));
  CHECK(json_of(f, "adapter/adapter_config.json")["lora_dropout"] == 0.5);
}

TEST_CASE("every stage of ZeRO leaves what is frozen alone", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  for (const std::string few : {"--lora-rank 2 ", "--trainable *.norm.scale "}) {
    const auto loss = [&](const std::string& storage) {
      expect_success(run_cli_in(
          f, folder_run("train") + few + "--steps 3 --mesh data:2 --json a.json " + storage));
      return json_of(f, "a.json")["eval_loss"].get<double>();
    };
    const double plain = loss("");
    for (const std::string stage : {"1", "2", "3"}) {
      INFO(few << stage);
      CHECK(loss("--zero " + stage + " --over data") == Approx(plain).epsilon(1e-5));
    }
  }
}

TEST_CASE("explain shows that what is frozen has no state and no gradient", "[cli]") {
  const Folder f;
  const std::string all =
      "explain gpt --set layers=2 d_model=32 heads=2 ff=64 length=16 batch=4 "
      "--mesh data:2 --layout batch:data ";
  expect_success(run_cli_in(f, all + "--json all.json"));
  expect_success(run_cli_in(
      f, all + "--trainable *.norm.scale --trainable \"*.norm.bias,*.head.w\" --json few.json"));
  const auto state = [&](const char* file) {
    return json_of(f, file)["memory"]["state"].get<int64_t>();
  };
  // Two moments of norm (32 + 32) and head (32 x 256), and the step.
  CHECK(state("few.json") == 2 * 4 * (64 + 32 * 256) + 8);
  CHECK(state("all.json") > 4 * state("few.json"));
  const auto peak = [&](const char* file) {
    return json_of(f, file)["memory"]["transient"].get<int64_t>();
  };
  CHECK(peak("few.json") < peak("all.json"));
  expect_failure(run_cli_in(f, all + "--trainable *.nrom.scale"), 1,
                 {"[minimize] trainable: no parameter is named like '*.nrom.scale'"});
  expect_failure(run_cli_in(f, all + "--lora-rank 2 --lora-targets querry"), 1,
                 {"[lora] no dense layer of 'gpt' is called like 'querry'; did you mean 'query'?"});
  expect_failure(run_cli_in(f, all + "--lora-rank 2 --lora-targets query,embedding"), 1,
                 {"[lora] 'embedding' is no dense layer of a block", "leave it out"});
  expect_failure(run_cli_in(f, all + "--lora-targets query"), 1,
                 {"[lora] the targets query and a rank of 0"});
  expect_failure(run_cli_in(f, "explain mlp --lora-rank 2"), 1, {"unknown key 'model.lora_rank'"});
  expect_failure(run_cli_in(f, all + "--lora-rank -2"), 1, {"key 'model.lora_rank' is -2"});
}

TEST_CASE("the moving average is evaluated, saved and exported", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string train = std::string("train ") + kTinyGpt + "lr=0.05 ema=0.5 ";
  expect_success(run_cli_in(f, train + "--steps 6 --checkpoint run --json one.json"));
  const double average = json_of(f, "one.json")["eval_loss"];
  const std::string eval = kEval + "--checkpoint run ";
  expect_success(run_cli_in(f, eval + "--ema --json ema.json"));
  expect_success(run_cli_in(f, eval + "--json last.json"));
  CHECK(json_of(f, "ema.json")["eval_loss"].get<double>() == Approx(average).epsilon(1e-6));
  CHECK(json_of(f, "last.json")["eval_loss"].get<double>() != Approx(average).epsilon(1e-6));
  // Resumed, and with state in another layout than parameters.
  expect_success(run_cli_in(f, train + "--steps 3 --checkpoint two"));
  expect_success(run_cli_in(f, train + "--steps 6 --checkpoint two --resume --mesh data:2 --layout "
                                       "\"batch:data; @state d_model:data\" --json two.json"));
  CHECK(json_of(f, "two.json")["eval_loss"].get<double>() == Approx(average).epsilon(1e-4));
  expect_success(run_cli_in(f, folder_run("train") + "ema=0.5 --steps 4 --checkpoint llama"));
  expect_success(run_cli_in(f, "export --checkpoint llama --ema --like " + kModel + " mean"));
  expect_success(run_cli_in(f, "export --checkpoint llama --like " + kModel + " last"));
  CHECK(f.read("mean/model.safetensors") != f.read("last/model.safetensors"));
  expect_failure(run_cli_in(f, train + "parameters=bfloat16 --steps 1"), 1,
                 {"train.ema=0.5 with train.parameters=bfloat16"});
  expect_success(run_cli_in(f, std::string("train ") + kTinyGpt + "--steps 1 --checkpoint plain"));
  expect_failure(run_cli_in(f, kEval + "--checkpoint plain --ema"), 1,
                 {"has no moving averages of its parameters; train with train.ema=0.999"});
  expect_failure(run_cli_in(f, "eval " + kModel + " --data text.txt --ema"), 1,
                 {"--ema is about a checkpoint's moving averages; add --checkpoint DIR"});
}

TEST_CASE("training stops when no evaluation is better, and the best checkpoint is kept", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  // Far too large a rate: the loss falls, then rises for good.
  const auto train = [&](int64_t steps, const std::string& more) {
    return run_cli_in(f, std::string("train ") + kTinyGpt +
                             "lr=0.8 eval_every=2 patience=3 --keep-best --log log.jsonl --json "
                             "one.json --steps " +
                             std::to_string(steps) + " --checkpoint " + more);
  };
  const CliResult one = train(60, "run --save-every 4");
  expect_success(one);
  const nlohmann::json report = json_of(f, "one.json");
  const int64_t best = report["best_step"], last = report["step"];
  REQUIRE(last < 60);
  CHECK(last == best + 6);
  CHECK(one.out.find("stopped early after step " + std::to_string(last) +
                     ": 3 evaluations since step " + std::to_string(best)) != std::string::npos);
  const auto stops = log_of(f, "log.jsonl", "stopped_early");
  REQUIRE(stops.size() == 1);
  CHECK(stops[0]["step"] == last);
  const std::optional<Checkpoint> kept = find_latest(f("run/best"));
  REQUIRE(kept);
  CHECK(kept->step == best);
  CHECK(find_latest(f("run"))->step == last);
  CHECK(checkpoint_paths(f("run/best")).size() == 1);
  expect_success(run_cli_in(f, kEval + "--checkpoint run/best --json best.json"));
  CHECK(json_of(f, "best.json")["eval_loss"].get<double>() ==
        Approx(report["best_loss"].get<double>()).epsilon(1e-6));
  for (const auto& record : log_of(f, "log.jsonl", "eval_loss"))
    CHECK(record["eval_loss"].get<double>() >= report["best_loss"].get<double>());
  // The same after a restart: at once, and from a checkpoint between the best step and the end.
  const CliResult again = train(60, "run --resume");
  expect_success(again);
  CHECK(again.out.find("stopped early after step " + std::to_string(last)) != std::string::npos);
  expect_success(train(best + 2, "two"));
  expect_success(train(60, "two --resume"));
  CHECK(json_of(f, "one.json")["step"] == last);
  CHECK(json_of(f, "one.json")["best_step"] == best);
  expect_failure(run_cli_in(f, std::string("train ") + kTinyGpt + "patience=2 --steps 2"), 1,
                 {"train.patience=2 counts evaluations", "train.eval_every"});
  expect_failure(run_cli_in(f, std::string("train ") + kTinyGpt + "--keep-best --steps 2"), 1,
                 {"--keep-best needs --checkpoint DIR"});
  expect_failure(run_cli_in(f, std::string("train ") + kTinyGpt +
                                   "held_out=0 --keep-best --checkpoint three --steps 2"),
                 1, {"train.patience and --keep-best need held-out data"});
}

TEST_CASE("the best evaluation, and when to stop", "[cli]") {
  cli::BestEvaluation best;
  CHECK(best.to_string().empty());
  CHECK_FALSE(best.ends_before(100, 10, 1));
  CHECK_FALSE(best.take(10, NAN));
  CHECK(best.take(10, 2.5));
  CHECK_FALSE(best.take(20, 2.5));
  CHECK_FALSE(best.ends_before(20, 10, 2));
  CHECK_FALSE(best.ends_before(25, 10, 1));
  CHECK(best.ends_before(30, 10, 2));
  CHECK_FALSE(best.ends_before(30, 10, 0));
  CHECK(best.take(30, 0.1));
  const auto same = cli::BestEvaluation::parse(best.to_string(), "x");
  CHECK(same.step == 30);
  CHECK(same.loss == 0.1);
  CHECK(cli::BestEvaluation::parse("", "x").step == -1);
  for (const char* bad : {"x", "3", "-1 2", "3 2 1"}) {
    std::string message;
    try {
      cli::BestEvaluation::parse(bad, "dir/step-1");
    } catch (const Error& e) {
      message = e.what();
    }
    CHECK(message == std::string("[checkpoint] 'dir/step-1': its metadata 'best' is '") + bad +
                         "', not a step and a loss");
  }
}

TEST_CASE("answers of jsonl are learnt, alike on other ranks and after a kill", "[cli]") {
  const Folder f;
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += "{\"prompt\": \"the ship " + std::to_string(i * 37 % 60) +
            "\", \"completion\": \" sails to her very whale\"}\n";
  f.write("a.jsonl", text);
  const std::string train =
      "train gpt --set data.path=a.jsonl layers=1 d_model=16 heads=2 ff=32 length=32 vocab=600 "
      "batch=6 "
      "lr=0.02 schedule=constant data.tokenizer=" +
      kTokenizer + " ";
  expect_success(run_cli_in(f, train + "--steps 8 --log one.jsonl --json one.json"));
  const auto one = losses_of(f, "one.jsonl");
  CHECK(one.at(8) < one.at(1) - 1);
  expect_success(run_cli_in(f, train + "--steps 5 --log two.jsonl --checkpoint run --mesh data:3"));
  expect_success(
      run_cli_in(f, train + "--steps 8 --log two.jsonl --checkpoint run --resume --mesh "
                            "\"data:2;model:2\" --layout \"batch:data;heads,ff,vocab:model\""));
  const auto two = losses_of(f, "two.jsonl");
  for (int64_t step = 1; step <= 8; ++step)
    CHECK(two.at(step) == Approx(one.at(step)).epsilon(1e-4));
  expect_failure(run_cli_in(f, "train gpt --data a.jsonl --set vocab=600 --steps 1"), 1,
                 {"'a.jsonl' holds text, and the model has no tokenizer", "data.tokenizer=PATH"});
  expect_failure(run_cli_in(f, train + "length=4 --steps 1"), 1,
                 {"'a.jsonl' line 1: the sample has", "data.too_long=skip or truncate"});
  expect_failure(run_cli_in(f, train + "vocab=500 --steps 1"), 1, {"does not fit the model"});
  // A blend of samples and a corpus.
  f.write("text.txt", some_text());
  expect_success(run_cli_in(f, "tokenize --tokenizer " + kTokenizer +
                                   " text.txt --documents blank-lines --out corpus --append-eod"));
  expect_success(run_cli_in(f, train + "--steps 2 --set data.path=0.5:a.jsonl,0.5:corpus.idx"));
}

TEST_CASE("answers without an end are told of", "[cli]") {
  const Folder f;
  fs::create_directory(f("t"));
  fs::copy_file(kTokenizer, f("t/tokenizer.json"));
  std::string talks;
  for (int i = 0; i < 20; ++i)
    talks += R"({"messages": [{"role": "user", "content": "ship?"}, )"
             R"({"role": "assistant", "content": " a whale"}]})"
             "\n";
  f.write("a.jsonl", talks);
  const auto train = [&](const std::string& end, const std::string& data) {
    f.write(
        "t/tokenizer_config.json",
        R"({"eos_token": "<|end_of_text|>", "chat_template": "{% for m in messages %}{{ m.role )"
        R"(~ ':' ~ m.content }}{% if m.role == 'assistant' %}{{ )" +
            end +
            R"( }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"})");
    const CliResult r = run_cli_in(f, "train gpt --set data.path=" + data +
                                          " layers=1 d_model=16 heads=2 ff=32 length=32 "
                                          "vocab=600 batch=2 data.tokenizer=t --steps 1");
    expect_success(r);
    return r.out;
  };
  const std::string warning =
      "warning: 'a.jsonl': none of its 20 answers ends with a special token, so the model does not "
      "learn where an answer ends";
  CHECK(train("''", "a.jsonl").find(warning) != std::string::npos);
  CHECK(train("''", "1:a.jsonl,1:a.jsonl").find(warning) != std::string::npos);
  CHECK(train("eos_token", "a.jsonl").find("warning") == std::string::npos);
}

TEST_CASE("documents of a corpus are packed", "[cli]") {
  const Folder f;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "{\"text\": \"the ship " + std::to_string(i) + "\"}\n";
  f.write("a.jsonl", text);
  expect_success(
      run_cli_in(f, "tokenize --tokenizer " + kTokenizer + " a.jsonl --out corpus --append-eod"));
  const std::string train =
      "train gpt --data corpus.idx --set layers=1 d_model=16 heads=2 ff=32 length=16 vocab=600 "
      "batch=4 --steps 3 --log ";
  expect_success(run_cli_in(f, train + "whole.jsonl"));
  expect_success(run_cli_in(f, train + "packed.jsonl --set packed=true"));
  expect_success(run_cli_in(
      f, train + "split.jsonl --set packed=true --mesh \"a:2;b:2\" --layout \"batch:a;length:b\""));
  const auto whole = losses_of(f, "whole.jsonl"), packed = losses_of(f, "packed.jsonl"),
             split = losses_of(f, "split.jsonl");
  CHECK(packed.at(1) != whole.at(1));
  for (int64_t step = 1; step <= 3; ++step)
    CHECK(split.at(step) == Approx(packed.at(step)).epsilon(1e-5));
  f.write("text.txt", some_text());
  expect_failure(run_cli_in(f, std::string("train ") + kTinyGpt + "packed=true --steps 1"), 1,
                 {"the field 'segments' is about documents", "does not say where they begin"});
  expect_success(run_cli_in(f, "verify gpt --mesh \"a:2\" --set packed=true --steps 1"));
}

TEST_CASE("muon on the command line", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string train =
      std::string("train ") + kTinyGpt + "optimizer=muon scan=true layers=2 lr=0.02 --steps 6 ";
  expect_success(run_cli_in(f, train + "--log one.jsonl"));
  expect_success(run_cli_in(f, train +
                                   "--log two.jsonl --mesh data:2 --layout \"batch:data; @state "
                                   "layers:data\""));
  const auto one = losses_of(f, "one.jsonl"), two = losses_of(f, "two.jsonl");
  CHECK(one.at(6) < one.at(1));
  for (int64_t step = 1; step <= 6; ++step)
    CHECK(two.at(step) == Approx(one.at(step)).epsilon(1e-4));
}

}  // namespace TESSERA_FILE
