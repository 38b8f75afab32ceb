// What is said of an exception, whatever its type: functions of users may throw anything.
#pragma once

#include <exception>
#include <string>

namespace tessera {

/// what() of the exception that is being handled; of one that is no std::exception, that it is
/// none.
inline std::string thrown_text() {
  try {
    throw;
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace tessera
