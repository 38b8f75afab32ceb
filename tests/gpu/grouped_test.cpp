// The sort of rows by group on the emulated GPU: a sum over the rows of a group takes them in their
// order, to the bit.
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <vector>

#include "gpu/emulator.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Rows {
  int64_t batches, rows, groups;
  double share;  ///< of the rows that the first group has beside its own
};

/// For each batch and group: the sum of its rows z [batch, row, column], an element of several.
constexpr int64_t kColumns = 3;

/// How many sums differ from those of a loop over the rows.
int64_t wrong_sums(const Rows& r) {
  Graph g;
  const Dim batch("batch", r.batches), row("row", r.rows), group("group", r.groups), one("one", 1),
      column("column", kColumns);
  const Tensor z = g.input("z", {batch, row, column}, DType::float32),
               indices = g.input("indices", {batch, row}, DType::int32),
               ones = ones_like(broadcast(iota(g, one, DType::float32), {batch, row, one})),
               sums = grouped_outer(ones, z, indices, "group", {batch, group, one, column})
                          .named("sums");
  Array from(DType::float32, {"batch", "row", "column"}, {r.batches, r.rows, kColumns}),
      by(DType::int32, {"batch", "row"}, {r.batches, r.rows});
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<float> want(static_cast<size_t>(r.batches * r.groups * kColumns));
  for (int64_t i = 0; i < r.batches * r.rows; ++i) {
    // Two indices are of no group.
    const auto any = static_cast<int32_t>(random() % static_cast<uint64_t>(r.groups + 2)) - 1;
    const int32_t k = by.data<int32_t>()[i] = uniform(random) < r.share ? 0 : any;
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto x = static_cast<float>((uniform(random) - 0.5) * std::pow(10, i % 5));
      from.data<float>()[i * kColumns + c] = x;
      if (k >= 0 && k < r.groups)
        want[static_cast<size_t>((i / r.rows * r.groups + k) * kColumns + c)] += x;
    }
  }
  Cluster cluster = Cluster::threads(1);
  CompileOptions options{Mesh::parse("a:1"), {}, {{"f", {sums}, false}}};
  options.device = "cuda";
  Session session(g, cluster, options);
  session.feed("z", from);
  session.feed("indices", by);
  session.run("f");
  const Array got = session.fetch("sums");
  int64_t wrong = 0;
  for (int64_t i = 0; i < got.elements(); ++i)
    wrong += got.data<float>()[i] != want[static_cast<size_t>(i)];
  return wrong;
}

/// Sorted by 16 warps, some, one whose counts are in shared memory, and one whose counts are not.
const Rows kCases[] = {{2, 5003, 5, 0},  {1, 4096, 1, 0},    {3, 700, 130, 0}, {1, 700, 130, 0.9},
                       {2, 700, 130, 1}, {2, 100, 130, 0.2}, {1, 31, 40, 0},   {1, 900, 8200, 0.1}};

void check_sums() {
  for (const Rows& r : kCases) {
    INFO(r.rows << " rows of " << r.groups << " groups, " << r.share);
    CHECK(wrong_sums(r) == 0);
  }
}

TEST_CASE("a GPU sorts rows by group and keeps their order", "[cuda][ragged]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  check_sums();
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("rows are sorted by group as PTX, too", "[cuda][ptx][ragged]") {
  if (!has_ptx()) return;
  CudaEmulator gpu;
  gpu.kernels_as = KernelsAs::ptx;
  const WithEmulator here(gpu);
  check_sums();
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
