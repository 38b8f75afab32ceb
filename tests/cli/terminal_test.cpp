// What a terminal shows: the line of a step at any width, lines that stay, help and completion.
#include "cli/terminal.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "base/layer_names.h"
#include "cli/cli_background.h"
#include "cli/commands.h"
#include "cli/excerpt.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

/// A change of a terminal's width after a text has been seen.
struct Resize {
  std::string after;
  int width = 0;
};

/// What `command` writes to a terminal of `width` columns, in the folder.
std::string on_terminal(const Folder& folder, const std::string& command, int width, int code = 0,
                        const Resize& resize = {}) {
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
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
    if (resize.width > 0 && size.ws_col != resize.width && text.find(resize.after) != text.npos) {
      size.ws_col = static_cast<unsigned short>(resize.width);
      ioctl(terminal, TIOCSWINSZ, &size);
    }
  }
  close(terminal);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  INFO(text);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == code);
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
  CHECK(cli::fitted_line({{"宽度", 0}}, 0, 3) == "宽");
  CHECK(cli::fitted_line({}, 2, 10) == "");
}

TEST_CASE("terminal: columns of wide, narrow and combining characters", "[seeing]") {
  CHECK(cli::columns("größe 1") == 7);
  CHECK(cli::columns("宽度") == 4);
  CHECK(cli::columns("한글 カナ ！") == 12);
  CHECK(cli::columns("e\u0301\u200D") == 1);
  CHECK(cli::columns("\U0001F600") == 2);
  CHECK(cli::columns("\xE5\x85 \xFF") == 3);  // bytes that are no UTF-8
  CHECK(cli::first_columns("a宽b", 2) == "a");
  CHECK(cli::first_columns("a宽b", 3) == "a宽");
  CHECK(cli::first_columns("", 3) == "");
}

TEST_CASE("terminal: lines are broken between words", "[seeing]") {
  using cli::wrapped;
  CHECK(wrapped("one two three\nfour", 0) == "one two three\nfour");
  CHECK(wrapped("one two three\nfour", 12) == "one two three\nfour");  // no room for anything
  const std::string long_line = "  all_reduce over model  65.5 kB  gpt.block0.add because ff:model";
  CHECK(wrapped(long_line, 70) == long_line);
  CHECK(wrapped(long_line, 30) ==
        "  all_reduce over model\n"
        "    65.5 kB  gpt.block0.add\n"
        "    because ff:model");
  // A number stays with its unit, if both fit.
  CHECK(wrapped("takes 1.25 ms of 1,250 kilogramme", 20) == "takes 1.25 ms of\n  1,250 kilogramme");
  CHECK(wrapped("12 words_that_are_too_long", 20) == "12\n  words_that_are_too_long");
  CHECK(wrapped("layout  batch:data; heads:model\nend\n", 24) ==
        "layout  batch:data;\n        heads:model\nend\n");
  CHECK(wrapped("a word_that_is_longer_than_the_line and more", 20) ==
        "a\n  word_that_is_longer_than_the_line\n  and more");
  // What is there to be copied stays in one piece.
  const std::string plan = "  +1.0 %  3 GB of 80 GB  --mesh \"data:2\" --layout \"batch:data\"";
  CHECK(wrapped(plan, 46) ==
        "  +1.0 %  3 GB of 80 GB\n    --mesh \"data:2\" --layout \"batch:data\"");
  CHECK(wrapped(plan, 24) == plan);
  const std::string next = "next    tessera generate gpt --checkpoint a/b";
  CHECK(wrapped(next, 24) == next);
  CHECK(wrapped("\u5bbd\u5ea6 \u5bbd\u5ea6 \u5bbd\u5ea6 \u5bbd\u5ea6 \u5bbd", 20) ==
        "\u5bbd\u5ea6 \u5bbd\u5ea6 \u5bbd\u5ea6 \u5bbd\u5ea6\n  \u5bbd");
}

