// Ids of real libraries (fixtures/ids.json, made by benchmarks/peers/tokenizers/make_fixtures.py),
// decoding, and what is refused. Every message is checked as a whole; DIR stands for the folder.
#include "tessera/tokenizer.h"

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/catch.h"
#include "support/io_folder.h"
#include "tessera/build_info.h"
#include "tokenizer/utf8.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
namespace fs = std::filesystem;

const std::string kFixtures = TESSERA_SOURCE_DIR "/tests/tokenizer/fixtures/";

std::string read_fixture(const std::string& name) {
  std::ifstream in(kFixtures + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const nlohmann::json& expected() {
  static const nlohmann::json file = nlohmann::json::parse(read_fixture("ids.json"));
  return file;
}

bool lacks(const std::string& library) {
  return build_info().tokenizers.find("no " + library) != std::string::npos;
}

/// Whether this build lacks what the tokenizers of this file need.
bool lacks_any() { return lacks("PCRE2") || lacks("utf8proc") || lacks("SentencePiece"); }

TokenizerOptions options_of(const std::string& name) {
  if (!name.ends_with(".tiktoken")) return {};
  return {
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {"<|end|>"}};
}

Tokenizer load_fixture(const std::string& name) {
  return Tokenizer::load(kFixtures + name, options_of(name));
}

// fixtures/combinations.json, made by benchmarks/peers/tokenizers/make_combinations.py.
TEST_CASE("stages in combination cut as tokenizers cuts", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const Folder f;
  const auto file = nlohmann::json::parse(read_fixture("combinations.json"));
  const std::vector<std::string> texts = file["texts"];
  CHECK(file["rows"].size() == 160);
  for (nlohmann::json row : file["rows"]) {
    const auto expected_ids = row["ids"].get<std::vector<std::vector<int32_t>>>();
    row.erase("ids");
    INFO(row.dump());
    row["model"] = file["model"];
    f.write("tokenizer.json", row.dump());
    const Tokenizer tokenizer = Tokenizer::load(f("tokenizer.json"));
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO("'" << texts[i] << "'");
      CHECK(tokenizer.encode(texts[i]) == expected_ids[i]);
    }
  }
}

// fixtures/unicode.json, made by benchmarks/peers/tokenizers/make_unicode.py: every character at an
// end of what is not the same in all versions of Unicode from 14 on.
TEST_CASE("patterns see the categories of Unicode 16", "[tokenizer][fast]") {
  if (lacks_any()) return;
  CHECK(build_info().tokenizers.ends_with(", Unicode 16"));
  const auto file = nlohmann::json::parse(read_fixture("unicode.json"));
  const Folder f;
  f.write("tokenizer.json", file["tokenizer"].dump());
  const Tokenizer tokenizer = Tokenizer::load(f.dir);
  CHECK(file["points"].size() > 400);
  for (size_t i = 0; i < file["points"].size(); ++i) {
    std::string text;
    append_utf8(file["points"][i].get<char32_t>(), text);
    INFO(std::hex << file["points"][i].get<int>());
    CHECK(tokenizer.encode(text) == file["ids"][i].get<std::vector<int32_t>>());
  }
}

// fixtures/side_files.json, made by benchmarks/peers/tokenizers/make_side_files.py.
TEST_CASE("files beside a tokenizer change it as transformers says", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const auto file = nlohmann::json::parse(read_fixture("side_files.json"));
  const std::vector<std::string> texts = file["texts"];
  for (const nlohmann::json& row : file["rows"]) {
    const Folder f;
    INFO(row["base"] << " " << row["files"].dump());
    const bool is_model = row["base"] == "sentencepiece.model";
    f.write(is_model ? "tokenizer.model" : "tokenizer.json", read_fixture(row["base"]));
    for (const auto& [name, content] : row["files"].items()) f.write(name, content.dump());
    const Tokenizer tokenizer = Tokenizer::load(f.dir);
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO("'" << texts[i] << "'");
      CHECK(tokenizer.encode(texts[i]) == row["ids"][i].get<std::vector<int32_t>>());
    }
    CHECK(tokenizer.encode(texts[0], {.add_special = true}) ==
          row["whole"].get<std::vector<int32_t>>());
    for (const auto& [key, id] :
         {std::pair{"bos", tokenizer.bos()}, std::pair{"eos", tokenizer.eos()},
          std::pair{"pad", tokenizer.pad()}}) {
      INFO(key);
      CHECK((row[key].is_null() || row[key] == id.value_or(-1)));
    }
  }
}

