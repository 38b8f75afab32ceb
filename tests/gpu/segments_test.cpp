// Segments on the emulated GPU: the spans that attention skips by, and what a run says of ids that
// go back.
#include "gpu/emulator.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {
/// [batch=2, positions=6]: a row of ones, and `second`.
Array ids_of(const char* positions, const std::vector<int32_t>& second) {
  Array ids(DType::int32, {"batch", positions}, {2, 6});
  for (size_t i = 0; i < 6; ++i) {
    ids.data<int32_t>()[i] = 1;
    ids.data<int32_t>()[6 + i] = second[i];
  }
  return ids;
}

TEST_CASE("a GPU finds segments that go back", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Graph g;
  const Dim batch("batch", 2), length("length", 6), keys("memory_length", 6), d_head("d_head", 2);
  AttentionOptions o;
  o.segments = g.input("queries", {batch, length}, DType::int32);
  o.memory_segments = g.input("keys", {batch, keys}, DType::int32);
  const Tensor x = cast(broadcast(iota(g, length), {batch, length, d_head}), DType::float32);
  const Tensor k = rename(x, "length", "memory_length");
  const Tensor y = attention(x * 0.0, k, k, {}, o).named("y");
  Cluster cluster = Cluster::threads(1);
  CompileOptions options{Mesh::parse("a:1"), {}, {{"f", {y}, false}}};
  options.device = "cuda";
  Session session(g, cluster, options);
  const auto feed = [&](const char* name, const char* positions,
                        const std::vector<int32_t>& second) {
    session.feed(name, ids_of(positions, second));
  };
  const std::vector<int32_t> good = {0, 2, 2, 7, 0, 0};
  feed("keys", "memory_length", good);
  feed("queries", "length", {1, 3, 3, 2, 2, 0});
  expect_usage({"[attention] the segments of the queries go back from 3 to 2 at position 3",
                "number the documents of a row upwards", "segments_test.cpp:"},
               [&] { session.run("f"); });
  feed("queries", "length", good);
  feed("keys", "memory_length", {1, 0, 2, 2, 2, 2});
  expect_usage({"the segments of the keys go back from 1 to 0 at position 1"},
               [&] { session.run("f"); });
  feed("keys", "memory_length", good);
  session.run("f");
  const std::vector<double> means = {0, 1.5, 1.5, 3, 0, 0};
  for (size_t i = 0; i < means.size(); ++i)
    CHECK(session.fetch("y").at(static_cast<int64_t>(12 + 2 * i)) == Approx(means[i]));
}

TEST_CASE("packed documents take no more memory on a GPU than causal order", "[cuda]") {
  const auto transient = [](bool segments, bool window, double soft_cap) {
    Graph g;
    const Shape shape{Dim("batch", 2), Dim("length", 4096), Dim("heads", 4), Dim("d_head", 64)};
    std::vector<Tensor> in;
    for (const char* name : {"q", "k", "v"}) in.push_back(g.input(name, shape, DType::bfloat16));
    AttentionOptions o;
    o.causal = true;
    if (segments) o.segments = g.input("ids", {shape[0], shape[1]}, DType::int32);
    if (window) o.window = 512;
    o.soft_cap = soft_cap;
    for (size_t i : {1, 2}) in[i] = rename(in[i], "length", "memory_length");
    const Tensor y = attention(in[0], in[1], in[2], {}, o);
    std::vector<Tensor> out = gradients(sum_all(cast(y, DType::float32)), in);
    CompileOptions options{Mesh::parse("a:1"), {}, {{"f", out, false}}};
    options.device = "cuda";
    return static_cast<double>(explain(g, options).memory.transient);
  };
  const double causal = transient(false, false, 0);
  CHECK(transient(true, false, 0) < 1.1 * causal);
  CHECK(transient(true, true, 50) < 1.1 * causal);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
