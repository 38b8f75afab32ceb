// Safetensors files and the directory of checkpoints, without a Session. Error messages are checked
// as a whole; DIR stands for the test's folder.
#include "tessera/safetensors.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <random>

#include "support/catch.h"
#include "support/io_folder.h"
#include "tessera/checkpoint.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using Metadata = std::map<std::string, std::string>;

/// A file with any header in front of `data`.
std::string with_header(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

/// A header entry: U8 of one size.
std::string entry(const std::string& name, int size, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(size) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

void write_checkpoint(const std::string& path, const Metadata& metadata) {
  SafetensorsWriter writer(path, {{"w", DType::float32, {2, 1}}}, metadata);
  const float values[] = {1, 2};
  writer.write("w", values, 8);
  writer.finish();
}

Metadata checkpoint_metadata(int step, int serial) {
  return {{"format_version", "1"},
          {"step", std::to_string(step)},
          {"serial", std::to_string(serial)},
          {"dims", R"({"w": ["rows", "cols"]})"}};
}

TEST_CASE("safetensors round trip of every dtype, whole and by ranges") {
  const Folder f;
  std::vector<TensorInfo> infos;
  std::vector<std::string> values;
  const DType all[] = {DType::uint8, DType::float64,  DType::bool_,   DType::int64,
                       DType::int32, DType::bfloat16, DType::float32, DType::float16};
  for (DType t : all) {
    infos.push_back({to_string(t), t, {3, 5}});
    values.emplace_back(static_cast<size_t>(15 * size_of(t)), '\0');
    for (char& c : values.back())
      c = static_cast<char>(values.size() * 31 + (&c - values.back().data()));
  }
  infos.push_back({"scalar", DType::float32, {}});
  values.emplace_back("\x01\x02\x03\x04");
  infos.push_back({"none", DType::float32, {2, 0}});
  values.emplace_back();
  const Metadata metadata = {{"config", "a = \"b\"\nü"}, {"step", "12"}};
  {
    SafetensorsWriter writer(f("t.safetensors"), infos, metadata);
    for (size_t i = 0; i < infos.size(); ++i) {
      const auto half = static_cast<int64_t>(values[i].size() / 2),
                 size = static_cast<int64_t>(values[i].size());
      writer.write(infos[i].name, values[i].data(), half);
      writer.write(infos[i].name, values[i].data() + half, size - half);
    }
    CHECK_FALSE(f.names().count("t.safetensors"));
    writer.finish();
  }
  CHECK(f.names() == std::set<std::string>{"t.safetensors"});
  const SafetensorsReader reader(f("t.safetensors"));
  CHECK(reader.metadata() == metadata);
  CHECK(reader.tensors().size() == infos.size());
  for (size_t i = 0; i < infos.size(); ++i) {
    const Array array = reader.read(infos[i].name);
    CHECK(array.dtype == infos[i].dtype);
    CHECK(array.sizes == infos[i].sizes);
    REQUIRE(array.bytes.size() == values[i].size());
    CHECK(std::string(reinterpret_cast<const char*>(array.bytes.data()), values[i].size()) ==
          values[i]);
  }
  char part[6];
  reader.read(reader.tensor("int32"), 17, 6, part);
  CHECK(std::string(part, 6) == values[4].substr(17, 6));
  CHECK(
      f.error([&] { reader.read(reader.tensor("int32"), 56, 5, part); }) ==
      "usage [safetensors] bytes 56 to 61 of tensor 'int32' in 'DIR/t.safetensors', which has 60");
  CHECK(f.error([&] { reader.read("scaler"); }) ==
        "io [safetensors] 'DIR/t.safetensors': holds no tensor 'scaler'; did you mean 'scalar'?");
  const std::string bytes = f.read("t.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  CHECK(header % 8 == 0);
}

TEST_CASE("damaged safetensors files are refused with the reason") {
  const Folder f;
  auto refused = [&](const std::string& bytes) {
    f.write("x", bytes);
    return f.error([&] { SafetensorsReader(f("x")); });
  };
  const std::string in = "io [safetensors] 'DIR/x': ";
  auto header = [&](const std::string& entries) {
    return refused(with_header("{" + entries + "}", "abcdef"));
  };
  CHECK(header(entry("a", 2, 0, 2) + "," + entry("b", 4, 2, 6)) == "no error");
  CHECK(f.error([&] { SafetensorsReader(f("no")); }) ==
        "io [safetensors] cannot open 'DIR/no': No such file or directory; check the path");
  CHECK(refused("1234567") ==
        in + "has 7 bytes, but a safetensors file begins with 8 bytes of header length");
  CHECK(refused(std::string("\x20\0\0\0\0\0\0\0{}", 10)) ==
        in + "announces a header of 32 bytes but has only 2 behind its length; it is truncated");
  CHECK(refused("some text that is long enough") ==
        in + "announces a header of 8675467939688574835 bytes; at most 100000000 are allowed; is "
             "it a safetensors file?");
  CHECK(refused(with_header("{\"a\":", "")).find(in + "the header of 5 bytes is not JSON (") == 0);
  CHECK(refused(with_header("[1]", "")) == in + "the header of 3 bytes is not a JSON object");
  CHECK(header("\"a\":[]") ==
        in + "the header entry of tensor 'a' needs dtype, shape and data_offsets");
  CHECK(header("\"a\":{\"dtype\":\"F8\",\"shape\":[6],\"data_offsets\":[0,6]}") ==
        in + "tensor 'a' has the dtype 'F8'; Tessera reads F32 F64 BF16 I32 I64 U8 BOOL F16; "
             "convert the file first");
  CHECK(header("\"a\":{\"dtype\":\"U8\",\"shape\":6,\"data_offsets\":[0,6]}") ==
        in + "the shape of tensor 'a' must be a list, and its data_offsets a list of two");
  CHECK(header("\"a\":{\"dtype\":\"U8\",\"shape\":[-6],\"data_offsets\":[0,6]}") ==
        in + "a size of tensor 'a' is -6, not an integer from 0 to 2^63 - 1");
  CHECK(header("\"a\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[0,6.5]}") ==
        in + "the end offset of tensor 'a' is 6.5, not an integer from 0 to 2^63 - 1");
  CHECK(header(entry("a", 5, 0, 6)) ==
        in + "tensor 'a' is U8 of sizes [5], 5 bytes, but its data_offsets are 0 to 6");
  CHECK(header(
            "\"a\":{\"dtype\":\"I64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,6]}") ==
        in + "tensor 'a' is I64 of sizes [4294967296, 4294967296], too large, but its data_offsets "
             "are 0 to 6");
  CHECK(header(entry("a", 7, 0, 7)) ==
        in +
            "tensor 'a' has the bytes 0 to 7, but only 6 follow the header; the file is truncated");
  CHECK(header(entry("a", 4, 0, 4) + "," + entry("b", 3, 3, 6)) ==
        in + "tensor 'b' begins at byte 3, inside of 'a', which ends at 4");
  CHECK(header(entry("a", 2, 0, 2) + "," + entry("b", 3, 3, 6)) ==
        in + "the bytes 2 to 3 in front of tensor 'b' belong to no tensor");
  CHECK(header(entry("a", 5, 0, 5)) ==
        in + "the bytes 5 to 6 at the end of the file belong to no tensor");
  CHECK(header(entry("a", 6, 0, 6) + "," + entry("a", 6, 0, 6)) ==
        in + "the header names 'a' twice");
  CHECK(header("\"a\":{\"dtype\":\"U8\",\"shape\":" + std::string(1000000, '[')) ==
        in + "its header nests more than 8 brackets");
  CHECK(header("\"__metadata__\":null," + entry("a", 6, 0, 6)) == "no error");
  CHECK(header("\"__metadata__\":3") == in + "its __metadata__ is not a JSON object");
  CHECK(header("\"__metadata__\":{\"k\":3}") ==
        in + "the value of 'k' in __metadata__ is not a string");
}

TEST_CASE("2,000 random byte flips are refused or read") {
  const Folder f;
  write_checkpoint(f("good"), checkpoint_metadata(3, 1));
  const std::string good = f.read("good");
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = good;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    f.write("bad", bytes);
    try {
      const SafetensorsReader reader(f("bad"));
      for (const TensorInfo& t : reader.tensors())
        CHECK(static_cast<int64_t>(reader.read(t.name).bytes.size()) == t.bytes());
      read_checkpoint(f("bad"));
      read_tensor(f("bad"), "w");
    } catch (const Error& e) {
      ++refused;
      CHECK(e.kind() == ErrorKind::io);
    }
  }
  CHECK(refused > 1000);
  CHECK(refused < 2000);
}

TEST_CASE("a writer takes what it announced and nothing else") {
  const Folder f;
  auto writer = [&](std::vector<TensorInfo> infos) { SafetensorsWriter(f("w"), infos, {}); };
  const std::string in = "usage [safetensors] 'DIR/w': ";
  CHECK(f.error([&] {
    writer({{"__metadata__", DType::uint8, {1}}});
  }) == in + "a tensor cannot be called '__metadata__'");
  CHECK(f.error([&] {
    writer({{"a", DType::uint8, {1}}, {"a", DType::uint8, {1}}});
  }) == in + "two tensors are called 'a'");
  CHECK(f.error([&] { writer({{"a", DType::uint8, {-1}}}); }) == in + "tensor 'a' has the size -1");
  CHECK(f.error([&] {
    writer({{"a", DType::int64, {INT64_MAX}}});
  }) == in + "tensor 'a' of sizes [9223372036854775807] is too large for a file");
  CHECK(f.error([&] {
           writer({{"\xff", DType::uint8, {1}}});
         }).find(in + "names and metadata must be UTF-8 (") == 0);
  CHECK(f.error([&] {
    SafetensorsWriter(f("w"), {}, {{"k", std::string(100'000'000, 'x')}});
  }) == in +
            "a header of 100000032 bytes, for 0 tensors and 1 metadata entries; at most 100000000");
  CHECK(f.error([&] { SafetensorsWriter(f("no/w"), {}); }) ==
        "io [safetensors] cannot create 'DIR/no/w' (0 bytes of tensors): No such file or "
        "directory; check the directory and "
        "its permissions");
  {
    SafetensorsWriter w(f("w"), {{"a", DType::uint8, {2}}, {"b", DType::uint8, {2}}});
    CHECK(f.error([&] { w.write("b", "xy", 2); }) ==
          in + "tensor 'b' is written, but 'a' is next; write the tensors in the order given to "
               "the constructor");
    CHECK(f.error([&] { w.write("a", "xyz", 3); }) ==
          in + "3 bytes for tensor 'a', which has 2 to come");
    w.write("a", "xy", 2);
    CHECK(f.error([&] { w.finish(); }) == in + "tensor 'b' lacks 2 bytes");
    w.write("b", "xy", 2);
    CHECK(f.error([&] { w.write("c", "x", 1); }) ==
          in + "tensor 'c' is written, but none is next; write the tensors in the order given to "
               "the constructor");
    w.finish();
    CHECK(f.error([&] { w.write("c", "x", 1); }) ==
          "usage [safetensors] 'DIR/w' is finished or failed and takes no more");
    CHECK(f.error([&] { w.finish(); }) ==
          "usage [safetensors] 'DIR/w' is finished or failed already");
  }
  CHECK(f.names() == std::set<std::string>{"w"});
}

TEST_CASE("a write that fails leaves the older file and no temporary one") {
  const Folder f;
  f.write("w", "older");
  { SafetensorsWriter unfinished(f("w"), {{"a", DType::uint8, {2}}}); }
  CHECK(f.names() == std::set<std::string>{"w"});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = f.error([&] {
    SafetensorsWriter writer(f("w"), {{"a", DType::uint8, {10000}}});
    writer.write("a", std::string(10000, 'x').data(), 10000);
  });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  CHECK(message ==
        "io [safetensors] cannot write 'DIR/w' (10000 bytes of tensors): File too large; make room "
        "or choose another "
        "directory");
  CHECK(f.names() == std::set<std::string>{"w"});
  CHECK(f.read("w") == "older");
}

TEST_CASE("the newest checkpoint is the one saved last that can be read") {
  const Folder f;
  CHECK_FALSE(find_latest(f("none")).has_value());
  CHECK_FALSE(find_latest(f.dir).has_value());
  f.write("step-00000099.safetensors.tmp-1-0", "x");
  f.write("step-abc.safetensors", "x");
  CHECK_FALSE(find_latest(f.dir).has_value());
  f.write("step-00000030.safetensors", "cut");
  CHECK(f.error([&] { find_latest(f.dir); }) ==
        "io [checkpoint] none of the 1 checkpoint(s) in 'DIR' can be read; move them away to start "
        "over; the latest: "
        "[safetensors] 'DIR/step-00000030.safetensors': has 3 bytes, but a safetensors file begins "
        "with 8 bytes of header "
        "length");
  write_checkpoint(f("step-00000020.safetensors"), checkpoint_metadata(20, 2));
  write_checkpoint(f("step-00000040.safetensors"), checkpoint_metadata(40, 1));
  const auto latest = find_latest(f.dir);
  REQUIRE(latest.has_value());
  CHECK(latest->step == 20);
  CHECK(latest->path == f("step-00000020.safetensors"));
  CHECK(latest->warning.find("skipped a later checkpoint that cannot be read: [safetensors] '") ==
        0);
  const Array w = read_tensor(latest->path, "w");
  CHECK(w.dims == std::vector<std::string>{"rows", "cols"});
  CHECK(w.sizes == std::vector<int64_t>{2, 1});
  CHECK(w.at(1) == 2);
}

TEST_CASE("files that are not checkpoints are refused") {
  const Folder f;
  auto refused = [&](const std::string& key, const std::string& value) {
    Metadata metadata = checkpoint_metadata(1, 1);
    metadata[key] = value;
    if (value == "-") metadata.erase(key);
    write_checkpoint(f("c"), metadata);
    return f.error([&] { read_checkpoint(f("c")), read_tensor(f("c"), "w"); });
  };
  CHECK(refused("more", "kept") == "no error");
  CHECK(refused("format_version", "-") ==
        "io [checkpoint] 'DIR/c' is not a checkpoint: its metadata 'format_version' is missing");
  CHECK(refused("format_version", "2") ==
        "io [checkpoint] 'DIR/c' has the format version 2, but this build reads 1 and directories "
        "of version 2; use the version of Tessera that wrote it");
  CHECK(refused("step", "x1") ==
        "io [checkpoint] 'DIR/c' is not a checkpoint: its metadata 'step' is 'x1'");
  CHECK(refused("dims", "[") ==
        "io [checkpoint] 'DIR/c': the metadata 'dims' is not a JSON object");
  CHECK(refused("dims", "{\"w\": [\"rows\"]}") ==
        "io [checkpoint] the dim names of tensor 'w' do not fit its 2 sizes");
}

TEST_CASE("one job holds a checkpoint directory") {
  const Folder f;
  Cluster cluster = Cluster::threads(1);
  CHECK(f.error([&] { Checkpoints(cluster, f("c"), 0); }) ==
        "usage [checkpoint] keep = 0; at least 1 checkpoint must be kept");
  f.write("file", "");
  CHECK(f.error([&] { Checkpoints(cluster, f("file/c")); }) ==
        "io cannot make the folder 'DIR/file/c': Not a directory; choose another path");
  {
    std::optional<Checkpoints> first(std::in_place, cluster, f("c"));
    f.write("c/step-00000001.safetensors.tmp-1-0", "x");
    f.write("c/notes.tmp-1", "x");
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    CHECK(f.error([&] { Checkpoints(cluster, f("c")); }) ==
          "io [checkpoint] 'DIR/c' is in use by process " + std::to_string(getpid()) + " on " +
              host + "; wait for it, stop it, or save to another directory");
    CHECK_FALSE(first->latest().has_value());
  }
  CHECK(std::filesystem::exists(f("c/step-00000001.safetensors.tmp-1-0")));
  Checkpoints second(cluster, f("c"));
  CHECK_FALSE(std::filesystem::exists(f("c/step-00000001.safetensors.tmp-1-0")));
  CHECK(std::filesystem::exists(f("c/notes.tmp-1")));
}

}  // namespace TESSERA_FILE
}  // namespace tessera