TEST_CASE("terminal: explain, plan, diff and errors at any width say what a pipe gets", "[cli]") {
  const TextFolder f;
  const std::string job =
      " --machine h100 --mesh \"data:2;model:2\" --set layers=1 d_model=64 ff=128 length=16 "
      "batch=8";
  const std::string cli = TESSERA_CLI;
  const auto words = [](const std::string& text) {
    std::string all;
    for (const char c : text) {
      const bool blank = c == ' ' || c == '\n' || c == '\r';
      if (!blank) all += c;
      if (blank && !all.empty() && all.back() != ' ') all += ' ';
    }
    return all;
  };
  for (const std::string& command :
       {cli + " explain gpt --layout \"batch:data;heads,ff:model\"" + job,
        cli + " diff gpt \"batch:data\" \"batch:data;ff:model\"" + job,
        cli + " simulate gpt --layout \"batch:data;ff:model\"" + job}) {
    const std::string piped = on_terminal(f, command + " > out.txt; cat out.txt", 400);
    for (const int width : {20, 60, 80, 200}) {
      INFO(command << " at " << width);
      const std::string text = on_terminal(f, command, width);
      CHECK(words(text) == words(piped));
      if (width < 60) continue;  // a name may be longer
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        while (!line.empty() && line.back() == '\r') line.pop_back();
        INFO(line);
        CHECK(cli::columns(line) <= width);
      }
    }
  }
  const std::string wrong = on_terminal(f, cli + " explain gpt --layout batch:dat" + job, 40, 1);
  CHECK(words(wrong).find("tessera: ") == 0);
  CHECK(wrong.find('\n') < 60);  // with its colours
}

TEST_CASE("terminal: tensors of all layers are one row, with their sums", "[cli]") {
  CHECK(without_layer("gpt.block12.mlp.up.w") == "gpt.block*.mlp.up.w");
  CHECK(without_layer("a.b_3.c4.d5.e") == "a.b_3.c*.d5.e");
  CHECK(without_layer("gpt.add_1") == "gpt.add_1");
  CHECK(without_layer("3.x") == "3.x");
  const Folder f;
  const std::string job =
      " --machine h100 --mesh \"data:2;model:2\" --set layers=3 d_model=16 heads=2 ff=32 length=8 "
      "batch=4 ";
  const CliResult explained =
      run_cli_in(f, "explain gpt --layout \"batch:data;ff:model\" --json e.json" + job);
  expect_success(explained);
  int64_t sum = 0;
  const nlohmann::json report = nlohmann::json::parse(f.read("e.json"));
  for (const auto& function : report["functions"]) {
    for (const auto& c : function["collectives"]) {
      if (c["tensor"].get<std::string>().ends_with(".mlp.down.w.grad"))
        sum += c["bytes"].get<int64_t>();
    }
  }
  REQUIRE(sum == 3 * 16 * 16 * 4);
  INFO(explained.out);
  // Waiting is told by axes, most first.
  const size_t by_model = explained.out.find(" over model, "),
               by_data = explained.out.find(" over data, ");
  CHECK(explained.out.find(" exposed communication (") < by_model);
  CHECK(by_model < by_data);
  CHECK(by_data < explained.out.find(" ms hidden)\n", by_model));
  CHECK(explained.out.find("  3.1 kB  ") != std::string::npos);
  CHECK(explained.out.find("gpt.block*.mlp.down.w.grad (3 tensors)") != std::string::npos);
  // So are the largest tensors in memory.
  const size_t memory = explained.out.find("memory of a rank: ");
  REQUIRE(memory != std::string::npos);
  CHECK(explained.out.find(" tensors)\n", memory) != std::string::npos);
  const CliResult differ =
      run_cli_in(f, "diff gpt \"batch:data\" \"batch:data;ff:model\" --json d.json" + job);
  expect_success(differ);
  INFO(differ.out);
  CHECK(differ.out.find("gpt.block*.mlp.einsum.grad.einsum (3 nodes)") != std::string::npos);
  CHECK(f.read("d.json").find("gpt.block2.mlp.einsum") != std::string::npos);  // JSON has all
}

