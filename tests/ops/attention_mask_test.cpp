// Which keys a query sees and which queries see a key: one relation, told from both sides.
#include "program/attention_mask.h"

#include <random>

#include "support/catch.h"

namespace tessera::test {

TEST_CASE("a query sees a key just where the key is seen by the query", "[fast]") {
  std::mt19937 random(3);
  const auto below = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  int seen = 0, hidden = 0;
  for (int n = 0; n < 300; ++n) {
    const AttentionMask s{1 + below(12), 1 + below(12), below(2) == 0, below(2) * (1 + below(6)),
                          below(2) * (1 + below(20))};
    const int64_t first_query = below(10), first_key = below(10);
    for (int64_t q = 0; q < s.queries; ++q) {
      const PositionRange keys = keys_seen(s, q, first_query, first_key);
      for (int64_t k = 0; k < s.keys; ++k) {
        const PositionRange queries = queries_seeing(s, k, first_query, first_key);
        const int64_t ahead = first_key + k - (first_query + q);
        const bool expected = (!s.causal || ahead <= 0) &&
                              (s.window == 0 || std::abs(ahead) < s.window) &&
                              (s.all_keys == 0 || first_key + k < s.all_keys);
        CHECK((keys.begin <= k && k < keys.end) == expected);
        CHECK((queries.begin <= q && q < queries.end) == expected);
        (expected ? seen : hidden) += 1;
      }
    }
  }
  CHECK(seen > 1000);
  CHECK(hidden > 1000);
}

}  // namespace tessera::test
