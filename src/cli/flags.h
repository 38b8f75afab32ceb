// Flags and commands of the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

/// Adds a command: name, help (a sentence, as all help texts are), example, what it does.
using AddCommand = std::function<CLI::App*(const char* name, const char* help, const char* example,
                                           std::function<int()> run)>;

/// For option->check(): a whole number, or a finite one, from `least` on.
CLI::Validator whole_number(int64_t least, int64_t most = INT64_MAX);
CLI::Validator finite_number(double least);

/// `command`, which needs no ranks: of several launched processes the first one alone runs it.
std::function<int()> by_one_process(Arguments& a, std::function<int()> command);

/// What a model needs that is run or lowered, but for its name and its layout.
void add_job(CLI::App* app, Arguments& a);
/// With name and layout, and what the planner needs for `auto` in it.
void add_model(CLI::App* app, Arguments& a);
void add_machine(CLI::App* app, Arguments& a);
void add_json(CLI::App* app, Arguments& a);

/// A word without a flag, of those that go to a.words in this order.
struct Word {
  const char* name;
  const char* help;
  bool required = true;
};
void add_words(CLI::App* app, Arguments& a, const std::vector<Word>& words);

/// plan, simulate, calibrate, sweep, diff, solve.
void add_planning(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models);

/// A command of the program and what it does.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};
/// All of them. What they do refers to `a` and `models`.
std::vector<Command> add_commands(CLI::App& app, Arguments& a,
                                  const std::vector<ModelSpec>& models);

}  // namespace tessera::cli