TEST_CASE("terminal: train, explain and plan call the memory of a rank the same", "[cli]") {
  const TextFolder f;
  const std::string model =
      " gpt --mesh data:2 --layout batch:data --set layers=1 d_model=16 "
      "heads=2 ff=32 length=8 batch=4 ";
  const CliResult trained = run_cli_in(f, "train --data text.txt --steps 1" + model),
                  explained = run_cli_in(f, "explain" + model),
                  planned = run_cli_in(f, "plan --machine h100 --time 1" + model);
  for (const CliResult& result : {trained, explained, planned}) {
    expect_success(result);
    INFO(result.out);
    for (const char* part :
         {"of a rank: ", "parameters", "optimizer state", "inputs", "transient, at the peak"})
      CHECK(result.out.find(part) != std::string::npos);
    CHECK(result.out.find("persistent") == std::string::npos);
  }
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

/// The lines of 45 steps that stay, up to the loss.
std::vector<std::string> steps_in(const std::string& text) {
  const std::string mark = "/45  loss ";
  std::vector<std::string> steps;
  for (size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + 1)) {
    const size_t begin = text.rfind("step", at), line = text.find_first_of("\r\n", at),
                 end = text.find_first_of(" \r\n", at + mark.size());
    const bool stays = line != text.npos && (text[line] == '\n' || text[line + 1] == '\n');
    if (stays) steps.push_back(text.substr(begin, end - begin));
  }
  return steps;
}

TEST_CASE("terminal: a terminal that gets narrower while a job runs", "[cli]") {
  const TextFolder f;
  const std::string train = std::string(TESSERA_CLI) + " train " + kTinyGpt + " --steps 400";
  const std::string text = on_terminal(f, train, 150, 0, {"step  20/400  loss ", 40});
  const std::vector<std::string> wide = bars_in(text.substr(0, text.find("step  20/400  loss "))),
                                 narrow = bars_in(text.substr(text.find("step 300/400  loss ")));
  REQUIRE(!wide.empty());
  REQUIRE(!narrow.empty());
  CHECK(std::any_of(wide.begin(), wide.end(), [](const auto& bar) { return bar.size() > 100; }));
  for (const std::string& bar : narrow) CHECK(std::ssize(bar) < 40);
}

TEST_CASE("terminal: in a pipe, under mpirun and in tmux the same lines stay", "[cli]") {
  const TextFolder f;
  const std::string train = std::string("train ") + kTinyGpt + " --mesh data:2 --steps 45 ";
  const CliResult piped = run_cli_in(f, train);
  expect_success(piped);
  CHECK(piped.out.find('\r') == piped.out.npos);
  CHECK(piped.out.find('\033') == piped.out.npos);
  const std::vector<std::string> steps = steps_in(piped.out);
  CHECK(steps.size() == 5 + 20 + 1);  // the first five, every second, the last
  for (const int width : {60, 200})
    CHECK(steps_in(on_terminal(f, TESSERA_CLI " " + train, width)) == steps);
  if (std::system("mpirun --version > /dev/null 2>&1") != 0) {
    WARN("there is no mpirun: not run");
  } else {
    const std::string text =
        on_terminal(f, kLaunchLocal + "--ranks 2 " TESSERA_CLI " " + train, 80);
    CHECK(steps_in(text) == steps);
    CHECK(bars_in(text).empty());
  }
  if (std::system("tmux -V > /dev/null 2>&1") != 0) {
    WARN("there is no tmux: not run");
    return;
  }
  const std::string tmux = "cd '" + f.dir + "' && tmux -L tessera-" + std::to_string(getpid());
  REQUIRE(std::system((tmux + " -f /dev/null new-session -d -x 60 -y 24 \"" TESSERA_CLI " " +
                       train + "; echo over; sleep 100\"")
                          .c_str()) == 0);
  const bool over = eventually([&] {
    return std::system((tmux + " capture-pane -p -S - > pane.txt").c_str()) == 0 &&
           f.read("pane.txt").find("\nover\n") != std::string::npos;
  });
  CHECK(std::system((tmux + " kill-server").c_str()) == 0);
  const std::string pane = f.read("pane.txt");
  INFO(pane);
  CHECK(over);
  // Lines that stay are wider than the pane, which wraps them; the bars are gone.
  for (const std::string& step : steps) CHECK(pane.find("\n" + step + "  grad ") != pane.npos);
  CHECK(pane.find("[=") == pane.npos);
}

