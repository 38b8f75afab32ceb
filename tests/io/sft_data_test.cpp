// Samples of prompts and answers as examples of tokens.
#include "tessera/sft_data.h"

#include <filesystem>

#include "support/io_folder.h"
#include "tessera/tessera.h"

namespace tessera::test {
namespace TESSERA_FILE {

namespace fs = std::filesystem;

const std::string kTokenizer = TESSERA_SOURCE_DIR "/tests/tokenizer/fixtures/byte_level.json";

SftOptions of_length(int64_t length) {
  SftOptions o;
  o.length = length;
  return o;
}

/// One field of an example.
template <class T>
std::vector<T> field(const SftData& data, int64_t example, int number, int64_t first = 0,
                     int64_t count = -1) {
  const int64_t length = data.fields()[0].dims[0].size;
  std::vector<T> values(static_cast<size_t>(count < 0 ? length : count));
  data.read(example, number, {values.data(), {first}, {std::ssize(values)}, {1}});
  return values;
}
std::vector<int32_t> tokens(const SftData& data, int64_t example, int number) {
  return field<int32_t>(data, example, number);
}

/// The text whose tokens count in an example: that of the targets with weight 1.
std::string answers(const SftData& data, int64_t example, const Tokenizer& tokenizer) {
  const std::vector<int32_t> targets = tokens(data, example, 1);
  const std::vector<float> weights = field<float>(data, example, 4);
  std::vector<int32_t> counted;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (weights[i] == 1) counted.push_back(targets[i]);
  }
  return tokenizer.decode(counted);
}

std::string many_samples(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += "{\"prompt\": \"what is " + std::to_string(i) + "\", \"completion\": \" it is " +
            std::string(static_cast<size_t>(i % 7 + 1), 'x') + "\"}\n";
  return text;
}

void write_chat_folder(const Folder& f) {
  fs::copy_file(kTokenizer, f("tokenizer.json"));
  f.write("tokenizer_config.json",
          R"({"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "chat_template":
          "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role ==
 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{
 'assistant: ' }}{% endif %}"})");
  // JSON has no line breaks in texts.
  std::string text = f.read("tokenizer_config.json");
  std::erase(text, '\n');
  f.write("tokenizer_config.json", text);
}

TEST_CASE("a sample is its prompt, its completion and the end; only answers count", "[sft]") {
  const Folder f;
  const Tokenizer tokenizer = Tokenizer::load(kTokenizer);
  f.write("a.jsonl",
          "{\"prompt\": \"the ship\", \"completion\": \" sails down\"}\n\n"
          "{\"id\": 7, \"prompt\": \"her\", \"completion\": \" whale <|end_of_text|>\"}\n");
  const SftData data(f("a.jsonl"), kTokenizer, of_length(40));
  REQUIRE(data.examples() == 1);
  CHECK(data.samples() == 2);
  std::vector<int32_t> first = {0}, prompt = tokenizer.encode("the ship"),
                       answer = tokenizer.encode(" sails down");
  first.insert(first.end(), prompt.begin(), prompt.end());
  const size_t answer_at = first.size();
  first.insert(first.end(), answer.begin(), answer.end());
  first.push_back(1);
  const auto n = first.size() - 1;  // positions of the first sample
  const std::vector<int32_t> inputs = tokens(data, 0, 0), targets = tokens(data, 0, 1),
                             segments = tokens(data, 0, 2), positions = tokens(data, 0, 3);
  const std::vector<float> weights = field<float>(data, 0, 4);
  for (size_t i = 0; i < n; ++i) {
    CHECK(inputs[i] == first[i]);
    CHECK(targets[i] == first[i + 1]);
    CHECK(segments[i] == 1);
    CHECK(positions[i] == static_cast<int32_t>(i));
    CHECK(weights[i] == (i + 1 >= answer_at ? 1.0F : 0.0F));
  }
  CHECK(inputs[n] == 0);  // the second begins anew
  CHECK(positions[n] == 0);
  CHECK(segments[n] == 2);
  CHECK(segments[39] == 0);
  CHECK(weights[39] == 0);
  // Text that looks like a special token is text.
  CHECK(answers(data, 0, tokenizer) ==
        " sails down<|end_of_text|> whale <|end_of_text|><|end_of_text|>");
  CHECK(std::count(targets.begin(), targets.end(), 1) == 2);
  CHECK(data.sample_at(0, static_cast<int64_t>(n) - 1) == 0);
  CHECK(data.sample_at(0, static_cast<int64_t>(n)) == 1);
  CHECK(data.sample_at(0, 39) == -1);
}

