// The CUDA device on an emulated GPU: every op of op_cases has the values of the CPU, layouts
// change nothing, and every piece of work is ordered by streams and events.
#include "base/fail.h"
#include "gpu/emulator.h"
#include "gpu/rows_on_gpu.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/fed_experts.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Regions are captured in the second of two runs; then other values are fed.
constexpr int kRuns = 2;

TEST_CASE("every row of op_cases has the CPU's values on an emulated GPU", "[cuda][slow]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  CHECK(errors_of_rows(op_cases(), DType::float32, kRuns) == "");
  CHECK(gpu.texts().size() > 100);
  CHECK(gpu.graph_launches > 100);
  CHECK(gpu.matmuls > 100);
}

// Formulas are those of the CPU, and what is generated for a row differs little: a third of them
// has every kind of kernel with vectors and partial sums of float64.
TEST_CASE("rows have the CPU's values in float64 on an emulated GPU", "[cuda][slow]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  const size_t step = std::getenv("TESSERA_LONG") != nullptr ? 1 : 3;
  std::vector<OpCase> rows = op_cases();
  std::erase_if(rows, [&, i = size_t{0}](const OpCase&) mutable { return i++ % step != 0; });
  CHECK(errors_of_rows(rows, DType::float64, kRuns) == "");
}

TEST_CASE("contractions are right without a library of matmuls", "[cuda][slow]") {
  CudaEmulator gpu;
  gpu.has_matmuls = false;
  const WithEmulator here(gpu);
  CHECK(errors_of_rows(product_cases(), DType::float32, kRuns) == "");
  CHECK(gpu.matmuls == 0);
}

TEST_CASE("a gpt trains alike on the CPU and on thread ranks that share an emulated GPU",
          "[cuda]") {
  Clusters clusters;
  const auto expected =
      train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 4, "cpu", 0.1);
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  struct Case {
    const char *mesh, *layout;
  };
  for (const Case& c :
       {Case{"a:2", "length:a; @params d_model:a"}, Case{"a:2;b:2", "batch:a; heads,ff,vocab:b"}}) {
    const Mesh mesh = Mesh::parse(c.mesh);
    const auto run = [&] {
      return train_small_gpt(clusters.of(mesh.size()), mesh, c.layout, DType::float32, 4, "cuda",
                             0.1);
    };
    const GptOutcome first = run(), second = run();
    INFO(c.mesh << " " << c.layout);
    for (size_t i = 0; i < first.losses.size(); ++i) {
      CHECK(std::abs(first.losses[i] - expected.losses[i]) < 2e-5);
      CHECK(first.losses[i] == second.losses[i]);
    }
    for (const auto& [name, array] : first.stored)
      CHECK(array.bytes == second.stored.at(name).bytes);
  }
  CHECK(gpu.captures > 0);
}

TEST_CASE("thread ranks with a GPU each use groups of GPUs, within captured steps", "[cuda]") {
  Clusters clusters;
  const auto expected =
      train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 4, "cpu");
  CudaEmulator gpus(4);
  gpus.has_groups = true;
  const WithEmulator here(gpus);
  const auto outcome = train_small_gpt(clusters.of(4), Mesh::parse("a:2;b:2"),
                                       "batch:a; heads,ff,vocab:b", DType::float32, 4, "cuda");
  for (size_t i = 0; i < outcome.losses.size(); ++i)
    CHECK(std::abs(outcome.losses[i] - expected.losses[i]) < 2e-5);
  CHECK(gpus.group_calls > 0);
  CHECK(gpus.captures == 2 * 4);  // each rank: before and after the test of the loss
  CHECK(gpus.aborts > 0);         // groups end with their device
}

TEST_CASE("rows of experts travel between GPUs in whole blocks, whose bounds are raised",
          "[cuda]") {
  constexpr int64_t kExperts = 6, kRows = 32;
  const auto train = [](Cluster& cluster, const std::string& mesh, const std::string& device,
                        size_t raised) {
    const FedExperts model(kExperts, kRows);
    CompileOptions options = model.options(mesh, "batch,experts:x");
    options.profile = false;
    options.device = device;
    Session session(model.g, cluster, options);
    session.feed("x", wave(kRows));
    std::vector<double> losses;
    for (uint32_t step = 0; step < 5; ++step) {
      session.feed("indices", Choices(kExperts, kRows, 1, 0.2 * step, step).array);
      session.run("train");
      losses.push_back(session.fetch_scalar("loss"));
    }
    const std::vector<std::string> told = session.fallbacks();
    CHECK(std::count_if(told.begin(), told.end(), [](const std::string& line) {
            return line.find("more rows went") != std::string::npos;
          }) == static_cast<int64_t>(raised));
    if (device == "cuda") {
      expect_usage({"'train' has to wait for the GPU: rows that travel are counted"}, [&] {
        Session again(model.g, cluster, options);
        again.enqueue("train");
      });
    }
    return losses;
  };
  Clusters clusters;
  const std::vector<double> expected = train(clusters.of(1), "x:1", "cpu", 0);
  CudaEmulator gpus(4);
  gpus.has_groups = true;
  const WithEmulator here(gpus);
  const std::vector<double> losses = train(clusters.of(4), "x:4", "cuda", 1);
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(losses[i] == Approx(expected[i]).epsilon(1e-9));
  CHECK(gpus.captures > 0);
}

