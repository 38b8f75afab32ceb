// The bytes of an exchange between two shapes, beside a count of every element.
#include "program/renumbering.h"

#include <random>

#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Sizes whose product is `elements`, with ones among them.
std::vector<int64_t> factors_of(int64_t elements, std::mt19937_64& random) {
  std::vector<int64_t> sizes;
  while (elements > 1) {
    std::vector<int64_t> divisors;
    for (int64_t d = 2; d <= elements; ++d) {
      if (elements % d == 0) divisors.push_back(d);
    }
    sizes.push_back(divisors[random() % divisors.size()]);
    elements /= sizes.back();
    if (random() % 4 == 0) sizes.push_back(1);
  }
  return sizes;
}

/// Axes at random dims, none at two; sizes are padded.
Numbering cut(const std::vector<int64_t>& extents, const std::vector<int>& axis_sizes,
              std::mt19937_64& random) {
  Numbering n{{extents, std::vector<std::vector<int>>(extents.size()), {}}, extents};
  for (int axis = 0; axis < static_cast<int>(axis_sizes.size()); ++axis) {
    if (!extents.empty() && random() % 4 != 0)
      n.slicing.axes[random() % extents.size()].push_back(axis);
  }
  for (size_t d = 0; d < extents.size(); ++d) {
    int64_t parts = 1;
    for (const int axis : n.slicing.axes[d]) parts *= axis_sizes[static_cast<size_t>(axis)];
    n.slicing.sizes[d] = (extents[d] + parts - 1) / parts * parts;
  }
  // A dim turns back where the slices are even.
  for (size_t d = 1; d < extents.size(); ++d) {
    if (n.slicing.sizes[d] == extents[d] && random() % 4 == 0) n.turns = static_cast<int>(d);
  }
  return n;
}

TEST_CASE("the bytes of an exchange between shapes are those of its elements") {
  std::mt19937_64 random(7);
  const std::vector<int> axis_sizes = {2, 3};
  for (int n = 0; n < 2000; ++n) {
    const int64_t elements = std::vector<int64_t>{12, 30, 48, 72, 210}[random() % 5];
    std::vector<int64_t> head = factors_of(6, random), tail = factors_of(random() % 2 + 1, random);
    const auto shape = [&] {
      std::vector<int64_t> sizes = random() % 3 != 0 ? head : std::vector<int64_t>{6};
      for (const auto& part : {factors_of(elements, random), tail})
        sizes.insert(sizes.end(), part.begin(), part.end());
      return sizes;
    };
    const Numbering from = cut(shape(), axis_sizes, random), to = cut(shape(), axis_sizes, random);
    int64_t received = 0;
    for (int x = 0; x < 2; ++x) {
      for (int y = 0; y < 3; ++y) {
        const std::vector<int> at = {x, y};
        const std::vector<Row> needs = rows_of(to, axis_sizes, at);
        for (const Row& row : needs) received += row.length;
        each_common(rows_of(from, axis_sizes, at), needs,
                    [&](int64_t, int64_t, int64_t length) { received -= length; });
      }
    }
    CHECK(mean_renumbered(from, to, axis_sizes, 6) == received);  // 6 bytes over 6 ranks
  }
}

TEST_CASE("a dim that turns back goes over the ranks in reverse where the one before it is odd") {
  const Numbering turning{{{3, 4, 2}, {{}, {0}, {}}, {}}, {3, 4, 2}, 1};
  const auto of = [&](int rank) {
    std::vector<std::array<int64_t, 3>> rows;
    for (const Row& row : rows_of(turning, {2}, std::vector<int>{rank}))
      rows.push_back({row.index, row.offset, row.length});
    return rows;
  };
  CHECK(of(0) == std::vector<std::array<int64_t, 3>>{{0, 0, 4}, {12, 4, 4}, {16, 8, 4}});
  CHECK(of(1) == std::vector<std::array<int64_t, 3>>{{4, 0, 4}, {8, 4, 4}, {20, 8, 4}});
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
