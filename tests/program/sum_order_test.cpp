// The canonical order of sums: however a sum is cut into slices, its subtrees join to the same
// tree.
#include "program/sum_order.h"

#include <algorithm>
#include <random>
#include <set>

#include "base/fail.h"
#include "support/catch.h"
#include "tessera/compile_options.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// The text of a tree: "((0 1) 2)".
class Trees {
 public:
  void push(std::string tree) { stack_.push_back(std::move(tree)); }
  void join(int64_t times) {
    for (; times > 0; --times) {
      const std::string b = stack_.back();
      stack_.pop_back();
      stack_.back() = "(" + stack_.back() + " " + b + ")";
    }
  }
  std::string only() const {
    REQUIRE(stack_.size() == 1);
    return stack_[0];
  }

 private:
  std::vector<std::string> stack_ = {};
};

std::string tree_of(const SumOrder& order, const SumRange& subtree) {
  const std::vector<SumRange> leaves = leaves_of(order, subtree);
  std::vector<uint64_t> numbers;
  for (const SumRange& leaf : leaves) numbers.push_back(leaf.leaf);
  const std::vector<int64_t> joins = joins_of(numbers);
  Trees trees;
  for (size_t i = 0; i < leaves.size(); ++i) {
    std::string text;
    for (const auto& [begin, end] : leaves[i].of)
      text += fmt::format("{}{}-{}", text.empty() ? "" : ",", begin, end);
    trees.push(text);
    trees.join(joins[i]);
  }
  return trees.only();
}

/// The tree that ranks make with these slices, each its subtrees first.
std::string joined_tree(const SumOrder& order) {
  std::vector<std::pair<uint64_t, std::string>> all;
  std::vector<int64_t> slices(order.along.size(), 0);
  while (true) {
    for (const SumRange& subtree : subtrees_of(order, slices))
      all.emplace_back(subtree.leaf, tree_of(order, subtree));
    size_t d = slices.size();
    while (d > 0 && ++slices[d - 1] == order.along[d - 1].slices) slices[--d] = 0;
    if (d == 0) break;
  }
  std::sort(all.begin(), all.end());
  std::vector<uint64_t> leaves;
  for (const auto& [leaf, tree] : all) leaves.push_back(leaf);
  const std::vector<int64_t> joins = joins_of(leaves);
  Trees trees;
  for (size_t i = 0; i < all.size(); ++i) {
    trees.push(all[i].second);
    trees.join(joins[i]);
  }
  return trees.only();
}

TEST_CASE("the tree over twelve elements in chunks of two", "[sum_order][fast]") {
  CHECK(joined_tree({{{0, 12, 2, 1, 12}}}) == "(((0-2 2-4) (4-6 6-8)) (8-10 10-12))");
  const SumOrder halves{{{0, 12, 2, 2, 6}}};
  const std::vector<SumRange> second = subtrees_of(halves, std::vector<int64_t>{1});
  REQUIRE(second.size() == 2);
  CHECK(tree_of(halves, second[0]) == "6-8");
  CHECK(tree_of(halves, second[1]) == "(8-10 10-12)");
}

TEST_CASE("no cut into slices changes the tree of a sum", "[sum_order]") {
  std::mt19937_64 random(5);
  const auto draw = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int n = 0; n < 3000; ++n) {
    SumOrder order;
    for (int64_t d = 0, dims = 1 + draw(3); d < dims; ++d) {
      const int64_t size = 1 + draw(40), chunk = chunk_size(size, int64_t{1} << draw(5));
      order.along.push_back({d, size, chunk, 1, size});
    }
    const std::string whole = joined_tree(order);
    SumOrder split = order;
    for (SumOrder::Along& a : split.along) {
      a.slices = 1 + draw(5);
      const int64_t unit = a.slices * a.chunk;
      a.slice = (a.size + unit - 1) / unit * a.chunk;
    }
    INFO(fmt::format("case {}", n));
    REQUIRE(joined_tree(split) == whole);
  }
}

/// What a slice of one dim sends: a sum of one dim has at most two subtrees a level.
TEST_CASE("a slice of a dim has few subtrees", "[sum_order][fast]") {
  for (int64_t chunks : {2, 16, 64}) {
    for (int64_t slices : {1, 2, 3, 4, 5, 7, 8, 16}) {
      const int64_t size = 64 * 3, chunk = chunk_size(size, chunks), unit = slices * chunk,
                    slice = (size + unit - 1) / unit * chunk;
      for (int64_t s = 0; s < slices; ++s) {
        const auto found =
            subtrees_of({{{0, size, chunk, slices, slice}}}, std::vector<int64_t>{s});
        CHECK(found.size() <=
              2 * static_cast<size_t>(std::bit_width(static_cast<uint64_t>(chunks))));
      }
    }
  }
  CHECK(subtrees_of({{{0, 64, 4, 4, 16}}}, std::vector<int64_t>{2}).size() == 1);
}

TEST_CASE("microbatches are subtrees of the sum over a batch", "[sum_order][fast]") {
  const auto is_one = [](int64_t batch, int64_t count, int64_t chunks) {
    for (int64_t m = 0; m < count; ++m) {
      const SumOrder order{{{0, batch, chunk_size(batch, chunks), count, batch / count}}};
      if (subtrees_of(order, std::vector<int64_t>{m}).size() != 1) return false;
    }
    return (batch / count) % chunk_size(batch, chunks) == 0 || count == 1;
  };
  for (int64_t batch = 1; batch <= 64; ++batch) {
    for (const int64_t chunks : {1, 8, 16}) {
      for (int64_t asked = 1; asked <= batch; ++asked) {
        int64_t best = asked;
        while (best <= batch && (batch % best != 0 || !is_one(batch, best, chunks))) ++best;
        INFO(batch << " examples, " << chunks << " chunks, " << asked);
        CHECK(subtree_microbatches(batch, asked, chunks) == (best <= batch ? best : asked));
      }
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
