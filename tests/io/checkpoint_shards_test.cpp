// Sharded checkpoints: what is written while training goes on, what damage is seen, what fits what.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>

#include "base/crc32c.h"
#include "io/checkpoint_files.h"
#include "io/manifest.h"
#include "io/shard.h"
#include "support/io_folder.h"
#include "tessera/checkpoint.h"
#include "tessera/safetensors.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::Folder;

namespace TESSERA_FILE {

/// Parameters of several ranks and kinds, and a function that changes all of them.
struct Model {
  Graph g;
  Cluster ranks;
  std::unique_ptr<Session> session;

  Model(const std::string& mesh, const std::string& layout, uint64_t seed, int64_t rows = 13)
      : ranks(Cluster::threads(Mesh::parse(mesh).size())) {
    const Dim r("rows", rows), c("cols", 10), d("depth", 3);
    std::vector<Tensor> all = {
        g.parameter("w", {r, c, d}, nn::normal(1)), g.parameter("v", {c, r}, nn::normal(1)),
        g.parameter("b", {d}, nn::normal(1)), g.parameter("s", {}, nn::normal(1))};
    Tensor sum = constant(g, 0);
    for (Tensor& t : all) {
      g.update(t, t * constant(g, 1.5) + constant(g, 0.25));
      sum = sum + sum_all(t);
    }
    session = std::make_unique<Session>(
        g, ranks,
        CompileOptions{
            Mesh::parse(mesh), Layout::parse(layout), {{"step", {sum.named("sum")}, true}}, seed});
  }
  std::map<std::string, std::string> values() {
    std::map<std::string, std::string> all;
    for (const std::string& name : session->program().stored_names()) {
      const Array x = session->fetch(name);
      all[name] = std::string(reinterpret_cast<const char*>(x.bytes.data()), x.bytes.size());
    }
    return all;
  }
};

const char* kEight = "a:4;b:2";
const char* kEightLayout = "rows:a;cols:b";

std::string save(Model& m, const Folder& f, int64_t step = 1, const std::string& to = "ck") {
  Checkpoints directory(m.ranks, f(to));
  return directory.save(*m.session, step).path;
}

void flip(const std::string& path, int64_t at) {
  const int fd = open(path.c_str(), O_RDWR);
  REQUIRE(fd >= 0);
  char c = 0;
  REQUIRE(pread(fd, &c, 1, at) == 1);
  c = static_cast<char>(c ^ 16);
  REQUIRE(pwrite(fd, &c, 1, at) == 1);
  close(fd);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("crc32c: the check value of the polynomial, in parts and by bytes") {
  CHECK(crc32c("123456789", 9) == 0xe3069283);
  CHECK(crc32c("", 0) == 0);
  CHECK(crc32c("6789", 4, crc32c("12345", 5)) == 0xe3069283);
  const std::string zeros(32, '\0');
  CHECK(crc32c(zeros.data(), 32) == 0x8a9136aa);
}

TEST_CASE("checkpoint: saved by 8 ranks, loaded by 1, 2, 3 and 6", "[checkpoint]") {
  const Folder f;
  Model eight(kEight, kEightLayout, 5);
  const std::string path = save(eight, f);
  CHECK(f.read("ck/step-00000001/manifest.json").size() > 100);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    files += entry.path().extension() == ".safetensors";
  CHECK(files == 8);
  CHECK(
      contains(verify_checkpoint(path), "4 tensors, 2096 bytes in 8 files: every checksum agrees"));
  const std::vector<std::pair<const char*, const char*>> others = {
      {"a:1", ""},           {"a:2", "rows:a"},       {"a:3", "cols:a"},
      {"a:3;b:2", "cols:b"}, {"a:3;b:2", "rows:a+b"}, {"a:6", "depth:a"}};
  for (const auto& [mesh, layout] : others) {
    INFO(mesh << " " << layout);
    Model other(mesh, layout, 6);
    CHECK(load_checkpoint(*other.session, path).step == 1);
    CHECK(other.values() == eight.values());
    other.session->run("step");  // padding is as it has to be
  }
}

TEST_CASE("checkpoint: a save has the values of when it was started", "[checkpoint]") {
  const Folder f;
  for (const int64_t staging : {Checkpoints::kStaging, int64_t{1}}) {
    INFO(staging);
    Model m("a:2", "rows:a", 5, 60000), again("a:3", "cols:a", 6, 60000);  // several chunks
    const auto before = m.values();
    Checkpoints directory(m.ranks, f("ck" + std::to_string(staging)), 3, staging);
    directory.start(*m.session, 1);
    for (int i = 0; i < 3; ++i) m.session->run("step");
    CHECK(m.values() != before);
    const auto saved = directory.finish();
    REQUIRE(saved.has_value());
    CHECK_FALSE(directory.is_saving());
    CHECK_FALSE(directory.finish().has_value());
    load_checkpoint(*again.session, saved->path);
    CHECK(again.values() == before);
  }
}

TEST_CASE("checkpoint: a flipped bit anywhere is refused, with its file and tensor",
          "[checkpoint]") {
  const Folder f;
  Model eight(kEight, kEightLayout, 5), other("a:3", "rows:a", 6);
  const std::string good = save(eight, f);
  const auto untouched = eight.values();
  std::mt19937_64 random(3);
  int in_data = 0, in_manifest = 0;
  for (int i = 0; i < 60; ++i) {
    std::filesystem::remove_all(f("bad"));
    std::filesystem::copy(good, f("bad"));
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(f("bad")))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    const std::string& file = files[random() % files.size()];
    const auto at = static_cast<int64_t>(random() % std::filesystem::file_size(file));
    flip(file, at);
    INFO(file << " at " << at);
    const std::string loaded = f.error([&] { load_checkpoint(*other.session, f("bad")); });
    const std::string verified = f.error([&] { verify_checkpoint(f("bad")); });
    CHECK(loaded.rfind("io [", 0) == 0);
    CHECK(verified.rfind("io [", 0) == 0);
    in_data += contains(verified, "is damaged in its bytes");
    in_manifest += contains(verified, "manifest");
  }
  CHECK(in_data > 10);
  CHECK(in_manifest > 0);
  load_checkpoint(*other.session, good);
  CHECK(other.values() == untouched);
}

TEST_CASE("checkpoint: a damaged block names its tensor", "[checkpoint]") {
  const Folder f;
  Model m("a:1", "", 5);
  const std::string path = save(m, f), shard = path + "/rank-00000.safetensors";
  const SafetensorsReader reader(shard);
  flip(shard, reader.data_begin() + reader.tensor("v").begin + 3);
  const std::string text = f.error([&] { verify_checkpoint(path); });
  CHECK(contains(text,
                 "io [checkpoint] 'DIR/ck/step-00000001/rank-00000.safetensors' is damaged in "
                 "its bytes"));
  CHECK(contains(text, "'v'"));
}

TEST_CASE("checkpoint: without a part or its manifest it is none", "[checkpoint]") {
  const Folder f;
  Model eight(kEight, kEightLayout, 5);
  const std::string path = save(eight, f);
  std::filesystem::rename(path + "/rank-00005.safetensors", f("away"));
  CHECK(f.error([&] { read_checkpoint(path); }) ==
        "io [checkpoint] 'DIR/ck/step-00000001/rank-00005.safetensors' is missing; this checkpoint "
        "cannot be used");
  CHECK(contains(f.error([&] { find_latest(f("ck")); }), "none of the 1 checkpoint(s)"));
  f.write("ck/step-00000001/rank-00005.safetensors", "cut");
  CHECK(contains(f.error([&] { read_checkpoint(path); }), "has 3 bytes instead of"));
  std::filesystem::remove(path + "/manifest.json");
  CHECK(contains(f.error([&] { read_checkpoint(path); }), "cannot open"));
}

TEST_CASE("checkpoint: the newest that can be read is loaded, and the user told", "[checkpoint]") {
  const Folder f;
  Model m("a:2", "rows:a", 5), other("a:1", "", 6);
  std::map<std::string, std::string> first;
  {
    Checkpoints directory(m.ranks, f("ck"));
    directory.save(*m.session, 1);
    first = m.values();
    m.session->run("step");
    directory.save(*m.session, 2);
  }
  const std::string shard = f("ck/step-00000002/rank-00001.safetensors");
  flip(shard, SafetensorsReader(shard).data_begin() + 8);
  Checkpoints directory(other.ranks, f("ck"));
  const auto loaded = directory.load_latest(*other.session);
  REQUIRE(loaded.has_value());
  CHECK(loaded->step == 1);
  CHECK(contains(loaded->warning, "cannot be loaded: [checkpoint] '"));
  CHECK(other.values() == first);
  // It goes on from there, and what it saves is the newest, whatever the steps say.
  directory.save(*other.session, 2);
  CHECK(find_latest(f("ck"))->path == f("ck/step-00000002-2"));
  CHECK(find_latest(f("ck"))->metadata.at("serial") == "3");
}

TEST_CASE("checkpoint: clocks of hosts do not matter", "[checkpoint]") {
  const Folder f;
  Model m("a:2", "rows:a", 5);
  Checkpoints directory(m.ranks, f("ck"), 2);
  directory.save(*m.session, 1);
  directory.save(*m.session, 2);
  const auto now = std::filesystem::file_time_type::clock::now();
  const auto year = std::chrono::hours(24 * 365);
  for (const auto& [name, time] :
       {std::pair("ck/step-00000001", now + year), {"ck/step-00000002", now - year}}) {
    for (const auto& file : std::filesystem::directory_iterator(f(name)))
      std::filesystem::last_write_time(file.path(), time);
    std::filesystem::last_write_time(f(name), time);
  }
  CHECK(directory.latest()->step == 2);
  directory.save(*m.session, 3);
  CHECK_FALSE(std::filesystem::exists(f("ck/step-00000001")));  // the first that was saved goes
  CHECK(directory.load_latest(*m.session)->step == 3);
}

TEST_CASE("checkpoint: parts of a save that died are no checkpoint", "[checkpoint]") {
  const Folder f;
  Model m("a:2", "rows:a", 5);
  const std::string good = save(m, f);
  std::filesystem::copy(good, f("ck/step-00000007.tmp-12"));
  CHECK(find_latest(f("ck"))->step == 1);
  Checkpoints directory(m.ranks, f("ck"), 2);
  CHECK(f.names() == std::set<std::string>{"ck"});
  CHECK_FALSE(std::filesystem::exists(f("ck/step-00000007.tmp-12")));
  for (int64_t step = 2; step < 6; ++step) directory.save(*m.session, step);
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(f("ck")))
    left.insert(entry.path().filename());
  CHECK(left == std::set<std::string>{"lock", "step-00000004", "step-00000005"});
}

