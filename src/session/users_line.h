// Errors of a Session's methods name the method and the caller's line.
#pragma once

#include <source_location>
#include <string_view>

#include "tessera/error.h"

namespace tessera {

/// The usage or unsupported error `e` of a method that was called at `at`: "[method] ... (line)",
/// where it has no name and no source line yet. Other errors, and those of calls from the library
/// itself, stay as they are: a user did not write its lines.
Error with_users_line(std::string_view method, const std::source_location& at, const Error& e);

/// Calls `work` for a method that was called at `at`; errors are with_users_line(). What all ranks
/// or another process threw has its line already.
template <class Work>
decltype(auto) at_users_line(std::string_view method, const std::source_location& at, Work work) {
  try {
    return work();
  } catch (const PeerFailure&) {
    throw;
  } catch (const CommonFailure&) {
    throw;
  } catch (const Error& e) {
    throw with_users_line(method, at, e);
  }
}

}  // namespace tessera
