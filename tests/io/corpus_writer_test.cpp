// The corpus writer: what it writes reads back, and it continues where it stopped.
#include <set>

#include "io/corpus_files.h"
#include "support/io_folder.h"
#include "tessera/corpus.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using test::Ints;
using test::megatron_index;
using test::read_field;
using test::with_documents;

TEST_CASE("a written corpus reads back, and knows its vocabulary", "[corpus][fast]") {
  const Folder f;
  for (const int64_t vocabulary : {int64_t{65499}, int64_t{65500}}) {
    const std::string name = "c" + std::to_string(vocabulary);
    CorpusWriter writer(f(name), {vocabulary, "mine", 7});
    for (const Ints& document : {Ints{1, 2, 7}, Ints{3, 7}, Ints{4, 5, 65498, 7}})
      writer.add(document);
    CHECK(writer.tokens() == 9);
    writer.finish();
    CHECK(std::filesystem::file_size(f(name + ".bin")) == (vocabulary < 65500 ? 18U : 36U));
    CHECK(f.read(name + ".idx") == megatron_index(vocabulary < 65500 ? 8 : 4, {3, 2, 4},
                                                  vocabulary < 65500 ? 2 : 4, {0, 1, 2, 3}));
    const TextData data(f(name), with_documents(8));
    CHECK(data.vocabulary() == vocabulary);
    CHECK(read_field<int32_t>(data, 0, "inputs") == Ints{1, 2, 7, 3, 7, 4, 5, 65498});
    CHECK(read_field<int32_t>(data, 0, "segments") == Ints{1, 1, 1, 2, 2, 3, 3, 3});
    CHECK(f.error([&] { TextData(f(name), {.length = 2, .vocabulary = 256}); }) ==
          "usage [data] 'DIR/" + name + ".bin' has tokens of a vocabulary of " +
              std::to_string(vocabulary) + " ('DIR/" + name +
              ".json'), but the model's has 256; set model.vocab=" + std::to_string(vocabulary));
  }
  CHECK(f.names() == std::set<std::string>{"c65499.bin", "c65499.idx", "c65499.json", "c65500.bin",
                                           "c65500.idx", "c65500.json"});
  f.write("c65499.json", R"({"format": "tessera corpus", "tokens": 8})");
  CHECK(f.error([&] { TextData(f("c65499"), {.length = 2}); }) ==
        "io [data] 'DIR/c65499.json' was written for 8 tokens, but 'DIR/c65499.bin' has 9; they "
        "belong to different corpora");
  const auto damaged = [&](const std::string& text) {
    f.write("c65499.json", text);
    return f.error([&] { TextData(f("c65499"), {.length = 2}); });
  };
  CHECK(damaged(R"({"format": "tessera corpus", "tok)") ==
        "io [data] 'DIR/c65499.json' is damaged: it is no JSON; restore it, or tokenize again");
  CHECK(damaged(R"({"format": "tessera corpus", "vocabulary": -5})") ==
        "io [data] 'DIR/c65499.json' is damaged: its vocabulary is -5; restore it, or tokenize "
        "again");
  CHECK(damaged(R"({"format": "tessera corpus", "document_end": "x"})") ==
        "io [data] 'DIR/c65499.json' is damaged: its document_end is \"x\"; restore it, or "
        "tokenize again");
  f.write("c65499.json", "of another program");
  CHECK(TextData(f("c65499"), {.length = 2}).examples() == 4);
}

