// What a program computes, by name, compared element by element.
#pragma once

#include <map>
#include <string>

#include "support/catch.h"
#include "tessera/array.h"

namespace tessera::test {

using Values = std::map<std::string, Array>;

inline void check_equal(const Values& want, const Values& got) {
  REQUIRE(want.size() == got.size());
  for (const auto& [name, value] : want) {
    const Array& other = got.at(name);
    REQUIRE(other.sizes == value.sizes);
    for (int64_t i = 0; i < value.elements(); ++i) {
      INFO(name << " element " << i);
      REQUIRE(other.at(i) == Approx(value.at(i)).epsilon(1e-9).margin(1e-10));
    }
  }
}

}  // namespace tessera::test
