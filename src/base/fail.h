// Throwing an Error with a formatted message, and the helpers that make messages helpful.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <source_location>
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

/// Where a caller stands: "model.cpp:41".
std::string where(const std::source_location& at);

/// Does `work` on behalf of the function `op` that was called at `at`: an error that names no op
/// yet gets both.
template <class Work>
auto on_behalf_of(const char* op, const std::source_location& at, Work work) {
  try {
    return work();
  } catch (const Error& e) {
    if (e.what()[0] == '[') throw;
    throw Error(e.kind(), fmt::format("[{}] {} ({})", op, e.what(), where(at)));
  }
}

/// "; did you mean 'batch'?" for the known name with the least edit distance to `name`, or
/// "; known: a, b, c" where none is near. Empty if there are no known names.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

}  // namespace tessera
