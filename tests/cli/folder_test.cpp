// A folder of Hugging Face as MODEL of the command line, and back out of it.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "cli/cli_run.h"
#include "tessera/safetensors.h"

using namespace tessera;
using test::CliResult;
using test::expect_failure;
using test::expect_success;
using test::Folder;
using test::json_of;
using test::run_cli_in;
namespace fs = std::filesystem;

namespace TESSERA_FILE {

const std::string kModels = TESSERA_SOURCE_DIR "/tests/models/";

/// Bytes that the vocabulary of the models has.
void write_text(const Folder& f) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>((i * i + i / 7) % 96);
  f.write("text", text);
}

std::string elements_of(const std::string& path, const std::string& tensor) {
  const SafetensorsReader file(path);
  const Array whole = file.read(tensor);
  return {reinterpret_cast<const char*>(whole.bytes.data()), whole.bytes.size()};
}

TEST_CASE("a folder is trained, resumed, evaluated and exported", "[cli]") {
  const Folder f;
  write_text(f);
  const std::string model = kModels + "qwen3", data = " --data text --set length=16 batch=8 ";
  expect_success(run_cli_in(f, "eval " + model + data + "--json first.json"));
  const std::string train = "train " + model + data +
                            "--mesh \"data:2;model:2\" --fsdp data --checkpoint run --json "
                            "trained.json --steps ";
  expect_success(run_cli_in(f, train + "2"));
  expect_success(run_cli_in(f, train + "4 --resume"));
  expect_success(run_cli_in(f, "eval " + model + data + "--checkpoint run --json second.json"));
  // The weights of the folder do not come again on --resume, nor where a checkpoint is given.
  const double before = json_of(f, "first.json")["eval_loss"],
               after = json_of(f, "second.json")["eval_loss"];
  CHECK(after < before);
  CHECK(json_of(f, "trained.json")["eval_loss"].get<double>() == Approx(after).epsilon(1e-5));
  const CliResult exported = run_cli_in(f, "export --checkpoint run --like " + model + " out");
  expect_success(exported);
  CHECK(exported.out == "25 tensors from run to out\n");
  expect_success(run_cli_in(f, "eval out" + data + "--json third.json"));
  // The folder has bfloat16, so the trained parameters were rounded.
  CHECK(json_of(f, "third.json")["eval_loss"].get<double>() == Approx(after).epsilon(1e-2));
  CHECK(elements_of(f("out/model.safetensors"), "lm_head.weight") !=
        elements_of(model + "/model.safetensors", "lm_head.weight"));
}

TEST_CASE("a step with learning rate 0 leaves the weights of a folder as they were", "[cli]") {
  const Folder f;
  write_text(f);
  for (const char* name : {"llama", "gpt2", "gemma3", "deepseek-v3"}) {
    fs::remove_all(f("run"));
    fs::remove_all(f("out"));
    expect_success(run_cli_in(f, "train " + kModels + name +
                                     " --data text --set length=16 lr=0 --steps 1 --checkpoint "
                                     "run --mesh \"model:2\""));
    expect_success(run_cli_in(f, "export --checkpoint run --like " + kModels + name + " out"));
    int compared = 0;
    for (const auto& entry : fs::directory_iterator(kModels + name)) {
      if (entry.path().extension() != ".safetensors") continue;
      const SafetensorsReader file(entry.path());
      for (const TensorInfo& t : file.tensors()) {
        ++compared;
        const std::string copy = f("out/" + entry.path().filename().string());
        CHECK(elements_of(copy, t.name) == elements_of(entry.path(), t.name));
      }
    }
    CHECK(compared >= 21);
  }
}