TEST_CASE("an error that a group of GPUs reports is thrown with the collective's place", "[cuda]") {
  Clusters clusters;
  CudaEmulator gpus(2);
  gpus.has_groups = true;
  gpus.trouble = "unhandled system error";
  const WithEmulator here(gpus);
  expect_error(ErrorKind::comm, {"unhandled system error", "a collective of 2 ranks", "gpt."}, [&] {
    train_small_gpt(clusters.of(2), Mesh::parse("a:2"), "batch:a", DType::float32, 1, "cuda");
  });
  clusters.drop(2);
  CHECK(gpus.aborts == 2);  // once for each rank
  CHECK(gpus.take_misuses().empty());
}

/// A parameter that is added up over two ranks, run without anything that waits.
void run_and_leave(CudaEmulator& gpus, Cluster& cluster) {
  const WithEmulator here(gpus);
  Graph g;
  const Dim rows("rows", 8), columns("columns", 4);
  Tensor x = g.input("x", {rows, columns}, DType::float32);
  Tensor w = g.parameter("w", {columns}, nn::zeros());
  g.update(w, w + reduce_sum(x, "rows"));
  CompileOptions options{Mesh::parse("a:2"), Layout::parse("rows:a"), {{"step", {}, true}}};
  options.device = "cuda";
  Session session(g, cluster, options);
  session.feed("x", Array(DType::float32, {"rows", "columns"}, {8, 4}));
  session.run("step");
  session.run("step");
}

TEST_CASE("a session ends when its GPUs have: no group is cut off, no memory read later",
          "[cuda]") {
  Clusters clusters;
  for (int way = 0; way < 3; ++way) {  // by peers, through the host, by groups
    CudaEmulator gpus(2);
    gpus.has_access = way != 1;
    gpus.has_groups = way == 2;
    run_and_leave(gpus, clusters.of(2));
    CHECK(gpus.take_misuses().empty());
  }
}

TEST_CASE("a thread has its own GPU again after a session's calls", "[cuda]") {
  Clusters clusters;
  CudaEmulator gpus(2);
  const WithEmulator here(gpus);
  gpus.contexts().use(1);
  void* own = gpus.contexts().use(1);
  train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 3, "cuda");
  CHECK(gpus.contexts().use(1) == own);
}

TEST_CASE("a wait for GPUs that do not answer ends, and says where", "[cuda]") {
  Cluster cluster = Cluster::threads(2);
  cluster.set_timeout(0.3);
  CudaEmulator gpus(2);
  gpus.has_groups = true;
  const WithEmulator here(gpus);
  Graph g;
  const nn::Model model = nn::gpt(g, small_gpt(DType::float32));
  CompileOptions options{
      Mesh::parse("a:2"), Layout::parse("batch:a"), {{"loss", {model.loss}, false}}};
  options.device = "cuda";
  Session session(g, cluster, options);
  feed_tokens(session, model, 0);
  session.run("loss");
  session.fetch(model.loss.name());
  session.run("loss");
  gpus.stuck = true;
  expect_error(
      ErrorKind::comm,
      {"on cuda:", "waited 0 s for collectives with other GPUs", "that ended is '", "(call "},
      [&] { session.fetch(model.loss.name()); });
  CHECK(gpus.aborts > 0);
}

TEST_CASE("a whole training step of one rank is one graph", "[cuda]") {
  Clusters clusters;
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 2, "cuda");
  const int64_t captured = gpu.captures;
  CHECK(captured == 2);  // before and after the test of the loss
  gpu.graph_launches = gpu.launches = 0;
  train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 5, "cuda");
  CHECK(gpu.graph_launches == 8);
}

/// Losses of six steps of a gpt with dropout whose layers are a loop in a loop of two microbatches.
std::vector<double> train_loops(Cluster& ranks, const char* mesh, const char* layout,
                                const std::string& device) {
  Graph g;
  nn::GptOptions o = small_gpt(DType::float32);
  o.layers = 4;
  o.batch = 4;
  o.dropout = 0.1;
  o.scan = true;
  const Minimized step = minimize_in_microbatches(
      g, "batch", 2, [&] { return nn::gpt(g, o).loss; }, constant(g, 0.01), adam());
  CompileOptions compile{Mesh::parse(mesh), Layout::parse(layout), {{"train", {step.loss}, true}}};
  compile.device = device;
  Session session(g, ranks, compile);
  std::vector<double> losses;
  for (int n = 0; n < 6; ++n) {
    for (const char* input : {"inputs", "targets"}) {
      Array tokens(DType::int32, {"batch", "length"}, {2 * o.batch, o.length});
      for (int64_t i = 0; i < tokens.elements(); ++i)
        tokens.data<int32_t>()[i] =
            static_cast<int32_t>((n * 7 + i * 5 + (*input == 't' ? 5 : 0)) % o.vocab);
      session.feed(input, tokens);
    }
    session.run("train");
    losses.push_back(session.fetch_scalar(step.loss.name()));
  }
  return losses;
}

