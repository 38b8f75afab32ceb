// The rule for indices outside [0, size) of gather(), scatter_add() and the steps that run them.
#pragma once

namespace tessera {

/// error: run() throws with the index. zero: the result is zero there. drop: the update is left
/// out. clamp: the nearest index that exists.
enum class OutOfRange { error, zero, drop, clamp };
constexpr const char* to_string(OutOfRange rule) {
  constexpr const char* kNames[] = {"error", "zero", "drop", "clamp"};
  return kNames[static_cast<int>(rule)];
}

}  // namespace tessera
