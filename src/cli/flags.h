// Flags and commands of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

/// Adds a command: name, help (a sentence, as all help texts), example, function.
using AddCommand = std::function<CLI::App*(const char* name, const char* help, const char* example,
                                           std::function<int()> run)>;

/// For option->check(): an integer in [least, most], or a finite number of at least `least`.
CLI::Validator whole_number(int64_t least, int64_t most = INT64_MAX);
CLI::Validator finite_number(double least);

/// For option->transform() of a layout: "" becomes ";", the layout without rules, as an Arguments
/// without a layout means the configuration's.
CLI::Validator written_layout();

/// Wraps a `command` that needs no ranks: only the first of several launched processes runs it.
std::function<int()> by_one_process(Arguments& a, std::function<int()> command);

/// Flags of a model that is run or lowered, except its name and layout.
void add_job(CLI::App* app, Arguments& a);
/// The same with name and layout, and the planner's flags for `auto`.
void add_model(CLI::App* app, Arguments& a);
void add_machine(CLI::App* app, Arguments& a);
void add_json(CLI::App* app, Arguments& a);
/// --html.
void add_html(CLI::App* app, Arguments& a);
/// --batch and --recompute.
void add_batch(CLI::App* app, Arguments& a);
void add_recompute(CLI::App* app, Arguments& a);

/// A positional argument; they are stored in a.words in order.
struct Word {
  const char* name;
  const char* help;
  bool required = true;
};
void add_words(CLI::App* app, Arguments& a, const std::vector<Word>& words);

/// Puts the options of a command into the groups of its help, each with an example.
void group_options(CLI::App* app);

/// Adds plan, simulate, calibrate, sweep, diff and solve.
void add_planning(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models);

/// A command and its function.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};
/// Adds all commands. Their functions keep references to `a` and `models`.
std::vector<Command> add_commands(CLI::App& app, Arguments& a,
                                  const std::vector<ModelSpec>& models);

}  // namespace tessera::cli