TEST_CASE("terminal: tessera alone prints its help", "[cli]") {
  const Folder f;
  const CliResult alone = run_cli_in(f, "");
  expect_success(alone);
  CHECK(alone.out == run_cli_in(f, "--help").out);
  CHECK(alone.out.find("train ") != std::string::npos);
  CHECK(alone.out.find("\n  tessera train gpt --data FILE.txt") != std::string::npos);
}

TEST_CASE("terminal: every option of train stands in a group with an example", "[cli]") {
  CLI::App app("Is tested.", "tessera");
  const std::vector<cli::Command> commands = cli::all_commands();
  cli::add_commands(app, commands);
  for (const CLI::Option* option : app.get_subcommand("train")->get_options()) {
    INFO(option->get_name());
    const bool plain = option->get_positional() || option->get_name() == "--help";
    CHECK((option->get_group() == "Options") == plain);
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

TEST_CASE("terminal: an excerpt points at the culprit, or nowhere", "[seeing]") {
  using cli::excerpt;
  const std::vector<std::string> job = {"train",          "gpt",      "--mesh",
                                        "data:2;model:2", "--layout", "batch:data;heads,ff:modle",
                                        "--set",          "layers=x", "lr=1e-3"};
  CHECK(excerpt("layout rule 'ff:modle': mesh 'data:2;model:2' has no axis 'modle'; did you mean "
                "'model'?",
                job) ==
        "    --layout batch:data;heads,ff:modle\n"
        "                                 ^^^^^\n");
  CHECK(excerpt("key 'layers' is 'x', which is not a whole number", job) ==
        "    --set layers=x\n"
        "                 ^\n");
  // 'data' stands in the mesh and in the layout.
  CHECK(excerpt("axis 'data' is too large", job) == "");
  CHECK(excerpt("unknown key 'tran.lr'; did you mean 'lr'?", job) == "");
  CHECK(excerpt("nothing is quoted", job) == "");
  CHECK(excerpt("unknown command 'trian'; did you mean 'train'?", {"trian", "gpt"}) ==
        "    trian\n"
        "    ^^^^^\n");
  CHECK(excerpt("key 'größe' is odd", {"train", "--set", "größe=ß"}) ==
        "    --set größe=ß\n"
        "          ^^^^^\n");
  CHECK(excerpt("key '宽度' is odd", {"train", "--set", "模型/宽度=1"}) ==
        "    --set 模型/宽度=1\n"
        "               ^^^^\n");
  const std::string cut = excerpt("dim 'hads'", {"--layout", std::string(200, 'a') + ";hads:b"});
  CHECK(cut.starts_with("    ...aaa"));
  CHECK(cut.find("a;hads:b\n") != cut.npos);
  CHECK(cut.find("^^^^\n") - cut.find('\n') - 1 == cut.find("hads"));

  const Folder f;
  f.write("run.toml", "[train]\n\tsteps = [\n");
  const std::string path = f.dir + "/run.toml";
  CHECK(excerpt(path + ": the value 'steps' does not end (line 2)", {"train", path}) ==
        "     steps = [\n"
        "     ^^^^^\n");
  CHECK(excerpt(path + ": it ends early (line 9)", {}) == "");
  CHECK(excerpt("no/such.toml: it ends early (line 1)", {}) == "");
}

TEST_CASE("terminal: colours and carets, but not with NO_COLOR or in a file", "[cli]") {
  const TextFolder f;
  const std::string tessera = TESSERA_CLI;
  const std::string wrong =
      "TERM=xterm " + tessera + " train gpt --data text.txt --layout hads:data";
  const std::string coloured = on_terminal(f, "NO_COLOR= " + wrong, 80, 1);
  CHECK(coloured.find("tessera: \033[1;31musage error:\033[0m ") != coloured.npos);
  CHECK(coloured.find("    --layout hads:data\r\n             ^^^^\r\n") != coloured.npos);
  const std::string plain = on_terminal(f, "NO_COLOR=1 " + wrong, 80, 1);
  CHECK(plain.find("tessera: usage error: ") != plain.npos);
  CHECK(plain.find("\033[1") == plain.npos);
  CHECK(plain.find("             ^^^^\r\n") != plain.npos);
  expect_failure(run_cli_in(f, "train gpt --data text.txt --layout hads:data"), 1, {"'hads'"});

  const std::string train = tessera + " train " + kTinyGpt + " --steps 3";
  const std::string run = on_terminal(f, "NO_COLOR= TERM=xterm " + train, 200);
  CHECK(run.find("\033[1mlayout\033[0m  ") != run.npos);
  CHECK(run.find("\033[32mdone\033[0m    3 steps in ") != run.npos);
  CHECK(run.find("\033[32m[") != run.npos);
  for (const std::string off : {"NO_COLOR=1 TERM=xterm ", "NO_COLOR= TERM=dumb "}) {
    const std::string text = on_terminal(f, off + train, 200);
    CHECK(text.find("\033[1m") == text.npos);
    CHECK(text.find("\033[32m") == text.npos);
  }
}

TEST_CASE("terminal: a job ends with a summary; --quiet leaves only it", "[cli]") {
  const TextFolder f;
  const std::string train = std::string("train ") + kTinyGpt +
                            " --steps 4 --set eval_every=2 held_out=0.2 --log run.jsonl ";
  const CliResult all = run_cli_in(f, train + "--checkpoint 'c k'");
  expect_success(all);
  const CliResult quiet = run_cli_in(f, train + "--checkpoint 'c k2' --quiet");
  expect_success(quiet);
  CHECK(all.out.find("\nstep 1/4  loss ") != all.out.npos);
  CHECK(all.out.find("\neval at step 4: ") != all.out.npos);
  CHECK(quiet.out.starts_with("done    4 steps in "));
  CHECK(std::count(quiet.out.begin(), quiet.out.end(), '\n') == 4);
  for (const CliResult& result : {all, quiet}) {
    const std::string end = result.out.substr(result.out.find("done    4 steps in "));
    INFO(end);
    for (const char* part : {"tok/s, ", "; loss ", ", best eval ", " at step ", "\nsaved   c k",
                             "\nlog     run.jsonl\n"})
      CHECK(end.find(part) != end.npos);
    CHECK(end.find("\nnext    tessera generate gpt --checkpoint 'c k") != end.npos);
  }
  // What it proposes works.
  expect_success(run_cli_in(f, "generate gpt --checkpoint 'c k' --tokens 2"));
  const CliResult logged =
      run_cli_in(f, std::string("train ") + kTinyGpt + " --steps 1 --quiet --log run.jsonl");
  expect_success(logged);
  CHECK(logged.out.ends_with("\nnext    tessera report run.jsonl\n"));
  // Trouble is told.
  const CliResult trouble = run_cli_in(
      f, std::string("train ") + kTinyGpt + " --steps 4 --quiet --set lr=1e30 --on-nonfinite skip");
  CHECK(trouble.out.find(" is skipped (1 so far): ") != trouble.out.npos);
}

}  // namespace TESSERA_FILE