TEST_CASE("a model of images is trained, evaluated and exported", "[cli]") {
  const Folder f;
  const std::string model = kModels + "vit";
  const auto idx = [](std::vector<uint32_t> sizes, const std::string& bytes) {
    std::string file = {0, 0, 8, static_cast<char>(sizes.size())};
    for (const uint32_t s : sizes)
      for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(s >> shift);
    return file + bytes;
  };
  fs::create_directories(f("images/set"));
  for (const std::string part : {"train", "test"}) {
    std::string pixels, labels;
    for (uint32_t i = 0; i < 12; ++i) {
      labels += static_cast<char>(i % 5);
      for (uint32_t p = 0; p < 3 * 12 * 12; ++p)
        pixels += static_cast<char>((i % 5) * 40 + (p * p + i * p) % 50);
    }
    // What is not compressed is read, too.
    f.write("images/set/" + part + "-images-idx4-ubyte.gz", idx({12, 3, 12, 12}, pixels));
    f.write("images/set/" + part + "-labels-idx1-ubyte.gz", idx({12}, labels));
  }
  const std::string data = " --data images/set --set batch=4 ";
  expect_success(run_cli_in(f, "eval " + model + data + "--json first.json"));
  const CliResult trained =
      run_cli_in(f, "train " + model + data +
                        "lr=3e-3 --steps 40 --mesh \"data:2;model:2\" --fsdp data "
                        "--checkpoint run --json trained.json");
  expect_success(trained);
  CHECK(trained.out.find("accuracy") != std::string::npos);
  expect_success(run_cli_in(f, "export --checkpoint run --like " + model + " out"));
  CHECK(fs::exists(f("out/preprocessor_config.json")));
  expect_success(run_cli_in(f, "eval out" + data + "--json second.json"));
  const auto of = [&](const char* file, const char* key) {
    return json_of(f, file)[key].get<double>();
  };
  CHECK(of("second.json", "eval_loss") < of("first.json", "eval_loss"));
  CHECK(of("second.json", "eval_loss") ==
        Approx(of("trained.json", "eval_loss")).epsilon(2e-2));  // the folder has bfloat16
  CHECK(of("second.json", "eval_accuracy") > 0.5);
  expect_success(run_cli_in(
      f, "train " + model + data + "lr=0 --steps 1 --checkpoint same --mesh \"model:2\""));
  expect_success(run_cli_in(f, "export --checkpoint same --like " + model + " copy"));
  const SafetensorsReader file(model + "/model.safetensors");
  for (const TensorInfo& t : file.tensors())
    CHECK(elements_of(f("copy/model.safetensors"), t.name) ==
          elements_of(model + "/model.safetensors", t.name));
  expect_failure(run_cli_in(f, "eval " + model + " --data images"), 1,
                 {"'images' has no train-images-idx3-ubyte.gz, but 'images/set' has"});
  expect_failure(run_cli_in(f, "eval " + model + " --data " TESSERA_SOURCE_DIR "/data/digits"), 1,
                 {"are 28 x 28, and '", "' reads 3 x 12 x 12 (channels, rows, columns)"});
  expect_failure(run_cli_in(f, "generate " + model), 1, {"generate needs a language model"});
}

TEST_CASE("a folder is explained, planned and verified", "[cli]") {
  const Folder f;
  fs::create_directory(f("bare"));  // these need no weights
  fs::copy(kModels + "qwen3/config.json", f("bare"));
  const CliResult explained =
      run_cli_in(f, "explain bare --mesh \"model:2\" --layout \"heads,ff,vocab:model\"");
  expect_success(explained);
  CHECK(explained.out.find("qwen3.block0.attention") != std::string::npos);
  expect_success(run_cli_in(f, "plan bare --devices 4 --machine h100"));
  // What DeepSeek-V3 says of itself; the rest are the values of its family.
  f.write("bare/config.json",
          R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
              "max_position_embeddings": 163840, "num_attention_heads": 128,
              "num_hidden_layers": 61, "rms_norm_eps": 1e-06, "vocab_size": 129280,
              "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                               "original_max_position_embeddings": 4096}})");
  const CliResult large = run_cli_in(
      f,
      "explain bare --mesh \"data:64;model:8\" --layout \"batch,experts:data;heads:model\" "
      "--fsdp data --machine h100 --set length=4096 batch=512 dtype=bfloat16");
  expect_success(large);
  CHECK(large.out.find("deepseek_v3 on mesh data:64;model:8 (512 ranks)") != std::string::npos);
  CHECK(large.out.find("deepseek_v3.block3.mlp.experts") != std::string::npos);
  CHECK(large.out.find("deepseek_v3.block4") == std::string::npos);
  for (const char* name : {"gpt2", "gemma2", "llama", "deepseek-v3", "vit"}) {
    const CliResult verified =
        run_cli_in(f, "verify " + kModels + name + " --mesh \"a:2\" --dtype float64");
    INFO(name);
    expect_success(verified);
    CHECK(verified.out.find("equal (tolerance") != std::string::npos);
  }
  f.write("job.toml",
          "[model]\nname = \"bare\"\nlength = 32\n[train]\nbatch = 4\n[layout]\nmesh = "
          "\"model:2\"\n");
  expect_success(run_cli_in(f, "explain job.toml"));
}