TEST_CASE("checkpoint: a full disk during a save", "[checkpoint]") {
  const Folder f;
  Model m("a:2", "rows:a", 5, 20000);
  Checkpoints directory(m.ranks, f("ck"));
  const auto before = m.values();
  directory.save(*m.session, 1);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  auto* handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{65536, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  directory.start(*m.session, 2);  // the failure is that of the save, told by whoever waits for it
  const std::string text = f.error([&] { directory.finish(); });
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, handler);
  CHECK(text.rfind("io [safetensors] cannot write 'DIR/ck/step-00000002.tmp-", 0) == 0);
  CHECK(contains(text, "make room"));
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(f("ck")))
    left.insert(entry.path().filename());
  CHECK(left == std::set<std::string>{"lock", "step-00000001"});
  CHECK(directory.save(*m.session, 3).step == 3);
  Model other("a:1", "", 6, 20000);
  load_checkpoint(*other.session, f("ck/step-00000001"));
  CHECK(other.values() == before);
}

TEST_CASE("checkpoint: a directory that has vanished", "[checkpoint]") {
  const Folder f;
  Model m("a:2", "rows:a", 5);
  Checkpoints directory(m.ranks, f("ck"));
  std::filesystem::remove_all(f("ck"));
  const std::string text = f.error([&] { directory.save(*m.session, 1); });
  CHECK(contains(text, "io [checkpoint] cannot make the directory 'DIR/ck/step-00000001.tmp-"));
  CHECK(contains(text, "check that 'DIR/ck' exists, can be written and has room"));
  CHECK(contains(f.error([&] { Checkpoints(m.ranks, "/proc"); }),
                 "io [checkpoint] cannot open '/proc/lock'"));
}