TEST_CASE("every message of the assistant is an answer, as the chat template writes it", "[sft]") {
  const Folder f;
  write_chat_folder(f);
  f.write("a.jsonl",
          R"({"messages": [{"role": "user", "content": "her ship"}, {"role": "assistant", "content":
 "down"}, {"role": "user", "content": "more"}, {"role": "assistant", "content": "whale"},
 {"role": "user", "content": "bye"}]})");
  std::string text = f.read("a.jsonl");
  std::erase(text, '\n');
  f.write("a.jsonl", text);
  const Tokenizer tokenizer = Tokenizer::load(f.dir);
  const SftData data(f("a.jsonl"), f.dir, of_length(60));
  const std::vector<int32_t> inputs = tokens(data, 0, 0);
  CHECK(inputs[0] == 0);
  CHECK(answers(data, 0, tokenizer) == "down<|end_of_text|>\nwhale<|end_of_text|>\n");
  // A prompt that reads otherwise when an answer follows: the answer is its content and its end.
  f.write("chat_template.jinja",
          "{% for m in messages %}{{ '|' if loop.previtem is defined }}{{ m.role ~ ':' ~ m.content "
          "}}{{ eos_token if m.role == 'assistant' }}{% endfor %}{{ 'assistant:' if "
          "add_generation_prompt }}");
  CHECK(answers(SftData(f("a.jsonl"), f.dir, of_length(60)), 0, tokenizer) ==
        "down<|end_of_text|>whale<|end_of_text|>");
  fs::remove(f("chat_template.jinja"));
  // The tokenizer's file beside its configuration means the same.
  const SftData same(f("a.jsonl"), f("tokenizer.json"), of_length(60));
  CHECK(same.fingerprint() == data.fingerprint());
}

TEST_CASE("examples hold whole samples in their order, and any part of one can be read", "[sft]") {
  const Folder f;
  f.write("a.jsonl", many_samples(40));
  const SftData data(f("a.jsonl"), kTokenizer, of_length(50));
  int64_t next = 0, packed = 0;
  for (int64_t e = 0; e < data.examples(); ++e) {
    const std::vector<int32_t> inputs = tokens(data, e, 0), segments = tokens(data, e, 2);
    const std::vector<float> weights = field<float>(data, e, 4);
    int64_t last = -1;
    for (int64_t i = 0; i < 50; ++i) {
      const int64_t sample = data.sample_at(e, i);
      if (sample >= 0 && sample != last) CHECK(sample == next++);
      if (sample >= 0) last = sample;
      CHECK((sample < 0) == (segments[static_cast<size_t>(i)] == 0));
      packed += sample >= 0;
    }
    for (int64_t from : {3, 17, 44}) {
      CHECK(field<int32_t>(data, e, 0, from, 6) ==
            std::vector<int32_t>(inputs.begin() + from, inputs.begin() + from + 6));
      CHECK(field<float>(data, e, 4, from, 6) ==
            std::vector<float>(weights.begin() + from, weights.begin() + from + 6));
    }
  }
  CHECK(next == 40);
  CHECK(packed > 50 * data.examples() / 2);
  SftOptions head = of_length(50), tail = of_length(50);
  head.last = tail.first = 0.9;
  CHECK(SftData(f("a.jsonl"), kTokenizer, head).samples() == 36);
  CHECK(SftData(f("a.jsonl"), kTokenizer, tail).samples() == 4);
}

