// The command line: parses arguments into the flags of a command; prints errors as one line with an
// exit code.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>
#include <thread>

#include "base/env.h"
#include "base/fail.h"
#include "base/host_memory.h"
#include "base/thrown.h"
#include "cli/commands.h"
#include "cli/excerpt.h"
#include "cli/terminal.h"
#include "tessera/build_info.h"

namespace tessera {

std::vector<cli::Command> cli::all_commands() {
  return {info_command(),      train_command(),    eval_command(),       generate_command(),
          serve_command(),     tokenize_command(), checkpoint_command(), convert_command(),
          report_command(),    export_command(),   explain_command(),    verify_command(),
          compare_command(),   bench_command(),    plan_command(),       simulate_command(),
          calibrate_command(), sweep_command(),    diff_command(),       solve_command(),
          completion_command()};
}

void cli::add_commands(CLI::App& app, const std::vector<Command>& commands) {
  app.set_help_flag("-h,--help", "Prints this help and exits.");
  app.set_version_flag("--version", "tessera " + build_info().version,
                       "Prints the version and exits.");
  app.require_subcommand(1);
  app.footer(
      "Example:\n"
      "  tessera train gpt --data FILE.txt --mesh data:4 --log run.jsonl\n"
      "  tessera train --help");
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.help);
    sub->footer(std::string("Example:\n  ") + command.example);
    command.table.add_to(*sub, command.name == std::string("train"));
  }
}

namespace {

/// A one-line message, with the nearest flag or command if one is unknown.
std::string command_line_error(CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::vector<std::string> known, unknown = app.remaining(true);
  CLI::App* at = &app;
  for (CLI::App* sub : app.get_subcommands({})) {
    if (sub->parsed()) at = sub;
    known.push_back(sub->get_name());
  }
  if (at != &app) {
    known.clear();
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  if (!unknown.empty() && at->get_name() == "simulate" && unknown[0].starts_with("--runs")) {
    text = "'simulate --runs FILE' is the program 'bench_published_runs FILE' now";
  } else if (!unknown.empty()) {
    text = fmt::format("unknown {} '{}'{}", at == &app ? "command" : "argument", unknown[0],
                       suggestion(unknown[0], known));
  }
  return fmt::format("{}; see 'tessera {}--help'", text, at == &app ? "" : at->get_name() + " ");
}

/// On a terminal: where the culprit of an error stands in the command line or in a file.
void point_at(const std::string& message, int argc, char** argv) {
  if (!isatty(STDERR_FILENO) || read_environment().rank > 0) return;
  const std::string text = cli::excerpt(message, {argv + 1, argv + argc});
  std::fputs(cli::styled(text, cli::Colour::faint, cli::is_coloured(STDERR_FILENO)).c_str(),
             stderr);
}

/// After a failure of ranks or devices the process ends here: threads that hang, or wait for peers
/// that are gone, would keep it from returning through main(). So would OpenBLAS's threads, which
/// wait for address space.
int end_after(ErrorKind kind, int code) {
  const std::vector<HostLimit> limits = memory_limits();
  const bool has_space = limits.empty() || limits[0].shared;
  if (kind != ErrorKind::comm && kind != ErrorKind::device && has_space) return code;
  std::fflush(stdout);
  _exit(code);
}
}  // namespace

int run_cli(int argc, char** argv, const std::vector<ModelSpec>& own) {
  std::signal(SIGPIPE, SIG_IGN);  // who stops reading what a job prints does not end the job
  std::string program = "tessera";
  std::vector<ModelSpec> models = own;
  models.insert(models.end(), builtin_models().begin(), builtin_models().end());
  if (argc > 0) program = std::filesystem::path(argv[0]).filename();
  CLI::App app("Trains models with named dimensions, in any layout over any mesh.", "tessera");
  const std::vector<cli::Command> commands = cli::all_commands();
  cli::add_commands(app, commands);
  if (argc <= 1) {
    if (read_environment().rank <= 0) cli::write_safely(stdout, app.help());
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool is_help = e.get_exit_code() == 0;
    const int rank = read_environment().rank;
    if (is_help) {
      std::ostringstream help;
      const int code = app.exit(e, help, help);
      if (rank <= 0) cli::write_safely(stdout, help.str());
      return code;
    }
    const std::string message = command_line_error(app, e);
    cli::report_error(ErrorKind::usage, message.c_str(), false);
    point_at(message, argc, argv);
    return 2;
  }
  try {
    for (const cli::Command& command : commands) {
      if (!app.got_subcommand(command.name)) continue;
      const int code = command.start(program, models);
      errno = 0;
      const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
      if (code == 0 && !is_written && !cli::is_reader_gone(STDOUT_FILENO))
        fail(ErrorKind::io,
             "standard output could not be written{}{}; what it should have held is lost",
             errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "");
      return code;
    }
  } catch (const PeerFailure& e) {
    return end_after(e.kind(), cli::report_error(e.kind(), e.what(), true));
  } catch (const CommonFailure& e) {
    if (read_environment().rank <= 0) {
      const int code = cli::report_error(e.kind(), e.what(), false);
      point_at(e.what(), argc, argv);
      return code;
    }
    std::this_thread::sleep_for(cli::kForRoot / 10);
    return 1;
  } catch (const Error& e) {
    const int code = cli::report_error(e.kind(), e.what(), false);
    point_at(e.what(), argc, argv);
    return end_after(e.kind(), code);
  } catch (const std::bad_alloc&) {
    const std::string text = no_memory_text(memory_limits());
    return end_after(ErrorKind::unsupported,
                     cli::report_error(ErrorKind::unsupported, text.c_str(), false));
  } catch (...) {
    return cli::report_error(ErrorKind::internal, thrown_text().c_str(), false);
  }
  return 2;
}

}  // namespace tessera
