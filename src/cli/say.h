// What the command line prints. Names in it may come from files, so that all of it is made fit for
// a terminal here.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace tessera::cli {

/// Writes `text` to `file` with control characters as \xNN. On a terminal its lines are broken
/// between words: see wrapped().
void write_safely(std::FILE* file, const std::string& text);

/// Prints a formatted text to `file`, as write_safely() does.
template <class... Args>
void say_to(std::FILE* file, fmt::format_string<Args...> text, Args&&... args) {
  write_safely(file, fmt::format(text, std::forward<Args>(args)...));
}

/// The same to standard output.
template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  say_to(stdout, text, std::forward<Args>(args)...);
}

}  // namespace tessera::cli
