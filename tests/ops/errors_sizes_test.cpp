// What is too large to be counted, or has too many dims, is refused where it is written.
#include <limits>

#include "base/sizes.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
const char* kHere = "(errors_sizes_test.cpp:";

struct Inputs {
  Graph g;
  Tensor x = g.input("x", {Dim("n", 3), Dim("b", 6)}, DType::float32);
  Tensor f = g.input("f", {Dim("filter_b", 2)}, DType::float32);
};

TEST_CASE("sizes are exact or refused", "[errors]") {
  CHECK(checked_size(Wide{1} << 59, "x") == int64_t{1} << 59);
  expect_usage({"x comes to 8.5", "e+37; at most 2^60"},
               [] { checked_size(Wide{kHuge} * kHuge, "x"); });
  expect_usage({"shape [p=1099511627776, q=1099511627776] has 1.2", "e+24 elements or more"}, [] {
    Shape{Dim("p", int64_t{1} << 40), Dim("q", int64_t{1} << 40)};
  });
  CHECK(Shape{Dim("p", int64_t{1} << 40), Dim("q", int64_t{1} << 19)}.elements() == int64_t{1}
                                                                                        << 59);
}

TEST_CASE("slices and paddings that no number counts", "[errors]") {
  Inputs m;
  expect_usage(
      {"[slice] elements [1, 9223372036854775808) are not within dim 'b' of size 6", kHere},
      [&] { slice(m.x, "b", 1, kHuge); });
  expect_usage({"[pad] dim 'b' with its padding comes to", kHere},
               [&] { pad(m.x, "b", kHuge, kHuge); });
  expect_usage({"[halo_exchange] 9223372036854775807 before and 0 after dim 'b'", kHere},
               [&] { halo_exchange(m.x, "n", "b", kHuge, 0); });
  expect_usage({"[split] part 1 of dim 'b' would have 0 elements", kHere}, [&] {
    split(m.x, "b", {6, 0});
  });
  CHECK(shift(m.x, "b", -kHuge).shape() == m.x.shape());
  expect_usage({"[iota] shape [i=9223372036854775807]", kHere},
               [&] { iota(m.g, Dim("i", kHuge)); });
  MicrobatchScope part(m.g, "t", 1000, 0);
  expect_usage({"dim 't' of all microbatches comes to"},
               [&] { m.g.input("whole", {Dim("t", int64_t{1} << 59)}, DType::uint8); });
}

TEST_CASE("updates and the result of a scatter have the same dims", "[errors]") {
  Graph g;
  const Tensor i = g.input("i", {Dim("a", 4)}, DType::int32),
               u = g.input("u", {Dim("a", 4), Dim("f", 5000)}, DType::float32),
               x = g.input("x", {Dim("v", 9), Dim("f", 10)}, DType::float32);
  expect_usage({"[scatter_add] the updates are [a=4, f=5000] and the result is [v=9, f=10]",
                "dim 'f' must be the same in both", kHere},
               [&] { scatter_add(i, u, x.shape(), "v"); });
  expect_usage({"[scatter] the updates are [a=4, f=5000] and the result is [v=9, f=10]", kHere},
               [&] { scatter(x, i, u, "v"); });
  expect_usage({"[scatter_add] the updates are [a=4, f=5000] and the result is [v=9, a=3, f=5000]",
                "dim 'a' must be", kHere},
               [&] {
                 scatter_add(i, u, {{"v", 9}, {"a", 3}, {"f", 5000}}, "v");
               });
  expect_usage({"the result is [v=9, f<=5000]", "dim 'f' must be", kHere}, [&] {
    scatter_add(i, u, {{"v", 9}, Dim::bounded("f", 5000)}, "v");
  });
}

TEST_CASE("windows that no number counts", "[errors]") {
  Inputs m;
  expect_usage({"[conv] the dilation along dim 'b' comes to", kHere}, [&] {
    conv(m.x, m.f, {{{"b", "", 1, kHuge / 2 + 5}}});
  });
  expect_usage({"[conv] the stride along dim 'b' comes to", kHere}, [&] {
    conv(m.x, m.f, {{{"b", "", kHuge}}});
  });
  expect_usage({"[windows] the dilation along dim 'b' comes to", kHere}, [&] {
    windows(m.x, "b", Dim("w", 2), {1, kHuge / 2 + 5});
  });
  expect_usage({"[windows] a window along dim 'b' comes to", kHere}, [&] {
    windows(m.x, "b", Dim("w", int64_t{1} << 40), {1, int64_t{1} << 40});
  });
  expect_usage({"[windows] dim 'b' with its padding comes to", kHere}, [&] {
    windows(m.x, "b", Dim("w", 2), {1, 1, kHuge, kHuge});
  });
  expect_usage({"[conv_transpose] dim 'b' of the result comes to", kHere}, [&] {
    conv_transpose(m.x, m.f, {{{"b", "", kHuge}}});
  });
  expect_usage({"[compress_mean] dim 'b' of full groups comes to", kHere},
               [&] { nn::compress_mean(m.x, "b", kHuge); });
}

TEST_CASE("a tensor of more dims than are supported is refused where it is made", "[errors]") {
  Graph g;
  auto dims = [](int first, int last, std::vector<Dim> more = {}) {
    for (int d = first; d < last; ++d) more.emplace_back("d" + std::to_string(d), 1 + d % 2);
    return Shape(more);
  };
  expect_usage({"[input] a tensor of 25 dims; at most 24 are supported", kHere},
               [&] { g.input("x", dims(0, 25), DType::float32); });
  Tensor x = g.input("x", dims(0, 24), DType::float32),
         y = g.input("y", dims(12, 36), DType::float32),
         one = g.input("one", {Dim("f", 2)}, DType::float32);
  expect_usage({"[mul] a tensor of 25 dims", kHere}, [&] { x* one; });
  expect_usage({"[einsum] a contraction over 36 dims; at most 24 are supported", kHere}, [&] {
    einsum({x, y}, dims(0, 12, dims(24, 36).dims()));
  });
}

}  // namespace TESSERA_FILE