TEST_CASE("loops over microbatches and layers are part of a graph", "[cuda]") {
  Clusters clusters;
  const std::vector<double> expected = train_loops(clusters.of(1), "a:1", "", "cpu");
  const auto near = [&](const std::vector<double>& losses) {
    return std::equal(losses.begin(), losses.end(), expected.begin(), expected.end(),
                      [](double x, double y) { return std::abs(x - y) < 2e-5; });
  };
  {
    CudaEmulator gpu;
    const WithEmulator here(gpu);
    CHECK(near(train_loops(clusters.of(1), "a:1", "", "cuda")));
    CHECK(gpu.captures == 2);            // before and after the first parameter is stored
    CHECK(gpu.graph_launches == 2 * 5);  // all steps but the first
  }
  CudaEmulator gpus(4);
  gpus.has_groups = true;
  const WithEmulator here(gpus);
  CHECK(near(train_loops(clusters.of(4), "a:2;b:2", "batch:a; heads,ff,vocab:b", "cuda")));
  CHECK(gpus.captures == 4 * 2);
  CHECK(gpus.graph_launches == 4 * 2 * 5);
}

TEST_CASE("microbatches pass through stages on GPUs, by groups and through the host", "[cuda]") {
  Clusters clusters;
  const std::vector<double> expected = train_loops(clusters.of(1), "a:1", "", "cpu");
  for (const bool has_groups : {false, true}) {
    CudaEmulator gpus(2);
    gpus.has_groups = has_groups;
    gpus.has_access = has_groups;
    const WithEmulator here(gpus);
    const std::vector<double> losses = train_loops(clusters.of(2), "a:2", "layers:a", "cuda");
    for (size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] - expected[i]) < 2e-5);
    clusters.drop(2);
  }
}

TEST_CASE("a loop that the host leads, or a long one, is no part of a graph", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  Graph g;
  const Dim n("n", 4), times("times", 33000);
  const Tensor x = g.input("x", {n}, DType::float32);
  const IterationResults led =
      while_loop([](const std::vector<Tensor>& c) { return sum_all(c[0]) < 100.0; },
                 [](const Iteration& t) {
                   return IterationResults{{t.carries[0] * 2.0}, {}, {}};
                 },
                 {x}, 20);
  const Tensor some = (led.carries[0] + 1.0).named("some");
  const Tensor many = repeat(times, x, [](Tensor h) { return sin(h); }).named("many");
  CompileOptions options{
      Mesh::parse("a:1"), {}, {{"some", {some}, false}, {"many", {many}, false}}};
  options.device = "cuda";
  Session session(g, clusters.of(1), options);
  session.feed("x", Array::of<float>({n}, {1, 2, 3, 4}));
  for (int run = 0; run < 3; ++run) {
    session.run("some");
    CHECK(session.fetch("some").at(3) == 65);
  }
  const int64_t captures = gpu.captures;
  session.run("many");
  session.run("many");
  CHECK(gpu.captures == captures);  // it is too long
}

TEST_CASE("bad data on a GPU: what is wrong, and nothing is stored", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  Graph g;
  const Dim n("n", 3), rows("rows", 4);
  Tensor table = g.parameter("table", {rows}, nn::zeros());
  Tensor at = g.input("at", {n}, DType::int32);
  Tensor x = gather(table, at, "rows", OutOfRange::error).named("picked");
  g.update(table, table + constant(g, 1));
  CompileOptions options{Mesh::parse("a:1"), {}, {{"step", {x}, true}}};
  options.device = "cuda";
  Session session(g, clusters.of(1), options);
  CHECK(session.device() == "cuda:0");
  Array indices(DType::int32, {"n"}, {3});
  indices.data<int32_t>()[1] = 7;
  session.feed("at", indices);
  expect_error(ErrorKind::usage, {"[gather]", "index 7", "outside [0, 4)"},
               [&] { session.run("step"); });
  CHECK(session.fetch("table").at(0) == 0);
}

TEST_CASE("devices that cannot be had are one clear error", "[cuda]") {
  Clusters clusters;
  const auto train = [&](const std::string& device) {
    train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 1, device);
  };
  expect_error(ErrorKind::usage, {"unknown device 'gpu'", "cpu, cuda, cuda:share or auto"},
               [&] { train("gpu"); });
  train("auto");  // whatever there is
  {
    CudaEmulator small(1, 4096);
    const WithEmulator here(small);
    expect_error(ErrorKind::device, {"rank 0 needs", "are free", "smaller batch"},
                 [&] { train("cuda"); });
  }
  clusters.drop(1);
  CudaEmulator old;
  old.major = 7;
  const WithEmulator here(old);
  expect_error(ErrorKind::unsupported, {"compute capability 7.0", "8.0 or newer"},
               [&] { train("cuda"); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