TEST_CASE("ids are those of tokenizers, tiktoken and sentencepiece", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const std::vector<std::string> texts = expected()["texts"];
  for (const std::string name :
       {"byte_level.json", "prefix_space.json", "byte_fallback.json", "unigram.json",
        "word_piece.json", "ranks.tiktoken", "tekken.json", "sentencepiece.model"}) {
    const Tokenizer tokenizer = load_fixture(name);
    const nlohmann::json& plain = expected()["ids"].value(name + " plain", nlohmann::json());
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO(name << ", text " << i << ": " << texts[i]);
      const std::vector<int32_t> ids = expected()["ids"][name][i];
      CHECK(tokenizer.encode(texts[i]) == ids);
      const auto other = plain.find(std::to_string(i));
      if (!plain.is_null())
        CHECK(tokenizer.encode(texts[i], {.special_in_text = false}) ==
              (other == plain.end() ? ids : other->get<std::vector<int32_t>>()));
    }
  }
}

TEST_CASE("decoding gives the text back, and grows at its end only", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const std::vector<std::string> texts = expected()["texts"];
  for (const std::string name :
       {"byte_level.json", "byte_fallback.json", "ranks.tiktoken", "sentencepiece.model"}) {
    const Tokenizer tokenizer = load_fixture(name);
    for (const std::string& text : texts) {
      INFO(name << ": " << text);
      const std::vector<int32_t> ids = tokenizer.encode(text, {.special_in_text = false});
      const std::string whole = tokenizer.decode(ids);
      // A mark of SentencePiece in a text is a space when it comes back.
      if (text.find("\xE2\x96\x81") == text.npos) CHECK(whole == text);
      const size_t half = ids.size() / 2;
      CHECK(whole.starts_with(tokenizer.decode(std::span(ids).first(half))));
    }
  }
}

TEST_CASE("special tokens by name, around a text and in it", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const Tokenizer t = load_fixture("byte_level.json");
  CHECK(t.description() == "byte-level BPE, 600 tokens");
  CHECK(t.vocab_size() == 600);
  CHECK(t.bos() == 0);
  CHECK(t.eos() == 1);
  CHECK(t.pad() == std::nullopt);
  CHECK(t.special("<|end_of_text|>") == 1);
  CHECK(t.special("the") == std::nullopt);
  const std::vector<int32_t> a = t.encode("a");
  CHECK(t.encode("a", {.add_special = true}) == std::vector<int32_t>{0, a[0]});
  CHECK(t.encode("a<|end_of_text|>") == std::vector<int32_t>{a[0], 1});
  CHECK(t.encode("<|end_of_text|>", {.special_in_text = false}).size() > 3);
  CHECK(t.decode(std::vector<int32_t>{0, a[0], 1}) == "<|begin_of_text|>a<|end_of_text|>");
  CHECK(t.decode(std::vector<int32_t>{0, a[0], 1}, true) == "a");
  const Tokenizer unigram = load_fixture("unigram.json");
  CHECK(unigram.encode("whale", {.add_special = true}).back() == 1);
  CHECK(unigram.eos() == 1);
  CHECK(unigram.pad() == 0);
  CHECK(unigram.decode(unigram.encode("the whale")) == "the whale");
  const Tokenizer prefix = load_fixture("prefix_space.json");
  const std::vector<int32_t> around = prefix.encode("a", {.add_special = true});
  CHECK(around.front() == 0);
  CHECK(around.back() == 1);
  const Tokenizer tekken = load_fixture("tekken.json");
  CHECK(tekken.special("[INST]") == 3);
  CHECK(tekken.bos() == 1);
  const Tokenizer piece = load_fixture("sentencepiece.model");
  CHECK(piece.special("</s>") == 2);
  CHECK(piece.encode("a", {.add_special = true}).front() == 1);
  const Tokenizer ranks = load_fixture("ranks.tiktoken");
  CHECK(ranks.special("<|end|>") == ranks.vocab_size() - 1);
}

