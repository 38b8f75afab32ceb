// The scripts with which bash, zsh and fish complete the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tessera::cli {

/// The script of a shell: commands, their options, and `models` where a command takes a model.
/// Throws a usage error for a shell that is none of bash, zsh and fish.
std::string completion_script(const std::string& shell, const CLI::App& app,
                              const std::vector<std::string>& models);

}  // namespace tessera::cli
