// Throwing an Error with a formatted message, and helpers for good messages.
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

/// Throws Error(kind, fmt::vformat(text, args)).
[[noreturn]] void fail_formatted(ErrorKind kind, fmt::string_view text, fmt::format_args args);

/// Throws Error(kind, formatted message).
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  fail_formatted(kind, text, fmt::make_format_args(args...));
}

/// TESSERA_REQUIRE(ok, text, args...): throws a usage error with the formatted message unless `ok`.
/// Macros, so that the arguments of the message are evaluated only then.
#define TESSERA_REQUIRE(ok, ...) \
  ((ok) ? static_cast<void>(0) : ::tessera::fail(::tessera::ErrorKind::usage, __VA_ARGS__))

/// The same for an internal error: an invariant of Tessera is broken.
#define TESSERA_CHECK(ok, ...) \
  ((ok) ? static_cast<void>(0) : ::tessera::fail(::tessera::ErrorKind::internal, __VA_ARGS__))

/// A source line as text: "model.cpp:41".
std::string where(const std::source_location& at);

/// Rewrites error `e` for the function `op`, which was called at `at`: adds the name and the line
/// if `e` has none. If `e` has the same line and the name of a function that `op` called, the name
/// is replaced by `op`. An error with a different line stays as it is.
Error in_name_of(std::string_view op, const std::source_location& at, const Error& e);

/// True for a line of this library, or of the C++ library, as in std::make_unique<Session>().
bool is_of_library(const std::source_location& at);

/// While one lives, this thread works for a function that somebody called: what it calls in turn is
/// not what a user wrote.
class OnBehalf {
 public:
  OnBehalf();
  ~OnBehalf();
  OnBehalf(const OnBehalf&) = delete;
  static bool is_open();
};

/// True if a user, and no function of the library, calls at the line `at`: no OnBehalf is open.
bool is_users_call(const std::source_location& at);

/// Calls `work` on behalf of the function `op` that was called at `at`: errors name `op` and that
/// line, even if `op` is implemented by other ops. An OnBehalf is open meanwhile.
template <class Work>
decltype(auto) on_behalf_of(std::string_view op, const std::source_location& at, Work work) {
  const OnBehalf callee;
  try {
    return work();
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& e) {
    throw in_name_of(op, at, e);
  }
}

/// "; did you mean 'batch'?" for the known name that ends in ".name", else for the one nearest by
/// edit distance; "; known: a, b, c" if none is near. Empty if there are no known names.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

}  // namespace tessera
