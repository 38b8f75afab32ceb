// What is kept in the cache folder is not trusted: a file that is not good is named and replaced.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "base/cache_file.h"
#include "base/files.h"
#include "cli/cli_run.h"
#include "tessera/safetensors.h"

namespace tessera::test {

namespace TESSERA_FILE {

namespace fs = std::filesystem;

/// The one file in `plans/` of the cache folder.
std::string plan_in(const Folder& f) {
  std::string found;
  for (const auto& entry : fs::directory_iterator(f("plans"))) {
    CHECK(found.empty());
    found = entry.path().string();
  }
  REQUIRE(!found.empty());
  return found;
}

/// What `change` makes of a plan's file.
std::string changed(const std::string& text, void (*change)(nlohmann::json&)) {
  nlohmann::json plan = nlohmann::json::parse(text);
  change(plan);
  return plan.dump();
}

std::string text_of(const std::string& path) { return read_cache_file(path, 1 << 20).value(); }

TEST_CASE("a kept plan sets what the planner sets, for the question that was asked", "[cli]") {
  const Folder f;
  const std::string cache = "TESSERA_CACHE=" + f.dir,
                    explain =
                        "explain gpt --set layers=1 d_model=32 heads=2 ff=64 length=16 batch=4 "
                        "vocab=256 --machine a100-80gb --mesh data:2 --layout auto";
  const CliResult first = run_cli_in(f, explain, cache);
  REQUIRE(first.code == 0);
  const std::string path = plan_in(f), good = text_of(path);
  const auto set = [&](void (*change)(nlohmann::json&)) { return changed(good, change); };
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"half of a fi", "it is not in the format 'tessera-plans 1'"},
      {R"([{"layout": "length:data", "sets": []}])", "it is not in the format"},
      {std::string(10000, '['), "it is not in the format"},
      {std::string((4 << 20) + 1, ' '), "has more than 4194304 bytes"},
      {set([](auto& p) { p["question"] = "0.1|another"; }), "it answers another question"},
      {set([](auto& p) { p.erase("plans"); }), "it holds no list of plans"},
      {set([](auto& p) { p["plans"] = nlohmann::json::array(); }), "0 plans instead of 1 to 1"},
      {set([](auto& p) { p["plans"].push_back(p["plans"][0]); }), "2 plans instead of 1 to 1"},
      {set([](auto& p) { p["plans"][0]["sets"] = 3; }), "plan 1 has no 'layout' as text"},
      {set([](auto& p) { p["plans"][0]["sets"] = {"train.lr=1"}; }),
       "it sets 'train.lr=1'; a plan may set only model.scan, train.grad_reduce, "
       "train.microbatches, "},
      {set([](auto& p) { p["plans"][0]["sets"] = {"microbatches=2"}; }), "a plan may set only"},
      {set([](auto& p) { p["plans"][0]["sets"] = {"train.microbatches=3"}; }),
       "for this job the planner chooses train.microbatches among 1, 2, 4"},
      {set([](auto& p) { p["plans"][0]["sets"] = {"train.recompute"}; }),
       "for this job the planner chooses train.recompute among attention, block, none"},
      {set([](auto& p) { p["plans"][0]["layout"] = "batch:\x1b[2Jelsewhere"; }), "\\x1b[2J"},
      {set([](auto& p) { p["plans"][0]["layout"] = "batch:elsewhere"; }),
       "rule 'batch:elsewhere' names axis 'elsewhere', which mesh 'data:2' has not"},
      {set([](auto& p) { p["plans"][0]["layout"] = "batch:auto"; }), "leaves a split open"}};
  for (const auto& [text, why] : bad) {
    INFO(why);
    std::ofstream(path, std::ios::binary) << text;
    const CliResult again = run_cli_in(f, explain, cache);
    INFO(again.err);
    CHECK(again.code == 0);
    const size_t end = again.err.find('\n') + 1;
    const std::string warning = again.err.substr(0, end);
    CHECK(warning.find("tessera: warning: the kept plan '" + path +
                       "' is ignored and searched anew: ") == 0);
    CHECK(warning.find(why) != std::string::npos);
    CHECK(warning.find('\x1b') == std::string::npos);
    CHECK(again.err.substr(end) == first.err);
    CHECK(text_of(path) == good);
    CHECK(plan_in(f) == path);  // nothing else is left there
  }
  CHECK(run_cli_in(f, explain, cache).err == first.err);
}