TEST_CASE("what a step reads depends on neither ranks nor the steps before", "[sft]") {
  const Folder f;
  f.write("a.jsonl", many_samples(60));
  const SftData data(f("a.jsonl"), kTokenizer, of_length(32));
  const auto read = [&](const char* mesh_text, const char* rules, std::vector<int64_t> steps) {
    Graph g;
    const Shape shape{Dim("batch", 12), Dim("length", 32)};
    FunctionSpec all{"f", {}, false};
    for (const DataField& field : data.fields())
      all.outputs.push_back(g.input(field.name, shape, field.dtype));
    const Mesh mesh = Mesh::parse(mesh_text);
    Cluster ranks = Cluster::threads(mesh.size());
    Session session(g, ranks, {mesh, Layout::parse(rules), {all}, 0, 1});
    BatchOptions options;
    options.seed = 11;
    const Batcher batcher(data, 12, options);
    std::map<int64_t, std::string> seen;
    for (const int64_t step : steps) {
      batcher.feed(session, step);
      session.run("f");
      for (const DataField& field : data.fields()) {
        const Array whole = session.fetch(field.name);
        seen[step].append(reinterpret_cast<const char*>(whole.bytes.data()), whole.bytes.size());
      }
    }
    return seen;
  };
  const auto one = read("a:1", "", {0, 1, 2, 3, 9});
  CHECK(one.at(0) != one.at(1));
  CHECK(read("a:2", "batch:a", {9, 3, 2, 1, 0}) == one);
  CHECK(read("a:3", "batch:a", {3, 0, 1, 2, 9}) == one);
  CHECK(read("a:4", "batch:a", {0, 1, 2, 3, 9}) == one);
  CHECK(read("a:2;b:2", "batch:a;length:b", {0, 1, 2, 3, 9}) == one);
}

TEST_CASE("samples that are too long are an error, left out or cut", "[sft]") {
  const Folder f;
  f.write("a.jsonl",
          "{\"prompt\": \"her\", \"completion\": \" ship\"}\n"
          "{\"prompt\": \"her\", \"completion\": \" ship down the very ship down the very\"}\n"
          "{\"prompt\": \"0 1 2 3 4 5 6 7 8 9 0 1 2 3 4\", \"completion\": \" ship\"}\n");
  SftOptions o = of_length(8);
  CHECK(f.error([&] {
           SftData(f("a.jsonl"), kTokenizer, o);
         }).find("io [data] 'DIR/a.jsonl' line 2: the sample has ") == 0);
  o.too_long = SftOptions::TooLong::skip;
  const SftData skipped(f("a.jsonl"), kTokenizer, o);
  CHECK(skipped.samples() == 1);
  CHECK(skipped.left_out() == 2);
  o.too_long = SftOptions::TooLong::truncate;
  const SftData cut(f("a.jsonl"), kTokenizer, o);
  CHECK(cut.samples() == 2);  // of the third only the prompt would be left
  CHECK(cut.left_out() == 1);
  CHECK(cut.sample_at(1, 7) == 1);
}