TEST_CASE("a folder with experts has places for rows as dispatch_capacity says", "[cli][ragged]") {
  const Folder f;
  const std::string explain = "explain " + kModels + "mixtral --mesh x:4 --layout " +
                              "\"batch,experts:x\" --json a.json --set batch=32 length=32 ";
  const auto transient = [&](const std::string& set) {
    expect_success(run_cli_in(f, explain + set));
    return json_of(f, "a.json")["memory"]["transient"].get<int64_t>();
  };
  const int64_t usual = transient("");
  CHECK(transient("dispatch_capacity=2") == usual);
  CHECK(transient("dispatch_capacity=1.5") < usual);
  CHECK(transient("dispatch_capacity=0") > usual);
  expect_failure(
      run_cli_in(f, explain + "dispatch_capacity=0.5"), 1,
      {"[transformer] dispatch_capacity 0.5 is a bound below the mean: with 2 of 3 experts for "
       "each token",
       "give at least 1"});
  expect_failure(run_cli_in(f, explain + "dispatch_capacity=-1"), 1,
                 {"key 'model.dispatch_capacity' is -1"});
  expect_failure(run_cli_in(f, "explain " + kModels + "llama --set dispatch_capacity=2"), 1,
                 {"'dispatch_capacity'"});
}

TEST_CASE("random weights are asked for, and other folders and models refused", "[cli][errors]") {
  const Folder f;
  write_text(f);
  fs::create_directory(f("bare"));
  fs::copy(kModels + "llama/config.json", f("bare"));
  const std::string small = " --data text --steps 1 --set length=16 ";
  expect_failure(run_cli_in(f, "train bare" + small), 1,
                 {"'bare' holds no weights", "--init random starts with random ones"});
  expect_success(run_cli_in(f, "train bare --init random" + small + "--checkpoint run"));
  expect_failure(run_cli_in(f, "train bare --init none" + small), 1,
                 {"key 'model.init' is 'none'", "weights"});
  expect_failure(run_cli_in(f, "train gpt --init random --data text"), 1,
                 {"--init random is for a folder with config.json", "'gpt'"});
  expect_failure(run_cli_in(f, "train . --data text"), 1,
                 {"'.' is a folder without config.json", "a TOML file"});
  fs::create_directory(f("gpt"));  // a model's name comes before a folder's
  expect_success(run_cli_in(f, "explain gpt"));
  expect_failure(run_cli_in(f, "eval gpt --data text"), 1, {"eval needs --checkpoint DIR"});
  expect_failure(run_cli_in(f, "train bare --data text --set length=65"), 1,
                 {"key 'model.length' is 65", "64"});
  expect_failure(
      run_cli_in(f, "explain " + kModels + "qwen3 --set scan=true"), 1,
      {"scan makes a loop of layers of one kind that follow one another, but they are of 2 kinds"});
  // The checkpoint belongs to the configuration that it was made of.
  const std::string config = f.read("bare/config.json");
  const size_t at = config.find("\"rms_norm_eps\": 1e-06");
  REQUIRE(at != std::string::npos);
  std::string other = config;
  other.replace(at, 21, "\"rms_norm_eps\": 1e-05");
  f.write("bare/config.json", other);
  expect_failure(run_cli_in(f, "eval bare --data text --checkpoint run"), 1,
                 {"'bare' is another model than the one of the checkpoint", "hashes"});
  expect_failure(run_cli_in(f, "export --checkpoint run --like bare out"), 1,
                 {"[export] 'run/step-", "is not a checkpoint of the model of 'bare'", "hashes",
                  "give the folder that it was trained from"});
  CHECK(!fs::exists(f("out")));
  expect_failure(run_cli_in(f, "export --checkpoint run --like " + kModels + "gpt2 out"), 1,
                 {"[export] 'run/step-", "is not a checkpoint of the model of"});
  expect_failure(run_cli_in(f, "export --checkpoint run out"), 2, {"--like is required"});
}