TEST_CASE("a calibrated profile that cannot be read is named and ignored", "[cli]") {
  const Folder f;
  const std::string explain =
      "explain gpt --set layers=1 d_model=32 heads=2 ff=64 length=16 batch=4 vocab=256 --mesh "
      "data:2 --layout batch:data";
  const CliResult without = run_cli_in(f, explain, "TESSERA_CACHE=" + f.dir);
  REQUIRE(without.code == 0);
  const auto ignored = [&](const std::string& why) {
    const CliResult with = run_cli_in(f, explain, "TESSERA_CACHE=" + f.dir);
    CHECK(with.code == 0);
    CHECK(with.out == without.out);
    CHECK(with.err ==
          "tessera: warning: the profile of this machine is ignored; run `tessera calibrate` "
          "again: " +
              why + "\n");
  };
  const std::string path = f.write("machine.toml", "format = 2\nname = \"here\"\nspeed = 3\n");
  const std::string also = path + ": unknown key 'speed'";
  CHECK(run_cli_in(f, explain, "TESSERA_CACHE=" + f.dir).err.find(also) != std::string::npos);
  fs::resize_file(path, (4 << 20) + 1);
  ignored("'" + path + "' has more than 4194304 bytes");
  fs::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  ignored("'" + path + "' is not a regular file");
  // A profile that was asked for is no cache: it has to be good.
  f.write("bad.toml", "format = 7\n");
  expect_failure(run_cli_in(f, explain + " --machine bad.toml"), 1, {"bad.toml: format 7"});
}

TEST_CASE("files of the cache appear whole, and no link that lies in the way is written through",
          "[fast]") {
  const Folder f;
  CHECK(!read_cache_file(f("none"), 10));
  write_cache_file(f("a"), "one");
  write_cache_file(f("a"), "two");
  CHECK(text_of(f("a")) == "two");
  add_cache_file(f("a"), "three");
  CHECK(text_of(f("a")) == "two");
  f.write("other", "of somebody else");
  fs::create_symlink(f("other"), f("b"));
  fs::create_symlink(f("other"), fmt::format("{}.tmp-{}-0", f("b"), getpid()));
  write_cache_file(f("b"), "mine");
  CHECK(f.read("other") == "of somebody else");
  CHECK(f.read("b") == "mine");
  CHECK(!fs::is_symlink(f("b")));
  CHECK(f.names().size() == 4);  // a, b, other and the link, which is not ours
  CHECK(f.error([&] { write_cache_file(f("no/folder"), "x"); }) ==
        "io 'DIR/no/folder' could not be written: No such file or directory");
  CHECK(f.error([&] { read_cache_file(f("a"), 2); }) == "io 'DIR/a' has more than 2 bytes");
  CHECK(f.error([&] { read_cache_file(f.dir, 2); }) == "io 'DIR' is not a regular file");
}

TEST_CASE("files of the cache are read only if they lie there themselves and are our own",
          "[fast]") {
  const Folder f;
  f.write("theirs", "of somebody else");
  fs::create_symlink(f("theirs"), f("link"));
  CHECK(f.error([&] { read_cache_file(f("link"), 100); }) ==
        "io 'DIR/link' is a symbolic link; a file of the cache has to lie there itself");
  const std::string long_text(100000, 'x');
  write_cache_file(f("long"), long_text);
  CHECK(read_cache_file(f("long"), 100000) == long_text);
  if (geteuid() != 0) return;  // only root can give a file away
  REQUIRE(chown(f("theirs").c_str(), 65534, 65534) == 0);
  CHECK(f.error([&] { read_cache_file(f("theirs"), 100); }) ==
        "io 'DIR/theirs' belongs to user 65534; a file of the cache has to belong to user 0, who "
        "reads it, or to root");
}