TEST_CASE("samples that are refused", "[sft][errors]") {
  const Folder f;
  const auto of = [&](const std::string& text, SftOptions o = of_length(30)) {
    f.write("a.jsonl", text);
    return f.error([&] { SftData(f("a.jsonl"), kTokenizer, o); });
  };
  const std::string good = "{\"prompt\": \"her\", \"completion\": \" ship\"}\n";
  CHECK(of(good + "{\"prompt\"") ==
        "io [data] 'DIR/a.jsonl' line 2 is no JSON object: line 1, column 10: unexpected end of "
        "input; expected ':'; every line of jsonl is one sample");
  CHECK(of(good + "{\"prompt\": NaN}").find("line 2 is no JSON object: line 1, column 12: ") !=
        std::string::npos);
  CHECK(of(good + "{\"prompt\": \"caf\xE9\"}") ==
        "io [data] 'DIR/a.jsonl' line 2 has the byte 0xe9 at 16, so the file is not UTF-8; convert "
        "it: iconv -f WINDOWS-1252 -t UTF-8");
  CHECK(of("{\"prompt\": \"a\", \"completion\": \"b\", \"prompt\": \"c\"}") ==
        "io [data] 'DIR/a.jsonl' line 1 has the key 'prompt' twice; take one of them out");
  CHECK(of(good + "\n[1]\n").find("'DIR/a.jsonl' line 3 is no JSON object") != std::string::npos);
  CHECK(of("{\"prompt\": \"x\"}").find("line 1: the sample has no 'completion'; it is") !=
        std::string::npos);
  CHECK(of("{\"prompt\": 3, \"completion\": \"\"}").find("the sample has no text as 'prompt'") !=
        std::string::npos);
  CHECK(of("{\"text\": \"x\"}").find("the sample has no 'prompt'") != std::string::npos);
  CHECK(of("{\"messages\": []}").find("line 1: 'messages' is no list with messages") !=
        std::string::npos);
  CHECK(of("{\"messages\": [1]}").find("a message is no object with role and content") !=
        std::string::npos);
  CHECK(of("{\"messages\": [{\"role\": \"user\"}]}").find("the sample has no 'content'") !=
        std::string::npos);
  CHECK(
      of("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}").find("has none: neither") !=
      std::string::npos);
  CHECK(of("").find("has 0 samples (0 more are too long), none of them from 0 to 1 of the file") !=
        std::string::npos);
  SftOptions o = of_length(30);
  o.vocabulary = 500;
  CHECK(of(good, o).find("does not fit the model, whose vocabulary has 500") != std::string::npos);
  CHECK(of(good, of_length(0)).find("[data] examples of length 0") != std::string::npos);
  o = of_length(30);
  o.first = 0.5, o.last = 0.5;
  CHECK(of(good, o).find("the part 0.5 to 0.5 of the samples") != std::string::npos);
  write_chat_folder(f);
  const auto chat = [&](const std::string& text) {
    f.write("a.jsonl", text);
    return f.error([&] { SftData(f("a.jsonl"), f.dir, of_length(60)); });
  };
  CHECK(chat("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}") ==
        "io [data] 'DIR/a.jsonl' line 1: no message is of the assistant, so nothing is learnt");
  // What would be dropped is refused; where a sample comes from, and null, change nothing.
  const std::string talk = "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": ";
  for (const std::string key : {"name", "reasoning_content", "tool_calls", "weight", "id"})
    CHECK(chat("{" + talk + "\"assistant\", \"content\": \"y\", \"" + key + "\": \"z\"}]}") ==
          "io [data] 'DIR/a.jsonl' line 1: a message has '" + key +
              "', which is not read; take it out, or write it into the text");
  for (const std::string key : {"tools", "system", "weight"})
    CHECK(chat("{" + talk + "\"assistant\", \"content\": \"y\"}], \"" + key + "\": [1]}")
              .find("line 1: the sample has '" + key + "', which is not read") !=
          std::string::npos);
  CHECK(chat("{" + talk +
             "\"assistant\", \"content\": \"y\", \"name\": null}], \"id\": 3, "
             "\"source\": \"a\"}") == "no error");
  CHECK(chat("{" + talk + "\"assistant\", \"content\": \"y\"}], \"prompt\": \"x\"}") == "no error");
  CHECK(chat("{" + talk + "\"assistant\", \"content\": \"y\"}], \"prompt\": \"z\"}")
            .find("line 1: the sample has 'prompt', which is not read") != std::string::npos);
  CHECK(of("{\"prompt\": \"a\", \"completion\": \"b\", \"loss\": 1}\n")
            .find("line 1: the sample has 'loss', which is not read") != std::string::npos);
  f.write("chat_template.jinja",
          "{% for m in messages %}{{ m.content if loop.last else 'earlier' }}{% endfor %}");
  CHECK(chat("{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}, {\"role\": \"user\", "
             "\"content\": \"y\"}]}")
            .find("unsupported [data] 'DIR/a.jsonl' line 1: the chat template writes message 1 in "
                  "another way when more follow") == 0);
}