TEST_CASE("a corpus continues behind its last commit, wherever it stopped", "[corpus]") {
  const Folder whole;
  const CorpusOptions options = {300, "t", {}};
  const auto document = [](int i) {
    Ints ids;
    for (int k = 0; k <= i % 7; ++k) ids.push_back((i * 31 + k) % 300);
    return ids;
  };
  const auto run = [&](const Folder& f, int stop) {
    CorpusWriter writer(f("c"), options);
    int i = writer.note().empty() ? 0 : std::stoi(writer.note());
    CHECK(writer.documents() == i);
    for (; i < 40; ++i) {
      if (i % 8 == 0) writer.commit(std::to_string(i));
      if (i == stop) return;  // as if it were killed
      writer.add(document(i));
    }
    writer.commit("40");
    if (stop == 40) return;
    writer.finish();
  };
  run(whole, -1);
  const Folder f;
  for (const int stop : {0, 5, 13, 27, 40, -1}) {
    run(f, stop);
    CHECK(std::filesystem::exists(f("c.idx")) == (stop == -1));
  }
  for (const char* name : {"c.bin", "c.idx", "c.json"}) CHECK(f.read(name) == whole.read(name));
  CHECK(f.names() == std::set<std::string>{"c.bin", "c.idx", "c.json"});
  // Killed between the names of two files.
  const Folder between;
  run(between, 40);
  std::filesystem::rename(between("c.bin.part"), between("c.bin"));
  run(between, -1);
  CHECK(between.read("c.bin") == whole.read("c.bin"));
  CHECK(between.read("c.idx") == whole.read("c.idx"));
}

TEST_CASE("errors of the corpus writer", "[corpus][errors]") {
  const Folder f;
  const auto open = [&](const std::string& name, const CorpusOptions& o) {
    return f.error([&] { CorpusWriter(f(name), o); });
  };
  CHECK(f.error([&] { CorpusWriter("", {10}); }) ==
        "usage [corpus] no name is given for the corpus; use --out PREFIX");
  CHECK(open("c", {0}) == "usage [corpus] a vocabulary of 0; it has 1 to 2^31 - 1 tokens");
  CHECK(open("none/c", {10}) ==
        "io [corpus] 'DIR/none/c.bin.part' could not be written: No such file or directory; make "
        "room and give the same command again, which goes on where it stopped");
  {
    CorpusWriter writer(f("c"), {10, "one"});
    CHECK(f.error([&] { writer.add({}); }) ==
          "usage [corpus] document 0 has 0 tokens; it has 1 to 2^31 - 1");
    CHECK(f.error([&] {
      writer.add(Ints{1, 10});
    }) == "usage [corpus] document 0 has the id 10, but the vocabulary has 10");
    CHECK(f.error([&] { writer.finish(); }) ==
          "usage [corpus] 'DIR/c' has no documents; there is nothing to write");
    writer.add(Ints{1, 2});
    writer.commit("here");
    CHECK(open("c", {10, "one"}) ==
          "usage [corpus] another process writes 'DIR/c.bin.part'; wait for it, or give another "
          "--out");
  }
  CHECK(open("c", {10, "two"}) ==
        "usage [corpus] 'DIR/c' was begun with tokenizer \"one\", and now it is \"two\"; repeat "
        "the first command, or remove 'DIR/c*.part*' to begin again");
  f.write("c.bin.part", "1");
  CHECK(open("c", {10, "one"}) ==
        "io [corpus] 'DIR/c.bin.part' has 1 bytes, but 4 were committed; remove 'DIR/c.bin.part' "
        "and what belongs to it, and begin again");
  f.write("c.part.json", "{");
  CHECK(open("c", {10, "one"}) ==
        "io [corpus] 'DIR/c.part.json' is damaged; remove 'DIR/c*.part*' and begin again");
  {
    CorpusWriter writer(f("new"), {10});
    writer.add(Ints{1});
  }
  CHECK(!std::filesystem::exists(f("new.bin.part")));  // nothing was committed
  CHECK(!std::filesystem::exists(f("new.lengths.part")));
  f.write("d.idx", "");
  CHECK(open("d", {10}) == "usage [corpus] 'DIR/d.idx' exists; remove it, or give another --out");
  f.write("e.bin", "");
  CHECK(open("e", {10}) == "usage [corpus] 'DIR/e.bin' exists; remove it, or give another --out");
}

}  // namespace TESSERA_FILE
}  // namespace tessera
