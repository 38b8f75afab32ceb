// tokenize, and training, evaluating and generating with what it makes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli/cli_run.h"
#include "support/catch.h"
#include "tessera/build_info.h"
#include "tessera/data.h"
#include "tessera/tokenizer.h"

namespace tessera {
namespace TESSERA_FILE {

using test::CliResult;
using test::expect_failure;
using test::expect_success;
using test::Folder;
using test::run_cli_in;

const std::string kTokenizer =
    "--tokenizer " TESSERA_SOURCE_DIR "/tests/tokenizer/fixtures/byte_level.json ";
const std::string kText = TESSERA_SOURCE_DIR "/data/moby-dick.txt";

bool lacks_any() { return build_info().tokenizers.find("no ") != std::string::npos; }

std::vector<int32_t> tokens_of(const std::string& corpus, int64_t count) {
  const TextData data(corpus, {.length = count - 1});
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  data.read(0, 0, {tokens.data(), {0}, {count - 1}, {1}});
  data.read(0, 1, {tokens.data() + 1, {0}, {count - 1}, {1}});
  return tokens;
}

Tokenizer fixture() {
  return Tokenizer::load(TESSERA_SOURCE_DIR "/tests/tokenizer/fixtures/byte_level.json");
}

TEST_CASE("tokenize refuses a text that is not UTF-8, and drops a byte-order mark", "[cli]") {
  if (lacks_any()) return;
  const Folder f;
  const auto refused = [&](const std::string& text, std::initializer_list<std::string> words) {
    f.write("a.txt", text);
    expect_failure(run_cli_in(f, "tokenize " + kTokenizer + "a.txt --out c"), 1, words);
    CHECK(f.names().count("c.idx") == 0);
  };
  refused("Call me\ncaf\xE9.\n", {"line 2 of 'a.txt' has the byte 0xe9 at 4",
                                  "not UTF-8; convert it: "
                                  "iconv -f WINDOWS-1252"});
  refused("\x93quoted\x94\n", {"line 1 of 'a.txt' has the byte 0x93 at 1"});
  refused(std::string("\xFF\xFEh\0i\0", 6),
          {"the file is not UTF-8 but UTF-16", "iconv -f UTF-16"});
  refused("\xED\xA0\x80", {"has the byte 0xed at 1"});        // a surrogate
  refused("ab\xF4\x90\x80\x80", {"has the byte 0xf4 at 3"});  // beyond U+10FFFF
  refused("a\xC0\xAF", {"has the byte 0xc0 at 2"});           // overlong
  refused("a\xE2\x82", {"has the byte 0xe2 at 2"});           // cut
  f.write("a.txt", "\xEF\xBB\xBFna\xC3\xAFve \xF0\x9F\x98\x80");
  expect_success(run_cli_in(f, "tokenize " + kTokenizer + "a.txt --out c"));
  const Tokenizer t = fixture();
  const std::vector<int32_t> ids = t.encode("na\xC3\xAFve \xF0\x9F\x98\x80");
  CHECK(tokens_of(f("c.bin"), std::ssize(ids)) == ids);
}

TEST_CASE("tokenize makes a corpus of jsonl, files and paragraphs", "[cli]") {
  if (lacks_any()) return;
  const Folder f;
  const Tokenizer t = fixture();
  f.write("a.jsonl",
          "{\"text\": \"Call me Ishmael.\"}\n\n{\"id\": 2, \"text\": \"<|end_of_text|>\"}\n");
  const CliResult made = run_cli_in(f, "tokenize " + kTokenizer + "a.jsonl --out c --append-eod");
  expect_success(made);
  CHECK(made.out.find("c.idx: 2 documents") != std::string::npos);
  std::vector<int32_t> ids = t.encode("Call me Ishmael.");
  ids.push_back(1);
  t.encode_to("<|end_of_text|>", ids, {.special_in_text = false});
  ids.push_back(1);
  CHECK(tokens_of(f("c"), std::ssize(ids)) == ids);
  CHECK(f.names() ==
        std::set<std::string>{"a.jsonl", "c.bin", "c.idx", "c.json", "stderr.txt", "stdout.txt"});
  expect_success(
      run_cli_in(f, "tokenize " + kTokenizer + "a.jsonl --out s --special-in-text --add-special"));
  ids = t.encode("Call me Ishmael.", {.add_special = true});
  for (const int32_t id : {0, 1}) ids.push_back(id);
  CHECK(tokens_of(f("s"), std::ssize(ids)) == ids);
  f.write("b.txt", "One.\ntwo\n\n\n  \nThree.");
  const auto documents = [&](const std::string& flags) {
    std::filesystem::remove(f("d.idx"));
    std::filesystem::remove(f("d.bin"));
    expect_success(run_cli_in(f, "tokenize " + kTokenizer + flags + " --out d --json d.report"));
    const nlohmann::json report = json_of(f, "d.report");
    return std::pair(report["documents"].get<int>(), report["tokens"].get<int>());
  };
  const auto size = [&](const std::string& text) {
    return static_cast<int>(t.encode(text).size());
  };
  CHECK(documents("b.txt") == std::pair(1, size("One.\ntwo\n\n\n  \nThree.")));
  CHECK(documents("b.txt --documents blank-lines") ==
        std::pair(2, size("One.\ntwo\n") + size("Three.")));
  CHECK(documents("b.txt a.jsonl b.txt --documents file").first == 3);
  f.write("e.jsonl", "{\"content\": \"x\"}\n{\"content\": \"\"}\n");
  CHECK(documents("e.jsonl --json-key content --skip-empty").first == 1);
}

TEST_CASE("errors of tokenize name file and line, and leave no corpus", "[cli]") {
  if (lacks_any()) return;
  const Folder f;
  const auto fails = [&](const std::string& flags, std::initializer_list<std::string> words,
                         const std::string& tokenizer = kTokenizer) {
    expect_failure(run_cli_in(f, "tokenize " + tokenizer + flags + " --out c"), 1, words);
    CHECK(!std::filesystem::exists(f("c.idx")));
    CHECK(!std::filesystem::exists(f("c.bin")));
    for (const char* part : {"c.bin.part", "c.lengths.part", "c.part.json"})
      CHECK(!std::filesystem::exists(f(part)));
  };
  f.write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \n{\"txt\": \"x\"}\n{\"text\": 1}\n");
  fails("a.jsonl",
        {"line 2 of 'a.jsonl' is no JSON object: {\"text\": ; mend the line, or read the "
         "file as text with --documents file"});
  f.write("b.jsonl", "{\"txt\": \"x\"}\n");
  fails("b.jsonl", {"line 1 of 'b.jsonl' has no key 'text'; name the key of the text with "
                    "--json-key; did you mean 'txt'?"});
  f.write("c.jsonl", "\n{\"text\": 1}\n");
  fails("c.jsonl", {"line 2 of 'c.jsonl': the value of 'text' is no text but number"});
  f.write("d.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\"}\n");
  fails("d.jsonl", {"the document at line 2 of 'd.jsonl' is empty; leave such documents out with "
                    "--skip-empty"});
  f.write("e.jsonl", "{\"text\": \"x\", \"text\": \"y\"}\n");
  fails("e.jsonl", {"line 1 of 'e.jsonl' has the key 'text' twice; take one of them out"});
  f.write("empty.jsonl", "\n");
  fails("empty.jsonl", {"there is no document in 'empty.jsonl'"});
  fails("none.jsonl", {"'none.jsonl' is missing; give files of text or jsonl"});
  fails(".", {"'.' is not a regular file; give files of text or jsonl"});
  f.write("z.jsonl", "\x1F\x8B...");
  fails("z.jsonl", {"'z.jsonl' is compressed or packed, not text; unpack it with gunzip"});
  f.write("good.jsonl", "{\"text\": \"x\"}\n");
  fails("good.jsonl --documents line", {"unknown --documents 'line'; known: jsonl, file, "
                                        "blank-lines"});
  const std::string ranks = "--tokenizer " TESSERA_SOURCE_DIR
                            "/tests/tokenizer/fixtures/ranks.tiktoken "
                            "--tokenizer-pattern '.+' ";
  fails("good.jsonl --append-eod",
        {"names no token for the end of a text, which --append-eod needs: name one with "
         "--special-token, or leave --append-eod out"},
        ranks);
  f.write("t.json", R"({"model": {"type": "BPE", "vocab": {"x": 0}, "merges": []}})");
  fails(
      "good.jsonl --append-eod",
      {"which --append-eod needs: put it as \"eos_token\" into a tokenizer_config.json beside it"},
      "--tokenizer t.json ");
}

/// Documents that count already; 0 before the first commit.
int64_t committed(const Folder& f) {
  const nlohmann::json state = nlohmann::json::parse(f.read("cut.part.json"), nullptr, false);
  return state.is_object() ? state["documents"].get<int64_t>() : 0;
}

TEST_CASE("a corpus is the same after any number of kills", "[cli][slow]") {
  if (lacks_any()) return;
  const Folder f;
  std::string text;
  {
    std::ifstream in(kText);
    const std::string book{std::istreambuf_iterator<char>(in), {}};
    for (int i = 0; i < 40; ++i) text += book;  // 48 MB
  }
  f.write("t.txt", text);
  const std::string command =
      "tokenize " + kTokenizer + "t.txt --documents blank-lines --append-eod --threads 2 --out ";
  expect_success(run_cli_in(f, command + "whole"));
  int kills = 0, resumed = 0;
  for (bool done = false; !done;) {
    REQUIRE(kills < 200);
    const pid_t child = fork();
    if (child == 0) {
      const std::string line =
          "cd '" + f.dir + "' && exec " TESSERA_CLI " " + command + "cut > out.txt 2> err.txt";
      execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      _exit(127);
    }
    // Now and then right behind a commit, and at times between them.
    const int64_t before = committed(f);
    int status = 0;
    for (int wait = 0; waitpid(child, &status, WNOHANG) == 0; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (wait < 3000 && committed(f) == before) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * (kills % 4)));
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    // A kill may also come when everything is written and the process has only to end.
    done = std::filesystem::exists(f("cut.idx"));
    INFO(f.read("err.txt"));
    if (WIFEXITED(status)) REQUIRE((WEXITSTATUS(status) == 0 && done));
    kills += done ? 0 : 1;
    resumed += before > 0 ? 1 : 0;
    if (!done) CHECK(committed(f) >= before);  // it did not begin again
  }
  CHECK(kills >= 3);
  CHECK(resumed >= 2);
  for (const std::string end : {".bin", ".idx", ".json"})
    CHECK(f.read("cut" + end) == f.read("whole" + end));
}

TEST_CASE("another command does not continue a corpus", "[cli]") {
  if (lacks_any()) return;
  const Folder f;
  f.write("a.jsonl", "{\"text\": \"x\"}\n");
  f.write("c.part.json", nlohmann::json{{"documents", 0},
                                        {"tokens", 0},
                                        {"vocabulary", 600},
                                        {"tokenizer", fixture().fingerprint()},
                                        {"document_end", nullptr},
                                        {"note", R"({"job": "other", "file": 0, "offset": 0})"}}
                             .dump());
  expect_failure(run_cli_in(f, "tokenize " + kTokenizer + "a.jsonl --out c"), 1,
                 {"'c.part.json' is of a run with other files or flags; repeat the first command, "
                  "or remove 'c*.part*' to begin again"});
}

TEST_CASE("gpt trains on a corpus and on blends, and generates with the tokenizer", "[cli]") {
  if (lacks_any()) return;
  const Folder f;
  const std::string make = "tokenize " + kTokenizer + kText + " --documents blank-lines --out ";
  expect_success(run_cli_in(f, make + "a --append-eod"));
  expect_success(run_cli_in(f, make + "b"));
  const std::string train =
      "train gpt --set layers=1 d_model=32 ff=64 heads=2 length=32 vocab=600 batch=4 --steps 3 ";
  expect_success(run_cli_in(f, train + "--data a.idx --checkpoint ck --log one.jsonl"));
  const std::string blend = train + "--data 0.7:a.idx,0.3:b.idx ";
  expect_success(run_cli_in(f, blend + "--log blend.jsonl"));
  expect_success(run_cli_in(f, blend + "--mesh data:2 --log two.jsonl"));
  f.write("blend.toml", "[data]\npath = { \"a.idx\" = 0.7, \"b.idx\" = 0.3 }\n");
  const auto loss = [&](const std::string& log) {
    const std::string text = f.read(log);
    const size_t at = text.rfind("\"loss\":");
    REQUIRE(at != text.npos);
    return std::stod(text.substr(at + 7));
  };
  CHECK(loss("two.jsonl") == Approx(loss("blend.jsonl")).epsilon(1e-5));
  CHECK(loss("one.jsonl") != Approx(loss("blend.jsonl")).epsilon(1e-5));
  const CliResult from_toml =
      run_cli_in(f,
                 "train blend.toml --set layers=1 d_model=32 ff=64 heads=2 length=32 vocab=600 "
                 "batch=4 --steps 3 --log toml.jsonl");
  expect_success(from_toml);
  CHECK(loss("toml.jsonl") == Approx(loss("blend.jsonl")).epsilon(1e-5));
  const CliResult made = run_cli_in(
      f, "generate gpt --checkpoint ck --prompt 'Call me' --tokens 8 --json g.json " + kTokenizer);
  expect_success(made);
  CHECK(made.out.starts_with("Call me"));
  expect_failure(run_cli_in(f, train + "--set vocab=256 --data a.idx"), 1,
                 {"'a.bin' has tokens of a vocabulary of 600 ('a.json'), but the model's has 256; "
                  "set model.vocab=600"});
  expect_failure(run_cli_in(f, "generate gpt --checkpoint ck"), 1,
                 {"the model has a vocabulary of 600, so its tokens are no bytes; say which with "
                  "--tokenizer PATH"});
  expect_success(run_cli_in(f,
                            "train gpt --set layers=1 d_model=32 ff=64 heads=2 length=32 "
                            "batch=4 --steps 1 --checkpoint bytes --data " +
                                kText));
  expect_failure(
      run_cli_in(f, "generate gpt --checkpoint bytes " + kTokenizer), 1,
      {"byte_level.json' (byte-level BPE, 600 tokens) does not fit the model, whose vocabulary has "
       "256; give the tokenizer that its corpus was made with"});
  expect_failure(run_cli_in(f, "generate gpt --checkpoint bytes --tokenizer-pattern gpt2"), 1,
                 {"--tokenizer-pattern and --special-token need --tokenizer PATH"});
}

TEST_CASE("errors of blends on the command line", "[cli]") {
  const Folder f;
  f.write("a.txt", std::string(1000, 'x'));
  const std::string train = "train gpt --set layers=1 d_model=8 ff=8 heads=1 length=8 --steps 1 ";
  expect_failure(run_cli_in(f, train + "--data 0.5:a.txt,b.txt"), 1,
                 {"'b.txt' of the blend '0.5:a.txt,b.txt' has no weight; every element is "
                  "weight:path, as in 0.7:a.idx,0.3:b.idx"});
  for (const std::string weights : {"0.5:a.txt,-1:a.txt", "-1:a.txt"})
    expect_failure(run_cli_in(f, train + "--data " + weights), 1,
                   {"'a.txt' has weight -1 in the blend '" + weights +
                    "'; a weight is a number above 0 (leave out what is not wanted)"});
  expect_failure(run_cli_in(f, train + "--data 0:a.txt,0:a.txt"), 1, {"'a.txt' has weight 0 in"});
  expect_failure(run_cli_in(f, train + "--data inf:a.txt"), 1, {"'a.txt' has weight inf in"});
  f.write("t.toml", "[data]\npath = { \"a.txt\" = -0.5 }\n");
  expect_failure(run_cli_in(f, "train t.toml"), 1,
                 {"'a.txt' has weight -0.5 in the blend '-0.5:a.txt'"});
  f.write("t.toml", "[data]\npath = { \"a.txt\" = \"much\" }\n");
  expect_failure(run_cli_in(f, "train t.toml"), 1,
                 {"t.toml: data.path 'a.txt' = much is no weight of a file; write \"FILE\" = 0.7, "
                  "and no comma in its name"});
  f.write("t.toml", "[data]\npath = {}\n");
  expect_failure(run_cli_in(f, "train t.toml"), 1,
                 {"t.toml: the table data.path is empty; write \"FILE\" = weight into it"});
  f.write("b.bin", std::string("x\0", 2) + std::string(1000, 'x'));
  expect_failure(run_cli_in(f, train + "--data b.bin"), 1,
                 {"'b.bin' has no header of llm.c and no index 'b.idx' beside it"});
  expect_success(run_cli_in(f, train + "--data b.bin --set token_bytes=2 vocab=40000"));
}

}  // namespace TESSERA_FILE
}  // namespace tessera
