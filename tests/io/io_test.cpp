// Data sources, safetensors files and the directory of checkpoints, without a Session. Every error
// message is checked as a whole; DIR stands for the test's folder.
#include <zlib.h>

#include <set>

#include "support/catch.h"
#include "support/io_folder.h"
#include "tessera/data.h"

namespace tessera {
namespace TESSERA_FILE {

namespace fs = std::filesystem;
using test::Folder;

std::vector<int32_t> read_text(const DataSource& text, int64_t example, int field, int64_t offset,
                               int64_t extent) {
  std::vector<int32_t> to(static_cast<size_t>(extent));
  text.read(example, field, {to.data(), {offset}, {extent}, {1}});
  return to;
}

std::string idx_header(uint8_t dims, const std::vector<uint32_t>& sizes) {
  std::string bytes = {0, 0, 8, static_cast<char>(dims)};
  for (uint32_t s : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(s >> shift);
  }
  return bytes;
}

std::string gzipped(const Folder& folder, const std::string& name, const std::string& bytes) {
  gzFile file = gzopen(folder(name).c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return folder(name);
}

TEST_CASE("text windows share one token and read any part") {
  const Folder folder;
  const TextData text(folder.write("t", "abcdefghij"), {.length = 3});
  CHECK(text.examples() == 3);
  CHECK(text.vocabulary() == 256);
  CHECK(text.fields()[0].name == "inputs");
  CHECK(text.fields()[1].name == "targets");
  CHECK(text.fields()[0].dims == std::vector{Dim("length", 3)});
  CHECK(read_text(text, 0, 0, 0, 3) == std::vector<int32_t>{'a', 'b', 'c'});
  CHECK(read_text(text, 0, 1, 0, 3) == std::vector<int32_t>{'b', 'c', 'd'});
  CHECK(read_text(text, 2, 0, 0, 3) == std::vector<int32_t>{'g', 'h', 'i'});
  CHECK(read_text(text, 2, 1, 1, 2) == std::vector<int32_t>{'i', 'j'});
  std::vector<int32_t> strided(6, -1);
  text.read(1, 0, {strided.data(), {1}, {2}, {3}});
  CHECK(strided == std::vector<int32_t>{'e', -1, -1, 'f', -1, -1});
}

TEST_CASE("parts of a text are disjoint, and wide tokens are little-endian") {
  const Folder folder;
  std::string bytes(1000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 251);
  const std::string path = folder.write("t", bytes);
  const TextData train(path, {.length = 9, .last = 0.9}), held(path, {.length = 9, .first = 0.9});
  CHECK(train.examples() == (900 - 1) / 9);
  CHECK(held.examples() == (100 - 1) / 9);
  CHECK(read_text(held, 0, 0, 0, 1)[0] == 900 % 251);
  const TextData wide(folder.write("w", std::string("\x01\x00\x02\x01\xff\xff", 6)),
                      {.length = 2, .token_bytes = 2});
  CHECK(wide.vocabulary() == 65536);
  CHECK(read_text(wide, 0, 0, 0, 2) == std::vector<int32_t>{1, 258});
  CHECK(read_text(wide, 0, 1, 0, 2) == std::vector<int32_t>{258, 65535});
  const std::string four("\x01\x00\x00\x00\x02\x01\x02\x00\xff\xff\xff\x7f\x00\x00\x00\x80", 16);
  const TextData wider(folder.write("x", four), {.length = 1, .token_bytes = 4});
  CHECK(wider.vocabulary() == int64_t{1} << 31);
  CHECK(read_text(wider, 0, 0, 0, 1) == std::vector<int32_t>{1});
  CHECK(read_text(wider, 1, 0, 0, 1) == std::vector<int32_t>{131330});
  CHECK(read_text(wider, 1, 1, 0, 1) == std::vector<int32_t>{2147483647});
  CHECK(folder.error([&] { read_text(wider, 2, 1, 0, 1); }) ==
        "io [data] token 3 of 'DIR/x' (byte 12) is 2147483648, but the vocabulary has 2147483648; "
        "use the vocabulary of the file");
}

TEST_CASE("errors of texts") {
  const Folder f;
  auto text = [&](const std::string& name, TextOptions o) {
    return f.error([&] { TextData(f(name), o); });
  };
  f.write("empty", "");
  f.write("short", "abcdefghij");
  f.write("odd", "abc");
  CHECK(text("none", {}) ==
        "io [data] cannot open 'DIR/none': No such file or directory; check the path");
  CHECK(f.error([&] { TextData{f.dir}; }) ==
        "io [data] 'DIR' is not a regular file; give the path of a file");
  CHECK(text("empty", {}) ==
        "io [data] 'DIR/empty' is empty; windows of length 64 need at least 65 tokens");
  CHECK(text("short", {.length = 9, .last = 0.9}) ==
        "io [data] 'DIR/short' has 10 tokens, 9 of them from 0 to 0.9 of the file, but one window "
        "of length 9 needs 10; "
        "use a longer text, a larger part of it, or a shorter length");
  CHECK(text("odd", {.length = 1, .token_bytes = 2}) ==
        "io [data] 'DIR/odd' has 3 bytes, which are not whole uint16 tokens; the file is "
        "truncated, or a text of bytes "
        "(token_bytes = 1)");
  CHECK(text("short", {.length = 1, .token_bytes = 4}) ==
        "io [data] 'DIR/short' has 10 bytes, which are not whole uint32 tokens; the file is "
        "truncated, or a text of bytes (token_bytes = 1)");
  std::string book;
  while (book.size() < 200) book += "It is a way I have, na\xC3\xAFve.\n";
  f.write("book", book.substr(0, 200));
  for (const int bytes : {2, 4})
    CHECK(text("book", {.length = 1, .token_bytes = bytes})
              .find("'DIR/book' is a text, but tokens of " + std::to_string(bytes) +
                    " bytes are read from it; make tokens of it: tessera tokenize 'DIR/book'") !=
          std::string::npos);
  f.write("tokens", std::string(100, 'a') + std::string(100, '\0'));
  CHECK(text("tokens", {.length = 1, .token_bytes = 2}) == "no error");
  CHECK(text("short", {.length = 0}) ==
        "usage [data] a text window of length 0; it has at least 1 token");
  CHECK(text("short", {.token_bytes = 3}) ==
        "usage [data] tokens of 3 bytes; a text has 1 (bytes), 2 (little-endian uint16) or 4 "
        "(uint32)");
  CHECK(text("short", {.first = 0.5, .last = 0.5}) ==
        "usage [data] the part 0.5 to 0.5 of a text; it needs 0 <= first < last <= 1");
  CHECK(text("short", {.vocabulary = 300}) ==
        "usage [data] a vocabulary of 300; tokens of 1 byte(s) have 1 to 256 values (0 for all)");
  const TextData small(f("short"), {.length = 4, .vocabulary = 'c'});
  CHECK(f.error([&] { read_text(small, 0, 0, 0, 4); }) ==
        "io [data] token 2 of 'DIR/short' (byte 2) is 99, but the vocabulary has 99; use the "
        "vocabulary of the file");
}

TEST_CASE("IDX files, plain and gzip") {
  const Folder f;
  std::string images = idx_header(3, {3, 2, 4});
  for (int i = 0; i < 24; ++i) images += static_cast<char>(i * 10);
  const std::string labels = idx_header(1, {3}) + std::string("\x07\x00\x09", 3);
  const std::string plain = f.write("i", images), zipped = gzipped(f, "l.gz", labels);
  const IdxData scaled(plain, zipped);
  CHECK(scaled.examples() == 3);
  CHECK(scaled.fields()[0].dims == std::vector{Dim("rows", 2), Dim("cols", 4)});
  CHECK(scaled.fields()[1].dims.empty());
  std::vector<float> part(4);
  scaled.read(1, 0, {part.data(), {1, 1}, {1, 2}, {4, 2}});  // row 1, columns 1 and 2 of image 1
  CHECK(part == std::vector<float>{130 / 255.0f, 0, 140 / 255.0f, 0});
  int32_t label = 0;
  scaled.read(2, 1, {&label, {}, {}, {}});
  CHECK(label == 9);
  const IdxData bytes(gzipped(f, "i.gz", images), f.write("l", labels),
                      {.image_dtype = DType::uint8});
  std::vector<uint8_t> raw(8);
  bytes.read(2, 0, {raw.data(), {0, 0}, {2, 4}, {1, 2}});  // transposed
  CHECK(raw == std::vector<uint8_t>{160, 200, 170, 210, 180, 220, 190, 230});
}

TEST_CASE("IDX files of images with channels") {
  const Folder f;
  std::string images = idx_header(4, {2, 3, 2, 2});
  for (int i = 0; i < 24; ++i) images += static_cast<char>(i);
  const IdxData data(f.write("i", images), f.write("l", idx_header(1, {2}) + "xy"),
                     {.image_dtype = DType::uint8});
  CHECK(data.fields()[0].dims == std::vector{Dim("channels", 3), Dim("rows", 2), Dim("cols", 2)});
  std::vector<uint8_t> part(4);
  data.read(1, 0, {part.data(), {1, 0, 1}, {2, 2, 1}, {2, 1, 1}});  // column 1 of channels 1 and 2
  CHECK(part == std::vector<uint8_t>{17, 19, 21, 23});
  f.write("none", idx_header(4, {2, 0, 28, 28}));
  CHECK(f.error([&] { IdxData(f("none"), f("l")); }) ==
        "io [data] 'DIR/none' holds 2 images of 0 x 28 x 28; nothing can be learnt from it");
}

TEST_CASE("errors of IDX files") {
  const Folder f;
  const std::string images = idx_header(3, {2, 1, 3}) + "abcdef",
                    labels = idx_header(1, {2}) + "xy";
  f.write("i", images), f.write("l", labels), f.write("empty", ""), f.write("text", "some text");
  f.write("stub", images.substr(0, 10)), f.write("cut", images.substr(0, 20)),
      f.write("long", images + "g");
  f.write("three", idx_header(1, {3}) + "xyz"), f.write("none", idx_header(3, {0, 28, 28}));
  f.write("huge", idx_header(3, {0xffffffffu, 0xffffffffu, 0xffffffffu}) + "abc");
  f.write("many", idx_header(1, {0xffffffffu}) + "abc");
  f.write("cut.gz", f.read(fs::path(gzipped(f, "z", images)).filename()).substr(0, 25));
  std::string damaged = f.read("z");
  damaged[damaged.size() - 6] ^= 1;  // the checksum
  f.write("bad.gz", damaged);
  auto idx = [&](const std::string& i, const std::string& l) {
    return f.error([&] { IdxData(f(i), f(l)); });
  };
  CHECK(idx("i", "l") == "no error");
  CHECK(idx("no", "l") ==
        "io [data] cannot open 'DIR/no': No such file or directory; check the path");
  CHECK(idx("empty", "l") ==
        "io [data] 'DIR/empty' is empty; an IDX file begins with a magic number");
  CHECK(idx("text", "l") ==
        "io [data] 'DIR/text' begins with 0x736f6d65, but an IDX file of images begins with "
        "0x00000803; it is not an IDX "
        "file of uint8");
  CHECK(idx("l", "i") ==
        "io [data] 'DIR/l' begins with 0x00000801, but an IDX file of images begins with "
        "0x00000803; are images and labels "
        "exchanged?");
  CHECK(idx("stub", "l") ==
        "io [data] 'DIR/stub' ends within the number of rows of its IDX header; the file is "
        "truncated, fetch it again");
  CHECK(idx("cut", "l") ==
        "io [data] 'DIR/cut' should hold 2 x 1 x 3 = 6 bytes behind its header but has 4; the file "
        "is truncated, fetch it "
        "again");
  CHECK(idx("long", "l") ==
        "io [data] 'DIR/long' has more than the 2 x 1 x 3 = 6 bytes that its header promises");
  CHECK(idx("i", "three") ==
        "io [data] 'DIR/i' has 2 images but 'DIR/three' has 3 labels; give two files of one data "
        "set");
  CHECK(idx("none", "l") ==
        "io [data] 'DIR/none' holds 0 images of 28 x 28; nothing can be learnt from it");
  CHECK(idx("huge", "many") ==
        "io [data] 'DIR/huge' should hold 4294967295 x 4294967295 x 4294967295 = "
        "9223372036854775807 bytes behind its "
        "header but has 3; the file is truncated, fetch it again");
  CHECK(idx("cut.gz", "l").find("; the file is truncated, fetch it again") != std::string::npos);
  CHECK(idx("bad.gz", "l").find("io [data] cannot decompress 'DIR/bad.gz': ") == 0);
  CHECK(f.error([&] { IdxData(f("i"), f("l"), {.image_dtype = DType::int32}); }) ==
        "usage [data] images as int32; they are read as float32 (scaled to 0 .. 1) or uint8");
}

TEST_CASE("permutations are bijections that depend on seed and epoch") {
  for (int64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::set<int64_t> images;
    for (int64_t i = 0; i < n; ++i) images.insert(Permutation(n, 7, 3)(i));
    CHECK(static_cast<int64_t>(images.size()) == n);
    CHECK((*images.begin() == 0 && *images.rbegin() == n - 1));
  }
  int same = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t a = Permutation(1000, 1, 0)(i);
    same += (a == i) + (a == Permutation(1000, 1, 1)(i)) + (a == Permutation(1000, 2, 0)(i));
    CHECK(Permutation(INT64_MAX, 1, 0)(INT64_MAX - 1 - i) >= 0);
  }
  CHECK(same < 20);
  CHECK(Permutation(1000, 1, 0)(0) == Permutation(1000, 1, 0)(0));
}

TEST_CASE("batches are a pure function of the step") {
  const Folder f;
  const TextData text(f.write("t", std::string(23, 'x')), {.length = 2});  // 11 examples
  const Batcher train(text, 4, {.seed = 5});
  std::vector<int64_t> stream;
  for (int64_t s = 0; s < 11; ++s) {
    CHECK(train.rows(s) == 4);
    for (int64_t r = 0; r < 4; ++r) stream.push_back(train.example(s, r));
  }
  for (size_t epoch = 0; epoch < 4; ++epoch) {
    const auto begin = stream.begin() + static_cast<long>(11 * epoch);
    CHECK(std::set<int64_t>(begin, begin + 11).size() == 11);
  }
  BatchOptions once = BatchOptions::evaluation();
  CHECK(f.error([&] { Batcher(text, 4, once); }) ==
        "usage [data] 11 examples in batches of 4 end with a partial batch of 3; make the batch "
        "dim of the model "
        "Dim::bounded and say `bounded`, leave these 3 out with `drop_tail`, or use a batch that "
        "divides 11");
  once.bounded = true;
  const Batcher all(text, 4, once);
  CHECK(all.steps() == 3);
  CHECK(all.rows(2) == 3);
  CHECK(all.example(2, 1) == 9);
  CHECK(f.error([&] { all.rows(3); }) ==
        "usage [data] there is no batch of step 3; one pass has the steps 0 to 2");
  CHECK(f.error([&] { all.rows(-1); }) ==
        "usage [data] there is no batch of step -1; steps begin at 0");
  once.drop_tail = true;
  CHECK(Batcher(text, 4, once).steps() == 2);
  CHECK(f.error([&] { Batcher(text, 12, once); }) ==
        "usage [data] 11 examples do not fill one batch of 12, so `drop_tail` leaves nothing; use "
        "a batch of at most 11");
  struct Nothing : DataSource {
    std::vector<DataField> none;
    const std::vector<DataField>& fields() const override { return none; }
    int64_t examples() const override { return 0; }
    void read(int64_t, int, const DataBox&) const override {}
  };
  CHECK(f.error([&] { Batcher(Nothing(), 1); }) ==
        "usage [data] the source has 0 examples; it has at least 1");
  CHECK(f.error([&] { Batcher(text, 0); }) ==
        "usage [data] a batch of 0 examples; it has at least 1");
  CHECK(f.error([&] { Permutation(0, 1, 1); }) ==
        "usage [data] a permutation of 0 elements; it has at least 1");
}

}  // namespace TESSERA_FILE
}  // namespace tessera
