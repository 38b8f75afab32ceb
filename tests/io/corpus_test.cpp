// Corpora: files of Megatron and llm.c, and their documents in windows. Every error message is
// checked as a whole; DIR stands for the test's folder.
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "io/corpus_files.h"
#include "support/io_folder.h"

namespace tessera {
namespace TESSERA_FILE {

using test::bytes_of;
using test::Folder;
using test::Ints;
using test::megatron_index;
using test::read_field;
using test::with_documents;

/// 12 tokens in documents of 3, 5, 0 and 4.
void write_documents(const Folder& f, const std::string& name) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 12; ++i) tokens.push_back(static_cast<uint16_t>(100 + i));
  f.write(name + ".bin", bytes_of(tokens));
  f.write(name + ".idx", megatron_index(8, {3, 5, 0, 4}, 2, {0, 1, 2, 3, 4}));
}

TEST_CASE("a corpus of Megatron has documents in its windows", "[corpus][fast]") {
  const Folder f;
  write_documents(f, "c");
  for (const std::string name : {"c.idx", "c.bin", "c"}) {
    const TextData data(f(name), with_documents(5));
    REQUIRE(data.examples() == 2);
    CHECK(data.vocabulary() == int64_t{1} << 31);
    CHECK(read_field<int32_t>(data, 0, "inputs") == Ints{100, 101, 102, 103, 104});
    CHECK(read_field<int32_t>(data, 0, "targets") == Ints{101, 102, 103, 104, 105});
    CHECK(read_field<int32_t>(data, 0, "segments") == Ints{1, 1, 1, 2, 2});
    CHECK(read_field<int32_t>(data, 0, "positions") == Ints{0, 1, 2, 0, 1});
    CHECK(read_field<float>(data, 0, "weights") == std::vector<float>{1, 1, 0, 1, 1});
    // The second window begins within a document, and its last target begins none.
    CHECK(read_field<int32_t>(data, 1, "segments") == Ints{1, 1, 1, 2, 2});
    CHECK(read_field<int32_t>(data, 1, "positions") == Ints{0, 1, 2, 0, 1});
    CHECK(read_field<float>(data, 1, "weights") == std::vector<float>{1, 1, 0, 1, 1});
    // A part of a window is that part of the whole.
    CHECK(read_field<int32_t>(data, 0, "segments", 2, 2) == Ints{1, 2});
    CHECK(read_field<int32_t>(data, 0, "positions", 3, 2) == Ints{0, 1});
    CHECK(read_field<float>(data, 0, "weights", 1, 2) == std::vector<float>{1, 0});
  }
  // Documents of several sequences, wide tokens, modes at the end.
  f.write("w.bin", bytes_of(Ints{1, 2, 3, 70000, 5, 6}));
  f.write("w.idx", megatron_index(4, {2, 1, 3}, 4, {0, 2, 3}) + std::string(3, '\0'));
  const TextData wide(f("w.idx"), with_documents(5));
  CHECK(read_field<int32_t>(wide, 0, "inputs") == Ints{1, 2, 3, 70000, 5});
  CHECK(read_field<int32_t>(wide, 0, "segments") == Ints{1, 1, 1, 2, 2});
}