TEST_CASE("checkpoint: the lock of a directory is not fooled", "[checkpoint]") {
  const Folder f;
  Model m("a:2", "rows:a", 5);
  f.write("precious", "what a link would have it overwrite");
  std::filesystem::create_directory(f("ck"));
  std::filesystem::create_symlink(f("precious"), f("ck/lock"));
  CHECK(contains(f.error([&] { Checkpoints(m.ranks, f("ck")); }),
                 "io [checkpoint] cannot open 'DIR/ck/lock': Too many levels of symbolic links; it "
                 "is a link"));
  std::filesystem::remove(f("ck/lock"));
  std::filesystem::create_hard_link(f("precious"), f("ck/lock"));
  CHECK(contains(f.error([&] { Checkpoints(m.ranks, f("ck")); }),
                 "'DIR/ck/lock' is no regular file with one name"));
  CHECK(f.read("precious") == "what a link would have it overwrite");
  std::filesystem::remove(f("ck/lock"));
  const Checkpoints first(m.ranks, f("ck"));
  std::filesystem::remove(f("ck/lock"));
  CHECK(contains(f.error([&] { Checkpoints(m.ranks, f("ck")); }),
                 "io [checkpoint] 'DIR/ck' is in use by another process"));
}

TEST_CASE("checkpoint: no link in its directory is written through", "[checkpoint]") {
  namespace fs = std::filesystem;
  const Folder f;
  Model m("a:2", "rows:a", 5);
  f.write("precious", "what a link would have it overwrite");
  fs::create_directory(f("elsewhere"));
  f.write("elsewhere/kept", "what a link would have it remove");
  const auto untouched = [&] {
    CHECK(f.read("precious") == "what a link would have it overwrite");
    CHECK(f.read("elsewhere/kept") == "what a link would have it remove");
    CHECK(std::distance(fs::directory_iterator(f("elsewhere")), fs::directory_iterator()) == 1);
    CHECK(!fs::exists(f("nowhere")));
  };
  Checkpoints directory(m.ranks, f("ck"), 1);
  fs::create_symlink(f("nowhere"), f("ck/step-00000001"));
  fs::create_symlink(f("elsewhere"), f("ck/step-00000001-2"));
  fs::create_symlink(f("elsewhere"), fmt::format("{}.tmp-{}", f("ck/step-00000001-3"), getpid()));
  CHECK(directory.save(*m.session, 1).path == f("ck/step-00000001-3"));
  untouched();
  fs::create_symlink(f("elsewhere"), f("ck/step-00000001-3.tmp-removed"));
  CHECK(contains(directory.save(*m.session, 2).warning, "cannot remove the old"));
  untouched();
  fs::remove(f("ck/step-00000001-3.tmp-removed"));
  CHECK(directory.save(*m.session, 3).warning.empty());
  // What is planted in the temporary directory while a checkpoint is written.
  const std::string shard = shard_name(0), temporary = f("ck/step-00000004.tmp-1");
  const std::vector<ShardPiece> none;
  fs::create_directory(temporary);
  { ShardWriter(temporary + "/" + shard, none).finish(); }
  fs::create_symlink(f("precious"), temporary + "/" + kManifestName);
  const Checkpoint next{f("ck/step-00000004"), 4, {{kSerialKey, "9"}}, ""};
  CHECK(f.error([&] { publish_checkpoint(temporary, {shard}, next, f("ck"), 1); }) ==
        "io [checkpoint] cannot create 'DIR/ck/step-00000004.tmp-1/manifest.json': File exists; "
        "check the directory and its permissions");
  fs::create_symlink(f("precious"), f("ck/link.safetensors"));
  { ShardWriter(f("ck/link.safetensors"), none).finish(); }  // the link itself is replaced
  CHECK(!fs::is_symlink(f("ck/link.safetensors")));
  fs::create_symlink(f("nowhere"), f("converted"));
  CHECK(contains(
      f.error([&] { convert_checkpoint(directory.save(*m.session, 5).path, f("converted"), {}); }),
      "'DIR/converted' exists already"));
  untouched();
}

