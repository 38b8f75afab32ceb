#include "base/misspelt.h"

#include <algorithm>

#include "base/edit_distance.h"
#include "base/fail.h"

namespace tessera {

std::optional<std::pair<Dim, Dim>> misspelt_pair(const Shape& a, const Shape& b,
                                                 const std::vector<std::string>& meant) {
  const auto is_meant = [&](const Dim& d) {
    return std::find(meant.begin(), meant.end(), d.name) != meant.end();
  };
  for (const Dim& mine : a) {
    if (b.has(mine.name)) continue;
    for (const Dim& other : b) {
      if (a.has(other.name) || other.size != mine.size || !is_near(mine.name, other.name)) continue;
      if (!is_meant(mine) || !is_meant(other)) return std::pair{mine, other};
    }
  }
  return {};
}

void require_no_misspelling(const Shape& a, const Shape& b, const std::vector<std::string>& meant) {
  const auto pair = misspelt_pair(a, b, meant);
  TESSERA_REQUIRE(
      !pair,
      "the operands {} and {} have dims '{}' and '{}', and the result would have both; give "
      "them one name, or broadcast() an operand if it is meant",
      a.to_string(), b.to_string(), pair ? pair->first.name : "", pair ? pair->second.name : "");
}

}  // namespace tessera