TEST_CASE("processes read their slices of a folder and compare its files", "[cli]") {
  const Folder f;
  write_text(f);
  const std::string train = "train " + kModels +
                            "llama --data text --set length=16 lr=0 --steps 1 --mesh \"model:2\" "
                            "--json report.json";
  expect_success(run_cli_in(f, train));
  const double alone = json_of(f, "report.json")["loss"];
  const CliResult two =
      test::run_in(f, test::kLaunchLocal + "--max-restarts 0 --ranks 2 " TESSERA_CLI, train);
  INFO(two.err);
  REQUIRE(two.code == 0);
  CHECK(json_of(f, "report.json")["loss"].get<double>() == Approx(alone));
}

TEST_CASE("models that repair text are trained, resumed, evaluated and exported", "[cli]") {
  struct Case {
    std::string model, special, exported;
  };
  const Case cases[] = {{"t5", "first_sentinel=95", "66 tensors from run to out\n"},
                        {"bert", "mask_token=95", "42 tensors from run to out\n"}};
  for (const Case& c : cases) {
    const Folder f;
    std::string text;
    for (int i = 0; i < 4000; ++i) text += static_cast<char>((i * i + i / 7) % 80);
    f.write("text", text);
    INFO(c.model);
    const std::string model = kModels + c.model,
                      data = " --data text --set length=16 batch=8 " + c.special + " ";
    expect_success(run_cli_in(f, "eval " + model + data + "--json first.json"));
    const std::string train = "train " + model + data + "lr=1e-2 --json trained.json ";
    expect_success(run_cli_in(f, train + "--steps 4 --mesh data:1"));
    const double alone = json_of(f, "trained.json")["loss"];
    const std::string split = train + "--mesh \"data:2;model:2\" --fsdp data --checkpoint run ";
    expect_success(run_cli_in(f, split + "--steps 2 --set schedule=constant warmup=0"));
    expect_success(run_cli_in(f, split + "--steps 4 --set schedule=constant warmup=0 --resume"));
    expect_success(run_cli_in(f, train + "--steps 4 --mesh data:1 --set schedule=constant warmup=0 "
                                         "--checkpoint whole"));
    const double whole = json_of(f, "trained.json")["loss"];
    expect_success(run_cli_in(f, "eval " + model + data + "--checkpoint run --json second.json"));
    expect_success(run_cli_in(f, "eval " + model + data + "--checkpoint whole --json third.json"));
    const double before = json_of(f, "first.json")["eval_loss"],
                 after = json_of(f, "second.json")["eval_loss"];
    CHECK(after < before);
    CHECK(after == Approx(json_of(f, "third.json")["eval_loss"].get<double>()).epsilon(1e-4));
    CHECK(alone != whole);
    const CliResult exported = run_cli_in(f, "export --checkpoint run --like " + model + " out");
    expect_success(exported);
    CHECK(exported.out == c.exported);
    // Without the special tokens, which the folder's tokenizer would have.
    const std::string key = c.special.substr(0, c.special.find('='));
    expect_failure(run_cli_in(f, "train " + model + " --data text --set length=16"), 1,
                   {"no file in '" + model + "' has the token ", "--set data." + key + "=N"});
    expect_failure(run_cli_in(f, "train " + model + " --data text --set length=16 " + key + "=96"),
                   1, {"data." + key + " is 96", "a vocabulary of 96"});
  }
  const Folder f;
  write_text(f);  // with all tokens
  expect_failure(
      run_cli_in(f, "train " + kModels + "t5 --data text --set length=16 first_sentinel=60"), 1,
      {"one of its", "use a text of smaller tokens, or another first_sentinel"});
  expect_failure(run_cli_in(f, "serve " + kModels + "bert"), 1,
                 {"serve needs a model that writes texts, and 'bert' is an encoder"});
  expect_failure(run_cli_in(f, "train " + kModels + "t5 --data text --set packed=true length=16"),
                 1, {"data.packed is for models without an encoder"});
  expect_failure(run_cli_in(f, "generate " + kModels + "bert --prompt 1"), 1,
                 {"generate writes texts, and 'bert' is an encoder"});
}