TEST_CASE("checkpoint: format 1 is still read", "[checkpoint]") {
  const Folder f;
  Model m("a:2", "rows:a", 5), other("a:3", "cols:a", 6);
  std::vector<TensorInfo> infos;
  for (const std::string& name : m.session->program().stored_names()) {
    TensorInfo info;
    info.name = name;
    info.sizes = m.session->shape_of(name).sizes;
    infos.push_back(info);
  }
  std::filesystem::create_directory(f("ck"));
  SafetensorsWriter file(
      f("ck/step-00000009.safetensors"), infos,
      {{"format_version", "1"},
       {"step", "9"},
       {"serial", "4"},
       {"dims", R"({"w":["rows","cols","depth"],"v":["cols","rows"],"b":["depth"],"s":[]})"}});
  for (const TensorInfo& info : infos) {
    const std::string bytes = m.values().at(info.name);
    file.write(info.name, bytes.data(), std::ssize(bytes));
  }
  file.finish();
  Checkpoints directory(other.ranks, f("ck"), 1);
  CHECK(directory.load_latest(*other.session)->step == 9);
  CHECK(other.values() == m.values());
  CHECK(contains(verify_checkpoint(f("ck/step-00000009.safetensors")), "no checksums"));
  CHECK(directory.save(*other.session, 10).metadata.at("serial") == "5");
  CHECK_FALSE(std::filesystem::exists(f("ck/step-00000009.safetensors")));  // keep 1
}

