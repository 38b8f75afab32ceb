// What moves where an op relates dims that are split: nothing more than the elements that a rank
// lacks, with the reason of the move.
#include <functional>

#include "ops/window.h"
#include "support/catch.h"
#include "tessera/explain.h"
#include "tessera/ops.h"

namespace tessera::test {

namespace TESSERA_FILE {

const Dim height("height", 16), width("width", 8);

using Make = std::function<Tensor(Tensor)>;

/// The collectives of y = make(x[height, width]) under a layout.
std::vector<CollectiveReport> moves(const std::string& mesh, const std::string& layout,
                                    const Make& make) {
  Graph g;
  Tensor y = make(g.input("x", {height, width}, DType::float32)).named("y");
  CompileOptions options;
  options.mesh = Mesh::parse(mesh);
  options.layout = Layout::parse(layout);
  options.functions = {{"f", {y}, false}};
  return explain(g, options).functions.at(0).collectives;
}

/// There is one move, an exchange of so many bytes on each rank.
void one_exchange(const std::vector<CollectiveReport>& moves, int64_t bytes,
                  const std::string& reason) {
  REQUIRE(moves.size() == 1);
  CHECK(moves[0].kind == "exchange");
  CHECK(moves[0].bytes == bytes);
  INFO(moves[0].rule);
  CHECK(moves[0].rule.find(reason) != std::string::npos);
}

constexpr int64_t kRow = 8 * 4;  // bytes of a row of width 8

TEST_CASE("a shift by a slice sends a slice, and a rotation too", "[interval]") {
  // Of four ranks the first gets nothing.
  one_exchange(moves("p:4", "height:p", [](Tensor x) { return shift(x, "height", 4); }),
               3 * 4 * kRow / 4, "height:p, window: elements [4*p+-4, +4) of 'height'");
  one_exchange(moves("p:4", "height:p", [](Tensor x) { return shift(x, "height", 8, true); }),
               4 * kRow, "height:p");
}

TEST_CASE("a reversal sends slices to the mirrored rank", "[interval]") {
  one_exchange(moves("p:4", "height:p", [](Tensor x) { return reversed(x, "height"); }), 4 * kRow,
               "height:p, window: elements [-4*p+12, +4) of 'height'");
}

TEST_CASE("a convolution gets its halo", "[interval]") {
  auto blur = [](int64_t window) -> Make {
    return [=](Tensor x) {
      Tensor f = constant(x.graph(), 1, x.dtype(), {Dim("filter_height", window)});
      return conv(x, f, {{{"height"}}});
    };
  };
  // A row from each neighbour; the first and the last rank have one neighbour.
  one_exchange(moves("p:4", "height:p", blur(3)), 6 * kRow / 4, "elements [4*p+-1, +6)");
  // Wider than a slice: five rows on each side, up to the ends.
  one_exchange(moves("p:4", "height:p", blur(11)), (5 + 9 + 9 + 5) * kRow / 4,
               "elements [4*p+-5, +14)");
}

TEST_CASE("two split dims get their halos and corners at once", "[interval]") {
  auto moved = moves("p:2;q:2", "height:p;width:q", [](Tensor x) {
    const Shape window{Dim("filter_height", 3), Dim("filter_width", 3)};
    return conv(x, constant(x.graph(), 1, x.dtype(), window), {{{"height"}, {"width"}}});
  });
  one_exchange(moved, (9 * 5 - 8 * 4) * 4, "of 'width'");
}

TEST_CASE("what a rank has already does not move", "[interval]") {
  for (const char* layout : {"height:p", "width:p"}) {
    INFO(layout);
    CHECK(moves("p:4", layout, [](Tensor x) { return max_pool(x); }).empty());
  }
  CHECK(moves("p:4", "width:p", [](Tensor x) { return shift(x, "height", 3); }).empty());
}

TEST_CASE("windows that tile slices need nothing of others, backward too", "[interval]") {
  const Shape window{Dim("filter_height", 2)};
  const auto filter = [&](Tensor x) { return constant(x.graph(), 1, x.dtype(), window); };
  CHECK(moves("p:4", "height:p", [&](Tensor x) {
          return conv_transpose(x, filter(x), {{{"height", "", 2}}});
        }).empty());
  CHECK(moves("p:4", "height:p", [&](Tensor x) {
          return gradients(sum_all(exp(max_pool(x, {{{"height"}}}))), {x})[0];
        }).empty());
}

TEST_CASE("concat sends each part to its place", "[interval]") {
  for (const CollectiveReport& c : moves("p:4", "height:p", [](Tensor x) {
         return concat({x, exp(x)}, "height");
       })) {
    CHECK(c.kind == "exchange");
    CHECK(c.bytes <= 3 * 4 * kRow);
  }
}

TEST_CASE("a running sum along a split dim sends one element a slice", "[interval]") {
  const auto moved = moves("p:4", "height:p", [](Tensor x) { return cumsum(x, "height"); });
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].kind == "all_gather");
  CHECK(moved[0].bytes == 3 * kRow);
  CHECK(moved[0].rule == "height:p");
}