TEST_CASE("pairs are packed side by side, as a model with an encoder reads them", "[sft]") {
  const Folder f;
  const std::string path = f.write("a.jsonl",
                                   "{\"prompt\": \"abc\", \"completion\": \"de\"}\n\n"
                                   "{\"prompt\": \"b\", \"completion\": \"c\"}\n"
                                   "{\"prompt\": \"aaaaa\", \"completion\": \"b\"}\n");
  const std::string tokenizer = f.write(
      "t.json",
      R"({"added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 2, "b": 3, "c": 4, "d": 5,
          "e": 6}, "merges": []}})");
  PairOptions o;
  o.length = 7, o.target_length = 6;
  const auto read = [&](const PairData& data, int64_t example, int number) {
    std::vector<int32_t> values(number < 2 ? 7 : 6);
    data.read(example, number, {values.data(), {0}, {std::ssize(values)}, {1}});
    return values;
  };
  using Ids = std::vector<int32_t>;
  const PairData data(path, tokenizer, o);
  REQUIRE(data.examples() == 2);  // the third prompt does not fit behind the others
  CHECK(data.samples() == 3);
  CHECK(read(data, 0, 0) == Ids{2, 3, 4, 1, 3, 1, 0});
  CHECK(read(data, 0, 1) == Ids{1, 1, 1, 1, 2, 2, 0});
  CHECK(read(data, 0, 2) == Ids{0, 5, 6, 0, 4, 0});
  CHECK(read(data, 0, 3) == Ids{5, 6, 1, 4, 1, 0});
  CHECK(read(data, 0, 4) == Ids{1, 1, 1, 2, 2, 0});
  std::vector<float> weights(3);
  data.read(0, 5, {weights.data(), {3}, {3}, {1}});
  CHECK(weights == std::vector<float>{1, 1, 0});
  CHECK(read(data, 1, 0) == Ids{2, 2, 2, 2, 2, 1, 0});
  CHECK(data.fingerprint() != PairData(path, tokenizer,
                                       [&] {
                                         auto other = o;
                                         other.length = 8;
                                         return other;
                                       }())
                                  .fingerprint());
  const auto with = [&](int64_t length, SftOptions::TooLong what) {
    PairOptions other = o;
    other.length = length;
    other.too_long = what;
    return PairData(path, tokenizer, other);
  };
  CHECK(f.error([&] { with(4, SftOptions::TooLong::error); }) ==
        "io [data] 'DIR/a.jsonl' line 4: the prompt has 6 tokens and the completion 2, with their "
        "ends, but an example has 4 and 6; make them longer, or say what to do with "
        "data.too_long=skip or truncate");
  CHECK(with(4, SftOptions::TooLong::skip).left_out() == 1);
  const PairData cut = with(4, SftOptions::TooLong::truncate);
  std::vector<int32_t> last(4);
  cut.read(cut.examples() - 1, 0, {last.data(), {0}, {4}, {1}});
  CHECK(last == Ids{2, 2, 2, 1});
  f.write("b.jsonl", "{\"prompt\": \"a\", \"completion\": \"\"}\n");
  CHECK(f.error([&] { PairData(f("b.jsonl"), tokenizer, o); }) ==
        "io [data] 'DIR/b.jsonl' line 1: the completion is empty; nothing is learnt from it");
  f.write("b.jsonl", "{\"messages\": []}\n");
  CHECK(f.error([&] {
           PairData(f("b.jsonl"), tokenizer, o);
         }).starts_with("io [data] 'DIR/b.jsonl' line 1: the sample has no 'prompt'; it is "));
  PairOptions bad = o;
  bad.target_length = 0;
  CHECK(
      f.error([&] { PairData(path, tokenizer, bad); }) ==
      "usage [data] examples of prompts of 7 tokens and answers of 0; they have at least 1 token");
  bad = o;
  bad.first = 1;
  CHECK(
      f.error([&] { PairData(path, tokenizer, bad); }).starts_with("usage [data] the part 1 to 1"));
  bad = o;
  bad.vocabulary = 4;
  CHECK(f.error([&] { PairData(path, tokenizer, bad); }).find("does not fit the model") !=
        std::string::npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