TEST_CASE("WordPiece gives text back with spaces between words", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const Tokenizer t = load_fixture("word_piece.json");
  CHECK(t.description() == "WordPiece, 500 tokens");
  const std::vector<int32_t> ids = t.encode("Caf\xC3\xA9... the WHALE, a whaler!");
  CHECK(t.decode(ids) == "cafe... the whale, a whaler!");
  const std::vector<int32_t> around = t.encode("whale", {.add_special = true});
  CHECK(around.front() == t.special("[CLS]"));
  CHECK(around.back() == t.special("[SEP]"));
  CHECK(t.decode(around, true) == "whale");
  // More than 20 letters are unknown, and so are letters that the vocabulary lacks.
  CHECK(t.encode(std::string(21, 'a')) == std::vector<int32_t>{*t.special("[UNK]")});
  CHECK(t.encode("\xE0\xA4\x95") == std::vector<int32_t>{*t.special("[UNK]")});
  nlohmann::json file = nlohmann::json::parse(read_fixture("word_piece.json"));
  const Folder f;
  const auto with = [&](const char* at, const nlohmann::json& value) {
    nlohmann::json changed = file;
    changed[nlohmann::json::json_pointer(at)] = value;
    const std::string path = f.write("t.json", changed.dump());
    return f.error([&] { Tokenizer::load(path); });
  };
  CHECK(
      with("/model/unk_token", "[NONE]").find("the unk_token '[NONE]' is not in the vocabulary") !=
      std::string::npos);
  CHECK(with("/normalizer/fold", true).find("'fold'") != std::string::npos);
  CHECK(with("/pre_tokenizer/type", "Whitespace").find("has the type 'Whitespace'") !=
        std::string::npos);
}

/// Calls visit(pointer) for each object of a file that has keys of its own, not tokens.
void visit_objects(const nlohmann::json& value, const std::string& at,
                   const std::function<void(const std::string&)>& visit) {
  if (at == "/truncation" || at == "/padding" || at.ends_with("/vocab") || at.ends_with("/pair") ||
      at.find("/special_tokens") != at.npos)
    return;
  if (value.is_object()) visit(at);
  if (!value.is_structured() || at.ends_with("/merges")) return;
  for (const auto& [key, item] : value.items()) visit_objects(item, at + "/" + key, visit);
}

TEST_CASE("a key that is not known is refused in every part of tokenizer.json",
          "[tokenizer][errors]") {
  if (lacks_any()) return;
  const Folder f;
  const auto refused = [&](const nlohmann::json& file, const std::string& at) {
    nlohmann::json changed = file;
    changed[nlohmann::json::json_pointer(at + "/new_key")] = 1;
    f.write("tokenizer.json", changed.dump());
    INFO(at);
    CHECK(f.error([&] { Tokenizer::load(f.dir); }).find("'new_key'") != std::string::npos);
  };
  for (const char* name : {"byte_level.json", "prefix_space.json", "byte_fallback.json",
                           "unigram.json", "word_piece.json"}) {
    INFO(name);
    const nlohmann::json file = nlohmann::json::parse(read_fixture(name));
    visit_objects(file, "", [&](const std::string& at) { refused(file, at); });
  }
  f.write("tokenizer.json", read_fixture("byte_level.json"));
  for (const char* config :
       {R"({"new_key": 1})", R"({"eos_token": {"content": "<|end_of_text|>", "new_key": 1}})",
        R"({"added_tokens_decoder": {"0": {"content": "<|begin_of_text|>", "new_key": 1}}})"}) {
    f.write("tokenizer_config.json", config);
    CHECK(f.error([&] { Tokenizer::load(f.dir); })
              .find("Tessera does not know this key, and it "
                    "may change ids") != std::string::npos);
  }
  f.write("tokenizer_config.json", "{}");
  f.write("special_tokens_map.json", R"({"new_key": 1})");
  CHECK(f.error([&] { Tokenizer::load(f.dir); }).find("'new_key' is 1") != std::string::npos);
  fs::remove(f("special_tokens_map.json"));
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {R"({"split_special_tokens": true})", "'split_special_tokens' is true; Tessera knows only"},
      {R"({"additional_special_tokens": "a"})", "it is a list of tokens"},
      {R"({"additional_special_tokens": ["<none>"]})",
       "additional_special_tokens is '<none>', which is no token of"},
      {R"({"added_tokens_decoder": {"700": {"content": "<x>"}}})",
       "added_tokens_decoder.700: the token '<x>' has the id 700, but"},
      {R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})", "its key is an id"},
      {R"({"chat_template": 1})", "it is a text, or a list of templates"}};
  for (const auto& [config, message] : wrong) {
    f.write("tokenizer_config.json", config);
    INFO(config);
    CHECK(f.error([&] { Tokenizer::load(f.dir); }).find(message) != std::string::npos);
  }
  f.write("tokenizer_config.json", "{}");
  f.write("added_tokens.json", R"({"<x>": 3})");
  CHECK(f.error([&] { Tokenizer::load(f.dir); }) ==
        "io [tokenizer] 'DIR/added_tokens.json': the token '<x>' has the id 3, but "
        "'DIR/tokenizer.json' and the tokens before it make it 600, as transformers numbers them; "
        "give it that id");
  const Folder model;
  model.write("tokenizer.model", read_fixture("sentencepiece.model"));
  model.write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  CHECK(model.error([&] { Tokenizer::load(model.dir); })
            .find("'tokenizer_class' is \"T5Tokenizer\"; of a tokenizer.model Tessera knows") !=
        std::string::npos);
}

