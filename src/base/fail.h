// Throwing an Error with a formatted message, and the helpers that make messages helpful.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <source_location>
#include <string>
#include <string_view>
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

/// The error `e` of the function `op` that was called at `at`: with both where it has neither, and
/// with `op` instead of a function that `op` called, which names the same line. One with another
/// line is somebody else's and stays as it is.
Error in_name_of(std::string_view op, const std::source_location& at, const Error& e);

/// Does `work` on behalf of the function `op` that was called at `at`: what the caller did wrong is
/// said of `op` and of that line, whatever `op` is made of.
template <class Work>
decltype(auto) on_behalf_of(std::string_view op, const std::source_location& at, Work work) {
  try {
    return work();
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& e) {
    throw in_name_of(op, at, e);
  }
}

/// "; did you mean 'batch'?" for the known name that ends in ".name", else for the one with the
/// least edit distance to `name`, or "; known: a, b, c" where none is near. Empty if there are no
/// known names.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

}  // namespace tessera