TEST_CASE("files of Megatron's own writer read unchanged", "[corpus][fast]") {
  const std::string fixtures = TESSERA_SOURCE_DIR "/tests/io/fixtures/";  // of megatron-core 0.16.1
  const TextData documents(fixtures + "documents.idx", with_documents(14));
  CHECK(read_field<int32_t>(documents, 0, "inputs") == Ints{23781, 25722, 37952, 47767, 1751, 7245,
                                                            41358, 47676, 12525, 15671, 43674,
                                                            21275, 13728, 41597});
  CHECK(read_field<int32_t>(documents, 0, "segments") ==
        Ints{1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4});
  CHECK(documents.examples() == (53 - 1) / 14);
  const TextData sentences(fixtures + "sentences.idx", with_documents(16));
  CHECK(read_field<int32_t>(sentences, 0, "targets").back() == 78621);
  CHECK(read_field<int32_t>(sentences, 0, "segments") ==
        Ints{1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
}

TEST_CASE("files of llm.c", "[corpus][fast]") {
  const Folder f;
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 5;
  const std::vector<uint16_t> tokens = {50256, 1, 2, 50256, 3};
  f.write("gpt2.bin", bytes_of(header) + bytes_of(tokens));
  TextOptions o = with_documents(4);
  o.document_end = 2;
  const TextData data(f("gpt2.bin"), o);
  CHECK(read_field<int32_t>(data, 0, "targets") == Ints{1, 2, 50256, 3});
  CHECK(read_field<int32_t>(data, 0, "segments") == Ints{1, 1, 1, 2});
  CHECK(read_field<float>(data, 0, "weights") == std::vector<float>{1, 1, 0, 1});
  header[0] = 20240801, header[1] = 7, header[2] = 3;
  f.write("llama3.bin", bytes_of(header) + bytes_of(Ints{128000, 5, 6}));
  CHECK(read_field<int32_t>(TextData(f("llama3.bin"), {.length = 2}), 0, "inputs") ==
        Ints{128000, 5});
  const auto error = [&](int word, int32_t value) {
    std::vector<int32_t> other = header;
    other[static_cast<size_t>(word)] = value;
    f.write("x.bin", bytes_of(other) + bytes_of(Ints{128000, 5, 6}));
    return f.error([&] { TextData(f("x.bin"), {.length = 2}); });
  };
  CHECK(error(2, 4) ==
        "io [data] 'DIR/x.bin' names 4 tokens in its header, so 1040 bytes, but has 1036; it is "
        "truncated or damaged");
  CHECK(error(1, 1) ==
        "unsupported [data] 'DIR/x.bin' has version 1 of llm.c's magic 20240801; known is 7");
  CHECK(error(0, 20240326) ==
        "unsupported [data] 'DIR/x.bin' is a model of llm.c (magic 20240326), not a file of "
        "tokens; give the tokens");
  CHECK(error(0, 1) ==
        "io [data] 'DIR/x.bin' has no header of llm.c and no index 'DIR/x.idx' beside it; for "
        "tokens without a header set data.token_bytes (TextOptions::token_bytes) to 2 or 4; a "
        "text, or tokens of one byte, need another name than '*.bin'");
  f.write("x.bin", bytes_of(header).substr(0, 100));
  CHECK(f.error([&] { TextData{f("x.bin")}; }) ==
        "io [data] 'DIR/x.bin' has 100 bytes, less than the header of llm.c; it is truncated");
}

TEST_CASE("errors of corpora", "[corpus][errors]") {
  const Folder f;
  write_documents(f, "c");
  const std::string good = f.read("c.idx");
  const auto with = [&](size_t at, const std::string& bytes, size_t size = std::string::npos) {
    std::string index = good.substr(0, size);
    if (!bytes.empty()) index.replace(at, bytes.size(), bytes);
    f.write("c.idx", index);
    return f.error([&] {
      const TextData data(f("c.idx"), with_documents(5));
      read_field<int32_t>(data, 0, "segments");
    });
  };
  const std::string index = "io [data] the index 'DIR/c.idx' of 122 bytes ";
  const std::string again = "; make the corpus again";
  CHECK(with(0, "X") == index + "does not begin as an index of Megatron (MMIDIDX)" + again);
  CHECK(with(9, "\x02") == index + "has version 2; known is 1" + again);
  CHECK(with(17, "\x07") ==
        index + "has tokens of dtype code 7; known are the whole numbers 1 to 5 and 8" + again);
  CHECK(with(0, "", 121) ==
        "io [data] the index 'DIR/c.idx' of 121 bytes should have 122 bytes for 4 sequences and 4 "
        "documents; it is truncated or damaged" +
            again);
  CHECK(with(0, "", 20) ==
        "io [data] the index 'DIR/c.idx' of 20 bytes does not begin as an index of Megatron "
        "(MMIDIDX)" +
            again);
  CHECK(with(18, bytes_of(uint64_t{1} << 60)) ==
        index +
            "names 1152921504606846976 sequences and 5 document boundaries, for which it is "
            "too short" +
            again);
  CHECK(with(114, bytes_of(int64_t{3})) ==
        index + "has documents from sequence 0 to 3, not from 0 to 4" + again);
  CHECK(with(34, bytes_of(int32_t{4})) ==
        index + "has sequence 0 from token 0 to 4, but the next begins at 3" + again);
  CHECK(with(34, bytes_of(int32_t{-1})) == index + "has a length of -1 in sequence 0" + again);
  CHECK(with(58, bytes_of(int64_t{7})) == index + "has an offset of 7 bytes in sequence 1" + again);
  CHECK(with(90, bytes_of(int64_t{9})) == index + "has document 1 at sequence 9 of 4" + again);
  CHECK(with(46, bytes_of(int32_t{5})) ==
        "io [data] the index 'DIR/c.idx' is of 13 tokens of 2 bytes, so of 26 bytes, but "
        "'DIR/c.bin' has 24; they belong to different corpora, or one is truncated");
  f.write("c.idx", good);
  f.write("c.bin", f.read("c.bin").substr(0, 23));
  CHECK(f.error([&] { TextData{f("c.idx")}; }) ==
        "io [data] the index 'DIR/c.idx' is of 12 tokens of 2 bytes, so of 24 bytes, but "
        "'DIR/c.bin' has 23; they belong to different corpora, or one is truncated");
  CHECK(f.error([&] { TextData{f("none.idx")}; }) ==
        "io [data] cannot open 'DIR/none.idx': No such file or directory; check the path");
  f.write("alone.idx", good);
  CHECK(f.error([&] { TextData{f("alone.idx")}; }) ==
        "io [data] the index 'DIR/alone.idx' is there, but the tokens 'DIR/alone.bin' are not; a "
        "corpus is both files, side by side");
  f.write("empty.idx", "");
  CHECK(f.error([&] { TextData{f("empty.idx")}; }) ==
        "io [data] the index 'DIR/empty.idx' of 0 bytes does not begin as an index of Megatron "
        "(MMIDIDX)" +
            again);
  f.write("nothing.bin", "");
  CHECK(f.error([&] { TextData(f("nothing.bin"), {.length = 2}); }) ==
        "io [data] 'DIR/nothing.bin' is empty; windows of length 2 need at least 3 tokens");
  f.write("text", "abcdefgh");
  CHECK(f.error([&] { TextData(f("text"), {.length = 2, .segments = "segments"}); }) ==
        "usage [data] the field 'segments' is about documents, but 'DIR/text' does not say where "
        "they begin; set TextOptions::document_end to the token that ends each, or make a corpus "
        "with tessera tokenize");
}

TEST_CASE("ids out of range are named with file and offset", "[corpus][errors]") {
  const Folder f;
  f.write("w.bin", bytes_of(Ints{1, -2, 3, 70000, 5}));
  f.write("w.idx", megatron_index(4, {5}, 4, {0, 1}));
  const TextData data(f("w"), {.length = 2, .vocabulary = 60000});
  CHECK(f.error([&] { read_field<int32_t>(data, 0, "inputs"); }) ==
        "io [data] token 1 of 'DIR/w.bin' (byte 4) is -2, but the vocabulary has 60000; use the "
        "vocabulary of the file");
  CHECK(f.error([&] { read_field<int32_t>(data, 1, "targets"); }) ==
        "io [data] token 3 of 'DIR/w.bin' (byte 12) is 70000, but the vocabulary has 60000; use "
        "the vocabulary of the file");
}

/// Memory of this process in MB, with what is mapped of files.
double resident_mb() {
  std::ifstream in("/proc/self/statm");
  int64_t pages = 0;
  in >> pages >> pages;
  return static_cast<double>(pages * sysconf(_SC_PAGESIZE)) / 1e6;
}

TEST_CASE("a corpus of 10 GB opens at once and takes no memory", "[corpus]") {
  const Folder f;
  constexpr int64_t kDocuments = 1'000'000, kLength = 5'000;  // 5e9 tokens of 2 bytes
  f.write("big.bin", "");
  std::filesystem::resize_file(f("big.bin"), 2 * kDocuments * kLength);  // a sparse file
  std::vector<int64_t> documents(kDocuments + 1);
  for (int64_t d = 0; d <= kDocuments; ++d) documents[static_cast<size_t>(d)] = d;
  f.write("big.idx", megatron_index(8, std::vector<int32_t>(kDocuments, kLength), 2, documents));
  const double before = resident_mb();
  const auto start = std::chrono::steady_clock::now();
  const TextData data(f("big.idx"), with_documents(1024));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(seconds.count() < 0.1);
  CHECK(data.examples() == (kDocuments * kLength - 1) / 1024);
  const Permutation order(data.examples(), 1, 0);
  double most = 0;
  for (int64_t i = 0; i < 3000; ++i) {  // 64 KiB each, were nothing given back
    read_field<int32_t>(data, order(i), "inputs");
    if (i % 10 == 0) read_field<int32_t>(data, order(i), "positions");
    if (i % 100 == 0) most = std::max(most, resident_mb() - before);
  }
  CHECK(most < 100);
}

}  // namespace TESSERA_FILE
}  // namespace tessera