TEST_CASE("the config beside tokenizer.json names the special tokens", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const Folder f;
  f.write("tokenizer.json", read_fixture("byte_level.json"));
  f.write("tokenizer_config.json",
          R"({"bos_token": null, "eos_token": {"content": "<|begin_of_text|>"}})");
  const Tokenizer t = Tokenizer::load(f.dir);
  CHECK(t.bos() == 0);
  CHECK(t.eos() == 0);
  CHECK(t.fingerprint() == load_fixture("byte_level.json").fingerprint());
  f.write("tokenizer_config.json", R"({"pad_token": "<nope>"})");
  CHECK(f.error([&] { Tokenizer::load(f.dir); }) ==
        "io [tokenizer] 'DIR/tokenizer_config.json': pad_token is '<nope>', which is no token of "
        "'DIR/tokenizer.json'; add it there");
}

TEST_CASE("bytes that are no UTF-8 are read as U+FFFD", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const Tokenizer t = load_fixture("byte_level.json");
  const std::string fffd = "\xEF\xBF\xBD";
  const auto read_as = [&](const std::string& bytes, const std::string& text) {
    CHECK(t.encode(bytes) == t.encode(text));
  };
  read_as(
      "a\xFF"
      "b",
      "a" + fffd + "b");
  read_as("\xC0\x80", fffd + fffd);
  read_as("\xE2\x82", fffd);  // cut off
  read_as(
      "\xE2\x82"
      "a",
      fffd + "a");
  read_as("\xF0\x9F\x99", fffd);
  read_as("\xED\xA0\x80", fffd + fffd + fffd);  // a surrogate
  read_as("\xF5\x80", fffd + fffd);
}

