// Throwing an Error with a formatted message, and the helpers that make messages helpful.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/error.h"

namespace tessera {

/// Throws Error(kind, formatted message).
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

/// Throws a usage error unless `ok`.
template <class... Args>
void require(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) throw Error(ErrorKind::usage, fmt::format(text, std::forward<Args>(args)...));
}

/// Throws an internal error unless `ok`: a broken invariant of ours, never the user's fault.
template <class... Args>
void check(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) throw Error(ErrorKind::internal, fmt::format(text, std::forward<Args>(args)...));
}

/// "; did you mean 'batch'?" for the known name with the least edit distance to `name`, or
/// "; known: a, b, c" where none is near. Empty if there are no known names.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

}  // namespace tessera
