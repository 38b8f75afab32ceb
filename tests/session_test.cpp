// A Session run again: nothing of an earlier run is left in a kernel, and layouts train alike.
#include "catch.h"
#include "gpt_run.h"

using namespace tessera;

TEST_CASE("a broadcast operand is read afresh in every run, whatever rows a block has") {
  // Blocks hold several rows of 96 to 200 elements; the last block of 5 or 7 rows holds fewer.
  for (int64_t rows : {3, 5, 7}) {
    for (int64_t cols : {96, 192, 200}) {
      Graph g;
      const Dim row("row", rows), col("col", cols);
      Tensor a = g.input("a", {row, col}, DType::float64), b = g.input("b", {col}, DType::float64);
      Tensor y = (a + b).named("y");
      Cluster cluster = Cluster::threads(1);
      Session session(g, cluster, {Mesh::parse("one:1"), {}, {{"run", {y}, false}}});
      for (int run = 0; run < 3; ++run) {
        Array av(DType::float64, {"row", "col"}, {rows, cols}), bv(DType::float64, {"col"}, {cols});
        for (int64_t i = 0; i < av.elements(); ++i) av.data<double>()[i] = 1000.0 * run + i;
        for (int64_t i = 0; i < cols; ++i) bv.data<double>()[i] = 0.001 * i + run;
        session.feed("a", av);
        session.feed("b", bv);
        session.run("run");
        const Array result = session.fetch("y");
        for (int64_t i = 0; i < av.elements(); ++i) {
          REQUIRE(result.at(i) == av.at(i) + bv.at(i % cols));
        }
      }
    }
  }
}

TEST_CASE("steps of training are the same with anything split") {
  const auto losses = [](const char* mesh_text, const char* layout) {
    const Mesh mesh = Mesh::parse(mesh_text);
    Cluster cluster = Cluster::threads(mesh.size());
    return test::train_small_gpt(cluster, mesh, layout, DType::float64, 4).losses;
  };
  const std::vector<double> one = losses("one:1", "");
  CHECK(one.back() < one.front());
  for (const char* layout : {"batch:a", "length:a", "heads,ff,vocab:a", "d_model:a"}) {
    INFO(layout);
    const std::vector<double> two = losses("a:2", layout);
    for (size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-11));
  }
}