TEST_CASE("checkpoint: to one safetensors file under other names, and back", "[checkpoint]") {
  const Folder f;
  Model m(kEight, kEightLayout, 5), other("a:2", "rows:a", 6);
  Checkpoints directory(m.ranks, f("ck"));
  const std::string path = directory.save(*m.session, 1, {{"parameters", R"(["w","v","b"])"}}).path;
  CHECK(convert_checkpoint(path, f("some"), {false, {{"w", "model.w.weight"}}}) == 3);
  const SafetensorsReader hf(f("some"));
  CHECK(hf.metadata().at("format") == "pt");
  CHECK(hf.find("model.w.weight") != nullptr);
  CHECK(hf.find("s") == nullptr);
  CHECK(convert_checkpoint(path, f("all"), {true, {{"*", "x.*"}}}) == 4);
  CHECK(convert_checkpoint(f("all"), f("back"), {true, {{"x.*", "*"}}}) == 4);
  CHECK(read_checkpoint(f("back")).step == 0);
  load_checkpoint(*other.session, f("back"));
  CHECK(other.values() == m.values());
  const auto error = [&](const char* from, const char* to, const ConvertOptions& o) {
    return f.error([&] { convert_checkpoint(f(from), f(to), o); });
  };
  CHECK(error("all", "back", {}) ==
        "usage [convert] 'DIR/back' exists already; choose another name or remove it");
  CHECK(error("all", "n", {true, {{"x.*", "y"}}}) ==
        "usage [convert] two tensors would be called 'y'; change the rules of names");
  CHECK(error("all", "n", {true, {{"a*b*", "c"}}}) ==
        "usage [convert] the rule 'a*b*=c' needs a name on both sides, with one * at most");
  load_tensors(*other.session, f("some"), {"v"});
  CHECK(f.error([&] { load_tensors(*other.session, f("some"), {"w"}); }) ==
        "usage [checkpoint] 'DIR/some' is a checkpoint of another model; the file lacks w; use the "
        "configuration that it was saved with");
}

TEST_CASE("manifests that make no sense are refused", "[checkpoint]") {
  Manifest good;
  good.step = 3;
  good.serial = 1;
  good.files.push_back({"rank-00000.safetensors", 10, 1, 2});
  ManifestTensor& t = good.tensors["w"];
  t.shape.dims = {"r", "c"};
  t.shape.sizes = {4, 6};
  t.pieces = {{0, {0, 0}, {4, 3}}, {0, {0, 3}, {4, 3}}};
  const Folder f;
  auto refused = [&](auto change) {
    Manifest m = good;
    change(m);
    return f.error([&] { parse_manifest(to_text(m), "m"); });
  };
  const std::string in = "io [checkpoint] the manifest 'm' ";
  CHECK(refused([](Manifest&) {}) == "no error");
  CHECK(refused([](Manifest& m) { m.tensors["w"].pieces.pop_back(); }) ==
        in + "has a piece of tensor 'w' that ends at 3 of dim 1 instead of 6");
  CHECK(refused([](Manifest& m) { m.tensors["w"].pieces.clear(); }) ==
        in + "has no piece of tensor 'w' that begins at 0 of dim 0");
  CHECK(refused([](Manifest& m) { m.tensors["w"].pieces.push_back(m.tensors["w"].pieces[0]); }) ==
        in + "has 3 pieces of tensor 'w', which needs 2");
  CHECK(refused([](Manifest& m) { m.tensors["w"].pieces[1].extent[1] = 4; }) ==
        in + "has a piece [4, 4] at [0, 3] of tensor 'w', which has the sizes [4, 6]");
  CHECK(refused([](Manifest& m) { m.tensors["w"].pieces[1].file = 1; }) ==
        in + "has a piece of tensor 'w' in file 1 of 1");
  CHECK(refused([](Manifest& m) {
          m.tensors["w"].shape.sizes = {-4, 6};
        }) == in + "gives tensor 'w' the impossible sizes [-4, 6]");
  CHECK(refused([](Manifest& m) { m.tensors["w"].shape.dims = {"r"}; }) ==
        in + "gives tensor 'w' 1 dim names for 2 sizes");
  CHECK(refused([](Manifest& m) { m.files[0].name = "../x"; }) ==
        in + "names the file '../x', which is not one of its directory");
  CHECK(refused([](Manifest& m) { m.step = -1; }) == in + "has the step -1, serial 1");
  const std::string text = to_text(good);
  CHECK(f.error([&] { parse_manifest(text.substr(0, 40), "m"); }) ==
        in + "is damaged or cut (40 bytes)");
  std::string other = text;
  other[text.size() - 10] = 'x';
  CHECK(contains(f.error([&] { parse_manifest(other, "m"); }), in + "is damaged: its checksum is"));
}

}  // namespace TESSERA_FILE