TEST_CASE("a recurrence along a split dim sends a state and a decay for each slice", "[interval]") {
  int64_t bytes = 0;
  for (const CollectiveReport& c :
       moves("p:4", "height:p", [](Tensor x) { return linear_scan(x, sigmoid(x), "height"); })) {
    CHECK(c.kind == "all_gather");
    bytes += c.bytes;
  }
  CHECK(bytes == 2 * 3 * kRow);
}

TEST_CASE("a running sum of what is still partial is taken of the whole", "[interval]") {
  // The sum over width is partial; height, of 16 elements in three slices, is padded.
  const auto moved = moves("p:2;q:3", "width:p;height:q",
                           [](Tensor x) { return cumsum(reduce_sum(x, "width"), "height"); });
  REQUIRE(moved.size() == 2);
  CHECK(moved[0].kind == "all_reduce");
  CHECK(moved[0].rule == "width:p (sum over 'width')");
  CHECK(moved[1].kind == "all_gather");
  CHECK(moved[1].bytes == 2 * 4);
}

TEST_CASE("of a split dim the largest of each slice travel, not the dim", "[interval]") {
  // Of 16 rows in four slices, the candidates of each slice: values, and where they were.
  auto bytes = [](const Make& make) {
    int64_t sum = 0;
    for (const CollectiveReport& c : moves("p:4", "height:p", make)) {
      CHECK(c.kind == "all_gather");
      CHECK(c.rule == "height:p");
      sum += c.bytes;
    }
    return sum;
  };
  CHECK(bytes([](Tensor x) { return argmax(x, "height"); }) == 2 * 3 * kRow);
  CHECK(bytes([](Tensor x) { return top_k(x, "height", Dim("k", 1)).indices; }) == 2 * 3 * kRow);
  // Two from each slice are as much as all with their indices: the dim is gathered.
  CHECK(bytes([](Tensor x) { return top_k(x, "height", Dim("k", 2)).values; }) == 3 * 4 * kRow);
}

TEST_CASE("a merge with padding sends what is elsewhere", "[interval]") {
  const auto moved =
      moves("p:3", "height:p;tokens:p", [](Tensor x) { return reshape(x, {Dim("tokens", 128)}); });
  // The rows lie as 48, 48 and 32 elements; as tokens 43, 43 and 42 of them: the second rank lacks
  // 5, the third 10.
  REQUIRE(moved.size() == 1);
  CHECK(moved[0].kind == "exchange");
  CHECK(moved[0].rule.find("[height=16, width=8] becomes [tokens=128]") != std::string::npos);
  CHECK(moved[0].bytes == (0 + 5 + 10) / 3 * 4);
}

TEST_CASE("the mesh may be as large as there is", "[interval]") {
  Graph g;
  Tensor x = g.input("x", {Dim("height", 1 << 20)}, DType::float32);
  Tensor f = constant(g, 1, DType::float32, {Dim("filter_height", 9)});
  Tensor y = conv(x, f, {{{"height"}}}).named("y");
  CompileOptions options;
  options.mesh = Mesh::parse("p:16384");
  options.layout = Layout::parse("height:p");
  options.functions = {{"f", {y}, false}};
  const Explanation e = explain(g, options);
  REQUIRE(e.functions.at(0).collectives.size() == 1);
  CHECK(e.functions[0].collectives[0].bytes == 8 * 4);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