TEST_CASE("a model with an encoder is tuned on prompts and completions, and writes samples",
          "[cli]") {
  const Folder f;
  std::string vocab;
  for (int id = 2; id < 30; ++id) {
    const char letter = static_cast<char>(id == 28 ? ' ' : id == 29 ? '?' : 'a' + id - 2);
    vocab += fmt::format("{}\"{}\": {}", vocab.empty() ? "" : ", ", letter, id);
  }
  f.write("tokenizer.json",
          "{\"added_tokens\": [], \"model\": {\"type\": \"BPE\", \"unk_token\": "
          "\"?\", \"vocab\": {" +
              vocab + "}, \"merges\": []}}");
  std::string samples;
  for (int i = 0; i < 60; ++i) {
    const char a = static_cast<char>('a' + i % 9), b = static_cast<char>('a' + i % 7);
    samples += fmt::format("{{\"prompt\": \"copy {}{}\", \"completion\": \"{}{}\"}}\n", a, b, a, b);
  }
  f.write("samples.jsonl", samples);
  const std::string model = kModels + "t5",
                    data =
                        " --data samples.jsonl --set data.tokenizer=tokenizer.json length=20 "
                        "answer_length=9 batch=4 ";
  const std::string run = "train " + model + data + "lr=1e-2 held_out=0.2 ";
  expect_success(run_cli_in(f, run + "--steps 6 --mesh data:1 --json one.json"));
  const CliResult split = run_cli_in(
      f, run +
             "--steps 6 --mesh \"data:2;model:2\" --fsdp data --checkpoint run --json two.json "
             "--tokenizer tokenizer.json --sample-every 3 --sample-prompt \"copy ab\" --tokens 12 "
             "--temperature 0");
  expect_success(split);
  CHECK(json_of(f, "two.json")["loss"].get<double>() ==
        Approx(json_of(f, "one.json")["loss"].get<double>()).epsilon(1e-3));
  CHECK(split.out.find("sample at step 6: ") != split.out.npos);
  CHECK(split.out.find("sample at step 6: copy") == split.out.npos);  // the prompt is no part of it
  expect_success(run_cli_in(f, "eval " + model + data + "--json before.json --set held_out=0.2"));
  expect_success(run_cli_in(f, "eval " + model +
                                   " --data samples.jsonl --set batch=4 held_out=0.2 "
                                   "--checkpoint run --json after.json"));
  CHECK(json_of(f, "after.json")["eval_loss"].get<double>() <
        json_of(f, "before.json")["eval_loss"].get<double>());
  f.write("text", std::string(4000, 5));
  expect_failure(run_cli_in(f, "train " + model +
                                   " --data 0.5:samples.jsonl,0.5:text --steps 1 --set length=20 "
                                   "data.tokenizer=tokenizer.json answer_length=9 batch=4"),
                 1, {"'text' is no FILE.jsonl, and other data are"});
  expect_failure(
      run_cli_in(f, run + "--steps 1 --set answer_length=2"), 1,
      {"'samples.jsonl' line 1: the prompt has 8 tokens and the completion 3, with their "
       "ends, but an example has 20 and 2"});
  expect_failure(
      run_cli_in(f, run +
                        "--steps 1 --tokenizer tokenizer.json --sample-every 1 --sample-prompt \"" +
                        std::string(20, 'a') + "\""),
      1, {"has 21 tokens, and the model's length is 20"});
}

