// What integers do that floating numbers do not.
#include "support/catch.h"
#include "tessera/tessera.h"

using namespace tessera;

TEST_CASE("integers: zero over and modulo zero, and dropped without a scale") {
  Graph g({.eager = true});
  const Shape shape{Dim("n", 64)};
  for (const DType dtype : {DType::int32, DType::int64, DType::uint8}) {
    const Tensor seven = constant(g, 7, dtype, shape), zero = constant(g, 0, dtype, shape);
    CHECK(g.fetch(div(seven, zero)).at(5) == 0);
    CHECK(g.fetch(floor_div(seven, zero)).at(5) == 0);
    CHECK(g.fetch(mod(seven, zero)).at(5) == 0);
    const Array kept = g.fetch(dropout(seven, 0.5));
    int zeros = 0;
    for (int64_t i = 0; i < kept.elements(); ++i) {
      CHECK((kept.at(i) == 0 || kept.at(i) == 7));
      zeros += kept.at(i) == 0;
    }
    CHECK((zeros > 8 && zeros < 56));
  }
}
