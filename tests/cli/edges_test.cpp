// Paths that lead nowhere, values that are empty, readers that end, files that another job has, and
// systems that have no memory or thread left: each is told in a line, and nothing else happens.
#include <CLI/CLI.hpp>
#include <filesystem>

#include "cli/cli_background.h"
#include "cli/commands.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() {
    write("text.txt", some_text());
    std::filesystem::create_symlink("loop", (*this)("loop"));
  }
};

CliResult train(const Folder& f, const std::string& more, const std::string& environment = "") {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more, environment);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool has_text(const cli::Flag& flag) {
  return std::holds_alternative<std::string*>(flag.target) ||
         std::holds_alternative<std::optional<std::string>*>(flag.target) ||
         std::holds_alternative<std::vector<std::string>*>(flag.target) ||
         std::holds_alternative<cli::Each>(flag.target) ||
         std::holds_alternative<cli::SetsKey>(flag.target);
}

TEST_CASE("edges: an empty value of a flag is refused, except where it is a text", "[cli]") {
  int refused = 0;
  std::set<std::string> taken;
  const std::vector<cli::Command> all = cli::all_commands();
  for (const cli::Command& command : all) {
    for (const cli::Flag& flag : command.table.rows()) {
      if (!flag.word().starts_with("--") || !has_text(flag)) continue;
      CLI::App app("Is tested.", "tessera");
      const std::vector<cli::Command> commands = cli::all_commands();
      cli::add_commands(app, commands);
      INFO(command.name << " " << flag.name);
      std::string error;
      try {
        app.parse(std::vector<std::string>{"", flag.word(), command.name});  // from the last
      } catch (const CLI::ParseError& e) {
        error = e.what();
      }
      if (error.starts_with(flag.word() + ": ")) {
        ++refused;
        if (!flag.check) CHECK(contains(error, "its value is empty; give one, or leave it out"));
      } else {
        taken.insert(flag.word());
      }
    }
  }
  CHECK(refused > 100);
  CHECK(taken == std::set<std::string>{"--layout", "--prompt", "--sample-prompt"});
}

TEST_CASE("edges: links that lead in a circle are told by every flag that takes a path", "[cli]") {
  const TextFolder f;
  const std::map<std::string, std::string> rest = {
      {"train", kTinyGpt + std::string("--steps 1 ")},
      {"eval", kTinyGpt},
      {"generate", kTinyGpt},
      {"serve", kTinyGpt},
      {"tokenize", "text.txt "},
      {"checkpoint", "show "},
      {"convert", "text.txt "},
      {"report", "text.txt "},
      {"export", "text.txt "},
      {"explain", kTinyGpt},
      {"verify", "gpt "},
      {"compare", "gpt "},
      {"bench", "matmul --size 8 "},
      {"plan", "gpt "},
      {"simulate", "gpt --machine h100 --mesh data:2 "},
      {"calibrate", "--size 8 "},
      {"sweep", "gpt --devices 1 "},
      {"diff", "gpt ';' "},
      {"solve", "text.txt "}};
  int paths = 0;
  for (const cli::Command& command : cli::all_commands()) {
    const auto arguments = rest.find(command.name);
    if (arguments == rest.end()) continue;
    for (const cli::Flag& flag : command.table.rows()) {
      const std::string name = flag.name;
      const bool takes_path = contains(name, " FILE") || contains(name, " DIR") ||
                              contains(name, " PATH") || contains(name, " OUT");
      if (!name.starts_with("--") || !takes_path || !has_text(flag)) continue;
      for (const std::string path : {"loop", "loop/x.json"}) {
        const CliResult r = run_cli_in(
            f, command.name + (" " + arguments->second) + flag.word() + " " + path, "timeout 60");
        INFO(command.name << " " << flag.word() << " " << path << ": " << r.code << " " << r.err);
        CHECK_FALSE(contains(r.err, "internal error"));
        CHECK((r.code == 0 || r.code == 1 || r.code == 2));
        ++paths;
      }
    }
  }
  CHECK(paths > 60);
  for (const std::string command :
       {"train loop", "train gpt --data loop", "checkpoint show loop", "convert loop x",
        "report loop", "generate loop", "compare loop loop", "verify gpt --layouts loop"})
    expect_failure(run_cli_in(f, command), 1, {"'loop': Too many levels of symbolic links"});
  expect_failure(train(f, "--checkpoint loop/c"), 1,
                 {"cannot make the folder 'loop/c': Too many levels of symbolic links"});
  const std::string name(300, 'x');
  expect_failure(train(f, "--checkpoint " + name), 1, {"cannot make the folder", "too long"});
}

TEST_CASE("edges: who stops reading a job's output does not end the job", "[cli]") {
  const TextFolder f;
  const CliResult r = run_in(f, "bash",
                             "-c '" TESSERA_CLI " train " + std::string(kTinyGpt) +
                                 "--steps 200 --log log.jsonl --checkpoint ck | head -n 1; "
                                 "echo ${PIPESTATUS[0]} > code'");
  CHECK(contains(r.out, "train gpt"));
  CHECK(r.err.empty());
  CHECK(f.read("code") == "0\n");
  CHECK(losses_of(f, "log.jsonl").size() == 200);
  CHECK(find_checkpoints(f("ck")).at(0).step == 200);
  expect_failure(run_cli_in(f, "info --keys", "", "/dev/full"), 1,
                 {"standard output could not be written"});
}

TEST_CASE("edges: a log that another job writes is left alone", "[cli]") {
  const TextFolder f;
  BackgroundJob first(
      f, TESSERA_CLI " train " + std::string(kTinyGpt) + "--steps 1000000 --log log.jsonl");
  REQUIRE(eventually([&] { return contains(f.read("log.jsonl"), "\"step\":2"); }));
  for (const std::string flag : {"--log", "--csv"})
    expect_failure(train(f, "--steps 1 " + flag + " log.jsonl"), 1,
                   {flag, "another job writes to 'log.jsonl'", "choose another file"});
  first.send(SIGTERM);
  CHECK(first.wait() == 75);
  const auto losses = losses_of(f, "log.jsonl");
  CHECK(losses.count(1) == 1);
  expect_success(train(f, "--steps 1 --log log.jsonl"));
  CHECK(losses_of(f, "log.jsonl").size() == 1);  // an earlier job's lines went
}

TEST_CASE("edges: too little memory is told before the first step", "[cli]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("a sanitizer's memory has no limit: not run");
#else
  const TextFolder f;
  const auto within = [](int megabytes) {
    return "bash -c 'ulimit -v " + std::to_string(megabytes * 1000) +
           "; exec \"$@\"' bash timeout 60";
  };
  expect_failure(train(f, "--steps 1 --mesh data:2", within(500)), 1,
                 {"2 ranks need ", "the address space (ulimit -v) allows 512.00 MB", "raise the"});
  expect_failure(train(f, "--steps 1 --set d_model=65536 --memory 1TB"), 1, {"host's memory"});
#endif
}

}  // namespace TESSERA_FILE