TEST_CASE("a text ends where generation_config.json, or else config.json, says", "[cli]") {
  const Folder f;
  fs::copy(TESSERA_SOURCE_DIR "/tests/models/llama", f("model"));
  std::string vocabulary, ends;
  for (int i = 0; i < 96; ++i) {
    vocabulary +=
        fmt::format("{}\"{}\": {}", i == 0 ? "" : ", ", i == 0 ? "a" : fmt::format("a{}", i), i);
    ends += fmt::format("{}{}", i == 0 ? "" : ", ", i);
  }
  f.write("model/tokenizer.json",
          R"({"model": {"type": "BPE", "merges": [], "vocab": {)" + vocabulary + "}}}");
  const auto generate = [&] {
    return run_cli_in(f, "generate model --tokenizer model --prompt a --tokens 6 --temperature 0");
  };
  const auto continued = [&] {
    const CliResult r = generate();
    expect_success(r);
    return r.out;
  };
  const std::string whole = continued();
  f.write("model/generation_config.json", "{\"eos_token_id\": [" + ends + "], \"top_k\": 3}");
  const std::string none = continued();
  CHECK(none.size() < whole.size());
  fs::remove(f("model/generation_config.json"));
  nlohmann::json config = json_of(f, "model/config.json");
  config["eos_token_id"] = nlohmann::json::parse("[" + ends + "]");
  f.write("model/config.json", config.dump());
  CHECK(continued() == none);
  f.write("model/generation_config.json", "{}");
  CHECK(continued() == whole);
  for (const auto& [text, error] :
       {std::pair{R"({"eos_token_id": 96})",
                  "'eos_token_id' is 96; the tokens of the model are from 0 to 95"},
        std::pair{R"({"suppress_tokens": [1]})",
                  "'suppress_tokens' is [1]; Tessera knows only null here"},
        std::pair{R"({"no_repeat_ngram_size": 3})", "is 3; Tessera knows only 0 here"},
        std::pair{R"({"new_key": 1})",
                  "'new_key' is 1; Tessera does not know this key, and it may change texts"},
        std::pair{"[]", "[generate] 'model/generation_config.json': it is not a JSON object"}}) {
    f.write("model/generation_config.json", text);
    expect_failure(generate(), 1, {error});
  }
  // So does one of bytes, which has no tokenizer.
  fs::copy(TESSERA_SOURCE_DIR "/data/tiny-llama", f("bytes"));
  const auto bytes = [&] {
    return run_cli_in(f, "generate bytes --prompt a --tokens 6 --temperature 0");
  };
  const size_t all = bytes().out.size();
  nlohmann::json of_bytes;
  for (int i = 0; i < 256; ++i) of_bytes["eos_token_id"].push_back(i);
  f.write("bytes/generation_config.json", of_bytes.dump());
  CHECK(bytes().out.size() < all);
  f.write("bytes/generation_config.json", R"({"suppress_tokens": [1]})");
  expect_failure(bytes(), 1, {"'suppress_tokens' is [1]; Tessera knows only null here"});
}