TEST_CASE("one tokenizer serves several threads", "[tokenizer][fast]") {
  if (lacks_any()) return;
  const std::vector<std::string> texts = expected()["texts"];
  const Tokenizer t = load_fixture("prefix_space.json");
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t k = 0; k < wrong.size(); ++k) {
    threads.emplace_back([&, k] {
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t at = (i * 7 + k) % texts.size();
        wrong[k] += t.encode(texts[at]) !=
                    expected()["ids"]["prefix_space.json"][at].get<std::vector<int32_t>>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("errors of tokenizers: files", "[tokenizer][errors]") {
  if (lacks_any()) return;
  const Folder f;
  const auto load = [&](const std::string& name, const TokenizerOptions& options = {}) {
    return f.error([&] { Tokenizer::load(f(name), options); });
  };
  CHECK(f.error([&] { Tokenizer::load(f.dir); }) ==
        "io [tokenizer] the folder 'DIR' has no tokenizer.json, tekken.json or tokenizer.model; "
        "give the file");
  f.write("empty", "");
  CHECK(load("empty") == "io [tokenizer] 'DIR/empty' is empty");
  f.write("cut.json", read_fixture("byte_level.json").substr(0, 5000));
  CHECK(load("cut.json") ==
        "io [tokenizer] 'DIR/cut.json' begins as JSON, but is none (or nests too deeply); it may "
        "be truncated at 5000 bytes");
  f.write("other.json", R"({"a": 1})");
  CHECK(load("other.json") ==
        "unsupported [tokenizer] 'DIR/other.json' is JSON, but neither a tokenizer.json (it has no "
        "'model') nor a tekken.json (it has no 'config' and 'vocab'); convert it with "
        "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT)");
  f.write("cut.model", read_fixture("sentencepiece.model").substr(0, 3000));
  CHECK(
      load("cut.model")
          .starts_with(
              "io [tokenizer] 'DIR/cut.model' has 3000 bytes, but is no model of SentencePiece ("));
  CHECK(f.error([&] {
    Tokenizer::load(kFixtures + "byte_level.json", {"gpt2", {}});
  }) == "usage [tokenizer] '" + kFixtures +
            "byte_level.json' is no tiktoken file and has its own pattern and special tokens; "
            "leave 'gpt2' out");
}

TEST_CASE("a build without a library names its package", "[tokenizer][errors]") {
  const Folder f;
  f.write("nfc.json",
          R"({"normalizer": {"type": "NFC"}, "model": {"type": "BPE", "vocab": {"a": 0}, )"
          R"("merges": []}})");
  const auto load = [&](const std::string& path, const TokenizerOptions& options = {}) {
    return f.error([&] { Tokenizer::load(path, options); });
  };
  const auto expect = [&](const std::string& error, const char* library,
                          const std::string& wanted) {
    INFO(library);
    CHECK(error == (lacks(library) ? wanted : "no error"));
  };
  expect(load(kFixtures + "ranks.tiktoken", {".+", {}}), "PCRE2",
         "unsupported [tokenizer] '" + kFixtures +
             "ranks.tiktoken' cuts text by the pattern '.+', but this build has no PCRE2; install "
             "libpcre2-dev and configure again");
  expect(load(f("nfc.json")), "utf8proc",
         "unsupported [tokenizer] this tokenizer uses a normal form of Unicode, but this build has "
         "no utf8proc; install libutf8proc-dev and configure again");
  expect(load(kFixtures + "sentencepiece.model"), "SentencePiece",
         "unsupported [tokenizer] '" + kFixtures +
             "sentencepiece.model' has 7483 bytes of neither JSON nor a tiktoken file. If it is a "
             "model of SentencePiece, install libsentencepiece-dev and configure again: this build "
             "has no SentencePiece");
}

TEST_CASE("errors of tokenizers: tiktoken files", "[tokenizer][errors]") {
  if (lacks_any()) return;
  const Folder f;
  const std::string ranks = read_fixture("ranks.tiktoken");
  const auto load = [&](const std::string& text, const std::string& pattern) {
    f.write("t", text);
    return f.error([&] { Tokenizer::load(f("t"), {pattern, {}}); });
  };
  CHECK(load(ranks, "") ==
        "usage [tokenizer] 'DIR/t' is a tiktoken file, which does not say how text is cut; give a "
        "pattern: gpt2, cl100k, o200k, llama3, llama4, qwen, or a regular expression");
  CHECK(load(ranks, "gpt3") ==
        "usage [tokenizer] unknown pattern 'gpt3'; known: gpt2, cl100k, o200k, llama3, llama4, "
        "qwen, or a regular expression");
  CHECK(load(ranks, "gpt2") ==
        "usage [tokenizer] the special tokens of 'gpt2' follow a vocabulary of 50256 tokens, but "
        "'DIR/t' has 598; give the pattern of its own vocabulary, or a regular expression");
  CHECK(load(ranks, "a(b") ==
        "usage [tokenizer] 'DIR/t': the pattern 'a(b' is no regular expression of PCRE2 " +
            build_info().tokenizers.substr(6, build_info().tokenizers.find(',') - 6) +
            ": missing closing parenthesis at byte 3");
  CHECK(load(ranks, "a\\b") ==
        "unsupported [tokenizer] 'DIR/t': the pattern 'a\\b' has \\b, which versions of PCRE2 take "
        "in different ways; write it with classes such as \\p{L}");
  CHECK(load(ranks.substr(0, 1000), ".+").starts_with("io [tokenizer] "));
  CHECK(load("IQ== 0\nIg== 0\n", ".+") ==
        "io [tokenizer] line 2 of 'DIR/t' has rank 0, which an earlier line has");
  CHECK(load("IQ== 0\nIg 1\n", ".+") ==
        "io [tokenizer] line 2 of 'DIR/t' is not a token in base64 and its rank; the file is "
        "truncated, or no vocabulary of tiktoken");
  CHECK(load("IQ== 0\n", ".+") ==
        "io [tokenizer] 'DIR/t' has 1 tokens but none for the byte 0x00; the file is truncated, or "
        "no vocabulary of tiktoken");
}

TEST_CASE("unknown parts of tokenizer.json are refused by name", "[tokenizer][errors]") {
  if (lacks_any()) return;
  const Folder f;
  const nlohmann::json good = nlohmann::json::parse(read_fixture("byte_level.json"));
  const auto with = [&](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json file = good;
    file[nlohmann::json::json_pointer(pointer)] = value;
    f.write("tokenizer.json", file.dump());
    std::string text = f.error([&] { Tokenizer::load(f("tokenizer.json")); });
    const std::string begin = " [tokenizer] 'DIR/tokenizer.json': ";
    const size_t at = text.find(begin);
    return at == text.npos ? text : text.substr(0, at) + ": " + text.substr(at + begin.size());
  };
  const std::string end = ", which is not known and could change ids; use a tokenizer without it";
  const std::string damaged = "; the file is damaged, or no tokenizer.json";
  CHECK(with("/normalizer", {{"type", "Nmt"}}) ==
        "unsupported: normalizer Nmt has the type 'Nmt'" + end);
  CHECK(with("/normalizer", {{"type", "NFC"}, {"x", 1}}) ==
        "unsupported: normalizer NFC has the key 'x'" + end);
  CHECK(with("/pre_tokenizer", {{"type", "Whitespace"}}) ==
        "unsupported: pre_tokenizer Whitespace has the type 'Whitespace'" + end);
  CHECK(with("/pre_tokenizer/pretokenizers/0/behavior", "Merged") ==
        "unsupported: pre_tokenizer Sequence Split has the behavior 'Merged'" + end);
  CHECK(with("/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}, {"individual_digits", true}}) ==
        "unsupported: pre_tokenizer Sequence Digits has a place behind ByteLevel" + end);
  CHECK(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(")
            .starts_with("usage [tokenizer] pre_tokenizer Sequence Split: the pattern '(' is no "
                         "regular expression "));
  CHECK(with("/post_processor/processors/1/type", "Bert") ==
        "unsupported: post_processor Sequence Bert has the type 'Bert'" + end);
  for (const nlohmann::json& tokens :
       {nlohmann::json(), nlohmann::json{{"<|begin_of_text|>", {{"id", {4}}}}},
        nlohmann::json{{"<|begin_of_text|>", {{"ids", "4"}}}}})
    CHECK(with("/post_processor/processors/1/special_tokens", tokens) ==
          "io: post_processor Sequence TemplateProcessing: 'special_tokens' has no id of "
          "'<|begin_of_text|>'" +
              damaged);
  CHECK(with("/decoder", {{"type", "WordPieces"}}) ==
        "unsupported: decoder WordPieces has the type 'WordPieces'" + end);
  CHECK(with("/added_tokens/0/single_word", true) ==
        "unsupported: the file has the added token '<|begin_of_text|>' with single_word" + end);
  CHECK(with("/model/type", "WordLevel") ==
        "unsupported: model WordLevel has the type 'WordLevel' (known: BPE, Unigram, WordPiece)" +
            end);
  CHECK(with("/model/dropout", 0.1) ==
        "unsupported: model BPE has 'dropout', which makes ids random" + end);
  CHECK(with("/model/end_of_word_suffix", "</w>") ==
        "unsupported: model BPE has 'end_of_word_suffix' = '</w>'" + end);
  CHECK(with("/model/unk_token", "<x>") ==
        "io: model BPE: the unk_token '<x>' is not in the vocabulary" + damaged);
  CHECK(with("/model/merges/3", "a b c") ==
        "io: model BPE: merge 3 is no pair of tokens" + damaged);
  CHECK(with("/model/merges/3", "a zzzz") ==
        "io: model BPE: merge 3 needs the token 'zzzz', which the vocabulary lacks" + damaged);
  CHECK(with("/model/vocab/the", 10000000) ==
        "io: model BPE: the id of 'the' is no number below 4194304" + damaged);
  CHECK(with("/model/vocab", 1) == "io: model BPE: 'vocab' is no object" + damaged);
  CHECK(with("/truncation2", 1) == "unsupported: the file has the key 'truncation2'" + end);
  CHECK(with("/pre_tokenizer", 1) == "io: pre_tokenizer: it is no object" + damaged);
}

}  // namespace TESSERA_FILE
}  // namespace tessera
