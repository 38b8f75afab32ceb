// What the command line prints. Names in it may come from files, so that all of it is made fit for
// a terminal here.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "base/printable.h"

namespace tessera::cli {

/// Prints a formatted text to `file`, with control characters as \xNN.
template <class... Args>
void say_to(std::FILE* file, fmt::format_string<Args...> text, Args&&... args) {
  const std::string safe = printable(fmt::format(text, std::forward<Args>(args)...));
  std::fwrite(safe.data(), 1, safe.size(), file);
}

/// The same to standard output.
template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  say_to(stdout, text, std::forward<Args>(args)...);
}

}  // namespace tessera::cli