TEST_CASE("a folder names special tokens in vocab.txt, or in a tokenizer.json of other rules",
          "[cli]") {
  const Folder f;
  write_text(f);
  fs::create_directory(f("model"));
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy(kModels + "bert/" + file, f("model"));
  const std::string run = "eval model --data text --set length=16 batch=8 ";
  const auto loss_of = [&](const std::string& more) {
    expect_success(run_cli_in(f, run + more + "--json one.json"));
    return json_of(f, "one.json")["eval_loss"].get<double>();
  };
  const double bare = loss_of("mask_token=7 ");
  // The third line is [CLS], the sixth [SEP], and so on; the text has these tokens.
  f.write("model/vocab.txt", "a\nb\n[CLS]\nc\nd\n[SEP]\r\n[PAD]\n[MASK]\n[UNK]\n");
  const double lines = loss_of("");
  CHECK(loss_of("mask_token=7 ") == lines);
  CHECK(lines != bare);  // which chose special tokens too
  fs::remove(f("model/vocab.txt"));
  std::string added;
  for (const auto& [name, id] : std::map<std::string, int>{
           {"[CLS]", 2}, {"[SEP]", 5}, {"[PAD]", 6}, {"[MASK]", 7}, {"[UNK]", 8}})
    added += fmt::format("{}{{\"id\": {}, \"content\": \"{}\", \"special\": true}}",
                         added.empty() ? "" : ", ", id, name);
  const auto write = [&](const std::string& tokens) {
    f.write("model/tokenizer.json", "{\"added_tokens\": [" + tokens +
                                        "], \"normalizer\": {\"type\": \"BertNormalizer\"}, "
                                        "\"model\": {\"type\": \"WordLevel\", \"vocab\": {}}}");
  };
  write(added);
  CHECK(loss_of("") == lines);
  write("");
  expect_failure(run_cli_in(f, run), 1,
                 {"no tokenizer.json in 'model' has the token [MASK]", "--set data.mask_token=N"});
  write("{\"id\": \"x\"}");
  expect_failure(run_cli_in(f, run), 1, {"tokenizer.json"});
}

TEST_CASE("eval makes examples as training did, and refuses keys of another model", "[cli]") {
  const Folder f;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>((i * i + i / 7) % 80);
  f.write("text", text);
  const std::string tail = " --data text --set batch=8 ";
  const std::pair<std::string, std::string> models[] = {
      {"t5", "first_sentinel=95 density=0.3 mean_span=2 "},
      {"bert", "mask_token=95 masked_share=0.4 "}};
  for (const auto& [name, keys] : models) {
    INFO(name);
    const std::string model = kModels + name, eval = "eval " + model + tail;
    expect_success(run_cli_in(f, "train " + model + tail + keys +
                                     "length=16 seed=5 --steps 2 --checkpoint " + name +
                                     " --json trained.json"));
    const std::string stored = "--checkpoint " + name + " --json eval.json ";
    expect_success(run_cli_in(f, eval + stored));
    const double loss = json_of(f, "eval.json")["eval_loss"];
    CHECK(loss == Approx(json_of(f, "trained.json")["eval_loss"].get<double>()).epsilon(1e-5));
    const std::string other = name == "t5" ? "density=0.5 " : "masked_share=0.9 ";
    expect_success(run_cli_in(f, eval + other + stored));
    CHECK(json_of(f, "eval.json")["eval_loss"].get<double>() != Approx(loss).epsilon(1e-5));
    expect_failure(
        run_cli_in(f, eval + "length=8 " + stored), 1,
        {"model.length is given as '8', but the checkpoint '" + name, "has '16'", "leave it out"});
    expect_failure(run_cli_in(f, eval + stored + "--lora-rank 3"), 1,
                   {"model.lora_rank is given as '3'", "has '0'"});
  }
}

TEST_CASE("a folder's weights write text, under any layout", "[cli]") {
  const Folder f;
  const std::string run = "generate " TESSERA_SOURCE_DIR
                          "/data/tiny-llama --prompt \"Call me\" --tokens 12 --temperature 0 ";
  const CliResult one = run_cli_in(f, run + "--mesh data:1");
  expect_success(one);
  CHECK(one.out.starts_with("Call me"));
  CHECK(one.out.size() > std::string("Call me\n").size());
  const CliResult two = run_cli_in(f, run + "--mesh model:2 --layout heads,ff,vocab:model");
  expect_success(two);
  CHECK(two.out == one.out);
  expect_failure(run_cli_in(f, "generate gpt --prompt x"), 1,
                 {"generate needs --checkpoint DIR", "only a folder with weights"});
}

}  // namespace TESSERA_FILE
