// What a terminal shows: the line of a step at any width, lines that stay, help and completion.
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "cli/cli_run.h"
#include "cli/flags.h"
#include "cli/progress_line.h"

using namespace tessera;
using namespace tessera::test;

namespace {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

/// What `command` writes to a terminal of `width` columns, in the folder.
std::string on_terminal(const Folder& folder, const std::string& command, int width) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(width);
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string line = "cd '" + folder.dir + "' && " + command;
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(terminal);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  INFO(text);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  return text;
}

/// The texts between "\r\033[K" and the next control character that begin like the line of a step.
std::vector<std::string> bars_in(const std::string& text) {
  const std::string begin = "\r\033[K";
  std::vector<std::string> bars;
  for (size_t at = text.find(begin); at != text.npos; at = text.find(begin, at)) {
    at += begin.size();
    const size_t end = text.find_first_of("\r\n", at);
    const std::string bar = text.substr(at, end - at);
    // A line that stays ends in a line feed and may be wider.
    if (!bar.empty() && end != text.npos && text[end] == '\r' && text[end + 1] != '\n')
      bars.push_back(bar);
  }
  return bars;
}

}  // namespace

TEST_CASE("terminal: the line of a step fits any width", "[seeing]") {
  const std::vector<cli::LinePart> parts = {
      {"step 3/40", 0}, {"loss 5.4321", 1}, {"lr 1e-3", 3}, {"ETA 4 s", 2}, {"größe 1", 4}};
  const std::string all = "step 3/40  loss 5.4321  lr 1e-3  ETA 4 s  größe 1";
  CHECK(cli::whole_line(parts) == all);
  CHECK(cli::fitted_line(parts, 0.5, 0) == "[========        ] " + all);
  CHECK(cli::fitted_line(parts, 0.5, 68) == "[========        ] " + all);
  CHECK(cli::fitted_line(parts, 0.5, 67) == all);
  CHECK(cli::fitted_line(parts, 0.5, 49) == all);
  CHECK(cli::fitted_line(parts, 0.5, 48) == "step 3/40  loss 5.4321  lr 1e-3  ETA 4 s");
  CHECK(cli::fitted_line(parts, 0.5, 39) == "step 3/40  loss 5.4321  ETA 4 s");
  CHECK(cli::fitted_line(parts, 0.5, 22) == "step 3/40  loss 5.4321");
  CHECK(cli::fitted_line(parts, 0.5, 21) == "step 3/40");
  CHECK(cli::fitted_line(parts, 0.5, 4) == "step");
  CHECK(cli::fitted_line({{"ößü", 0}}, 0, 2) == "öß");
  CHECK(cli::fitted_line({}, 2, 10) == "");
}

TEST_CASE("terminal: lines stay above a bar that is never wider than the terminal", "[cli]") {
  const TextFolder f;
  const std::string train = std::string(TESSERA_CLI) + " train " + kTinyGpt + " --steps 45";
  for (const int width : {20, 60, 80, 200}) {
    const std::string text = on_terminal(f, train, width);
    INFO(width << " columns: " << text);
    const std::vector<std::string> bars = bars_in(text);
    CHECK(!bars.empty());
    for (const std::string& bar : bars) CHECK(std::ssize(bar) < width);
    // As in a file: the first five, every second, the last; none of them is wiped out.
    for (const std::string step : {"step  5/45", "step 44/45", "step 45/45"}) {
      const size_t at = text.find(step + "  loss ");
      REQUIRE(at != text.npos);
      CHECK(text.find_first_of("\r\n", at) == text.find("\r\n", at));
    }
  }
}

TEST_CASE("terminal: tessera alone prints its help", "[cli]") {
  const Folder f;
  const CliResult alone = run_cli_in(f, "");
  expect_success(alone);
  CHECK(alone.out == run_cli_in(f, "--help").out);
  CHECK(alone.out.find("train ") != std::string::npos);
}

TEST_CASE("terminal: every option of train stands in a group with an example", "[cli]") {
  CLI::App app("Is tested.", "tessera");
  cli::Arguments args;
  for (const cli::Command& command : cli::add_commands(app, args, builtin_models())) {
    if (command.app->get_name() != "train") continue;
    for (const CLI::Option* option : command.app->get_options()) {
      INFO(option->get_name());
      const bool plain = option->get_positional() || option->get_name() == "--help";
      CHECK((option->get_group() == "Options") == plain);
    }
  }
  const Folder f;
  const CliResult help = run_cli_in(f, "train --help");
  expect_success(help);
  for (const char* heading :
       {"\nModel, as in --set layers=4:\n", "\nMesh and layout, as in --mesh ",
        "\nTraining, as in ", "\nMemory, as in ", "\nCheckpoints, as in ", "\nSeeing, as in "}) {
    INFO(heading);
    CHECK(help.out.find(heading) != std::string::npos);
  }
}

TEST_CASE("terminal: completion for three shells", "[cli]") {
  const Folder f;
  expect_failure(run_cli_in(f, "completion tcsh"), 1, {"'tcsh'", "bash, zsh or fish"});
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const CliResult script = run_cli_in(f, "completion " + shell);
    expect_success(script);
    for (const char* word : {"train", "save-every", "completion", "gpt"}) {
      INFO(shell << ": " << word);
      CHECK(script.out.find(word) != std::string::npos);
    }
    f.write(shell, script.out);
  }
  const auto completed = [&](const std::string& words, int at) {
    const CliResult result =
        run_in(f, "bash",
               fmt::format("-c '. ./bash; COMP_WORDS=(tessera {}); COMP_CWORD={}; _tessera; "
                           "echo ${{COMPREPLY[@]}}'",
                           words, at));
    expect_success(result);
    return result.out;
  };
  CHECK(completed("tra", 1) == "train\n");
  CHECK(completed("completion z", 2) == "zsh\n");
  CHECK(completed("train gp", 2) == "gpt\n");
  CHECK(completed("train gpt --save-e", 3) == "--save-every\n");
  CHECK(completed("report --save-e", 2) == "\n");
}