TEST_CASE("what a user's path names is written whole, and through no link of another user",
          "[fast]") {
  const Folder f;
  f.write("precious", "precious");
  // A file of the name that the temporary file would have is not opened.
  fs::create_symlink(f("precious"), fmt::format("{}.tmp-{}-0", f("page"), getpid()));
  write_text_file(f("page"), "one");
  CHECK(f.read("page") == "one");
  CHECK(f.read("precious") == "precious");
  // Permissions stay, and the user's own link is followed.
  REQUIRE(chmod(f("page").c_str(), 0640) == 0);
  fs::create_symlink(f("page"), f("mine"));
  write_text_file(f("mine"), "two");
  CHECK(fs::is_symlink(f("mine")));
  CHECK(f.read("page") == "two");
  CHECK(fs::status(f("page")).permissions() == fs::perms(0640));
  if (geteuid() != 0) return;
  fs::create_symlink(f("precious"), f("theirs"));
  REQUIRE(lchown(f("theirs").c_str(), 65534, 65534) == 0);
  const std::string refused =
      "io cannot write 'DIR/theirs': it is a symbolic link of user 65534, not of 0; remove it or "
      "choose another path";
  CHECK(f.error([&] { write_text_file(f("theirs"), "x"); }) == refused);
  CHECK(f.error([&] { std::fclose(open_output(f("theirs"), true)); }) == refused);
  CHECK(f.read("precious") == "precious");
}

TEST_CASE("the next writer of a file removes what killed ones left, and nothing else", "[fast]") {
  const auto text = [](const std::string& path) { write_text_file(path, "one"); };
  const auto cache = [](const std::string& path) { write_cache_file(path, "one"); };
  const auto tensors = [](const std::string& path) { SafetensorsWriter(path, {}, {}).finish(); };
  for (const auto& write :
       std::vector<std::function<void(const std::string&)>>{text, cache, tensors}) {
    const Folder f;
    for (const char* name : {"page.tmp-1-0", "page.tmp-1-1", "page.tmp-mine", "age.tmp-1-0"})
      f.write(name, "part");
    // One that is being written is locked by its writer.
    const int living = ::open(f.write("page.tmp-2-0", "part").c_str(), O_RDONLY);
    REQUIRE(::flock(living, LOCK_EX) == 0);
    write(f("page"));
    CHECK(f.names() ==
          std::set<std::string>{"age.tmp-1-0", "page", "page.tmp-2-0", "page.tmp-mine"});
    ::close(living);
    write(f("page"));
    CHECK(f.names() == std::set<std::string>{"age.tmp-1-0", "page", "page.tmp-mine"});
  }
}

TEST_CASE("an entry of the cache is taken for its own format and key only", "[fast]") {
  const std::string key = "a\nb", value("v\0\n", 3), good = cache_entry("f 1", key, value);
  CHECK(cached_value(good, "f 1", key) == value);
  CHECK(cached_value(cache_entry("f 1", "", ""), "f 1", "").empty());
  const auto refused = [](const std::string& text, const std::string& with_key) {
    try {
      cached_value(text, "f 1", with_key);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("taken");
  };
  CHECK(refused(cache_entry("f 2", key, value), key) == "it is not in the format 'f 1'");
  const std::string damaged = "it is damaged or answers another question";
  CHECK(refused(good, "a\nc") == damaged);
  for (size_t cut = 4; cut < good.size(); ++cut)
    CHECK(refused(good.substr(0, cut), key) == damaged);
  for (size_t at = 4; at < good.size(); ++at) {
    std::string other = good;
    other[at] = static_cast<char>(other[at] ^ 1);
    CHECK(refused(other, key) == damaged);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
