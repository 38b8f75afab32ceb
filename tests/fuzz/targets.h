// What reads files and texts from outside, each behind one function of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::test {

struct FuzzTarget {
  const char* name;
  /// Reads the input; throws nothing: an Error is an answer, anything else ends the process.
  void (*run)(const std::string& input);
  std::vector<std::string> seeds;       ///< inputs that are good or nearly so
  std::vector<std::string> dictionary;  ///< pieces that mean something
};

const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace tessera::test
