// generate, and samples while training.
#include "cli/cli_run.h"
#include "cli/text_stream.h"
#include "support/catch.h"

using namespace tessera;
using test::CliResult;
using test::expect_failure;
using test::expect_success;
using test::Folder;
using test::json_of;
using test::run_cli_in;

namespace TESSERA_FILE {

const std::string kTiny = TESSERA_SOURCE_DIR "/data/tiny-llama";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("generate writes with a cache what it writes without, under any layout", "[cli]") {
  const Folder f;
  const std::string run =
      "generate " + kTiny +
      " --set length=48 --prompt \"Call me\" --prompt \"A whale, \" --samples 2 "
      "--tokens 24 --top-p 0.9 --repetition-penalty 1.1 --json g.json ";
  const CliResult whole = run_cli_in(f, run + "--no-cache --mesh data:1");
  expect_success(whole);
  const nlohmann::json texts = json_of(f, "g.json")["texts"];
  REQUIRE(texts.size() == 4);
  CHECK(texts[0]["text"] != texts[1]["text"]);
  CHECK(texts[2]["prompt"] == "A whale, ");
  CHECK(texts[2]["text"].get<std::string>().starts_with("A whale, "));
  for (const std::string place :
       {"--mesh data:1 --rows 1", "--mesh model:2 --layout heads,ff,vocab:model",
        "--mesh \"data:2;model:2\" --layout \"batch:data;heads,ff,vocab:model\"",
        "--mesh data:2 --layout batch:data --fsdp data"}) {
    INFO(place);
    const CliResult cached = run_cli_in(f, run + place);
    expect_success(cached);
    CHECK(cached.out == whole.out);
    CHECK(json_of(f, "g.json")["texts"] == texts);
  }
}

TEST_CASE("generate searches with beams, and answers with a model that has an encoder", "[cli]") {
  const Folder f;
  const std::string run = "generate " + kTiny +
                          " --prompt \"Call me\" --prompt \"A whale, \" --tokens 12 --json g.json ";
  expect_success(run_cli_in(f, run + "--beams 4 --samples 3 --mesh data:1"));
  const nlohmann::json found = json_of(f, "g.json")["texts"];
  REQUIRE(found.size() == 6);
  CHECK(found[0]["text"].get<std::string>().starts_with("Call me"));
  CHECK(found[0]["text"] != found[1]["text"]);
  expect_success(run_cli_in(f, run + "--beams 4 --samples 3 --rows 3 --mesh \"data:2;model:2\""));
  CHECK(json_of(f, "g.json")["texts"] == found);
  // One beam takes the likeliest token each time.
  expect_success(run_cli_in(f, run + "--temperature 0"));
  const nlohmann::json greedy = json_of(f, "g.json")["texts"];
  expect_success(run_cli_in(f, run + "--beams 1"));
  CHECK(json_of(f, "g.json")["texts"] == greedy);

  const std::string answer =
      "generate " TESSERA_SOURCE_DIR "/data/tiny-t5 --prompt \"Call me\" --tokens 9 --json g.json ";
  for (const std::string way : {"--temperature 0 ", "--beams 3 --length-penalty 2 "}) {
    expect_success(run_cli_in(f, answer + way + "--mesh data:1"));
    const nlohmann::json one = json_of(f, "g.json")["texts"];
    CHECK(!one[0]["text"].get<std::string>().empty());
    CHECK(!one[0]["text"].get<std::string>().starts_with("Call me"));
    for (const std::string layout : {"--mesh \"data:2;model:2\" --fsdp data",
                                     "--mesh model:2 --layout length,target_length:model"}) {
      expect_success(run_cli_in(f, answer + way + layout));
      CHECK(json_of(f, "g.json")["texts"] == one);
    }
  }

  expect_failure(run_cli_in(f, run + "--beams 2 --samples 3"), 1,
                 {"--samples 3 of --beams 2; take as many beams"});
  expect_failure(run_cli_in(f, run + "--beams 2 --top-k 3"), 1, {"--beams finds the likeliest"});
  expect_failure(run_cli_in(f, run + "--length-penalty 2"), 1, {"add --beams N"});
  expect_failure(run_cli_in(f, "generate " + kTiny + " --prompt a --beams 2 --tokens 600"), 1,
                 {"texts of at most its length", "of 512"});
  expect_failure(run_cli_in(f, answer + "--no-cache"), 1,
                 {"--no-cache reads the whole text for every token", "leave it out"});
}

TEST_CASE("generate ends at a stop string, which is left out", "[cli]") {
  const Folder f;
  const std::string run = "generate " + kTiny + " --prompt \"Call me\" --temperature 0 ";
  const CliResult free = run_cli_in(f, run + "--tokens 20");
  expect_success(free);
  const std::string text = free.out.substr(0, free.out.size() - 1);
  const std::string part = text.substr(12, 3);
  const size_t at = text.find(part, std::string("Call me").size());
  for (const std::string way : {"", "--no-cache "}) {
    const CliResult cut =
        run_cli_in(f, run + way + "--tokens 20 --stop neverthere --stop '" + part + "'");
    expect_success(cut);
    CHECK(cut.out == text.substr(0, at) + "\n");
    const CliResult never = run_cli_in(f, run + way + "--tokens 20 --stop neverthere");
    expect_success(never);
    CHECK(never.out == free.out);
  }
  expect_failure(run_cli_in(f, run + "--stop ''"), 2, {"--stop: its value is empty"});
  expect_failure(run_cli_in(f, run + "--top-p 0"), 1,
                 {"[sample] top_p 0; it is above 0 and at most 1"});
}

TEST_CASE("a text that outgrows the model's length goes on with its last window", "[cli]") {
  const Folder f;
  const CliResult r = run_cli_in(
      f, "generate " + kTiny + " --set length=8 --prompt abcdefghij --tokens 5 --json g.json");
  expect_success(r);
  CHECK(json_of(f, "g.json")["text"].get<std::string>().size() >= 15);
}

TEST_CASE("a text stream holds back what may become a stop string or a character", "[generate]") {
  const cli::TextTokens bytes(cli::TokenizerFlags{}, 256);
  const auto tokens = [](const std::string& text) {
    std::vector<int32_t> all;
    for (const unsigned char c : text) all.push_back(c);
    return all;
  };
  cli::TextStream stream(bytes, tokens("ab"), false, {"abc", "b!"});
  const auto push = [&](const std::string& text) {
    bool goes_on = true;
    for (const int32_t t : tokens(text)) goes_on = goes_on && stream.push(t);
    return goes_on;
  };
  CHECK(push("c"));  // the prompt is no part of a stop string
  CHECK(stream.text() == "c");
  CHECK(push("ab"));
  CHECK(stream.text() == "c");
  CHECK(push("d\xC3"));
  CHECK(stream.text() == "cabd");
  CHECK(
      push("\xA9"
           "a"));
  CHECK(stream.text() == "cabd\xC3\xA9");
  CHECK_FALSE(push("b!"));
  CHECK(stream.ended());
  stream.finish();
  CHECK(stream.text() ==
        "cabd\xC3\xA9"
        "a");
  cli::TextStream open(bytes, tokens("ab"), true, {"abc"});
  open.push('a');
  CHECK(open.text() == "ab");
  open.finish();
  CHECK(open.text() == "aba");
  CHECK_FALSE(open.ended());
}

TEST_CASE("train writes samples to the log, TensorBoard and the report", "[cli]") {
  const Folder f;
  f.write("text.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  const std::string run =
      "train gpt --data text.txt --set layers=1 d_model=32 heads=2 ff=32 length=16 batch=4 "
      "--steps 4 --layout \"batch:data;heads,ff,vocab:model\" ";
  const CliResult r = run_cli_in(
      f, run +
             "--mesh \"data:2;model:2\" --fsdp data --sample-every 2 --sample-prompt aaa "
             "--sample-prompt bb --tokens 5 --temperature 0 --log log.jsonl --tensorboard tb");
  expect_success(r);
  CHECK(r.out.find("sample at step 2: aaa") != r.out.npos);
  std::vector<nlohmann::json> samples;
  for (const std::string& line : lines_of(f.read("log.jsonl"))) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record.contains("samples")) samples.push_back(record);
  }
  REQUIRE(samples.size() == 2);
  CHECK(samples[0]["step"] == 2);
  CHECK(samples[1]["step"] == 4);
  CHECK(samples[1]["samples"][1]["prompt"] == "bb");
  const std::string text = samples[1]["samples"][0]["text"];
  CHECK(text.starts_with("aaa"));
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(f.dir + "/tb"))
    events += f.read("tb/" + entry.path().filename().string());
  CHECK(events.find("sample/1") != events.npos);
  CHECK(events.find(text) != events.npos);
  expect_success(run_cli_in(f, "report log.jsonl"));
  CHECK(f.read("log.html").find("<h2>Samples</h2>") != std::string::npos);
  // Samples change nothing in training.
  const CliResult plain =
      run_cli_in(f, run + "--mesh \"data:2;model:2\" --fsdp data --json p.json");
  expect_success(plain);
  const CliResult sampled =
      run_cli_in(f, run + "--mesh \"data:2;model:2\" --fsdp data --sample-every 1 --json s.json");
  expect_success(sampled);
  CHECK(json_of(f, "p.json")["loss"] == json_of(f, "s.json")["loss"]);
  expect_failure(run_cli_in(f, run + "--sample-prompt a"), 1,
                 {"--sample-prompt needs --sample-every"});
  expect_failure(
      run_cli_in(f, run + "--sample-every 1 --sample-prompt aaaabbbbaaaabbbb"), 1,
      {"the --sample-prompt 'aaaabbbbaaaabbbb' has 16 tokens, and the model's length is 16"});
  expect_failure(run_cli_in(f, "train mlp --data " TESSERA_SOURCE_DIR
                               "/data/digits --steps 1 --sample-every 1"),
                 1, {"--sample-every needs a language model, and 'mlp' has no"});
}

}  // namespace TESSERA_FILE
