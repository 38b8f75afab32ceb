// Steps that take the time that they are priced at on another device.
#include <cstdlib>

#include "base/clock.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/io_folder.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

/// A device of 1 MFLOP/s.
constexpr const char* kSlow = R"(
format = 2
name = "slow"
device = "a slow device"
date = "2026-11-27"
source = "made up"
memory = 1000000000
launch = 1e-4

[[memory_rate]]
up_to = 0
bandwidth = 1e9

[[matmul]]
dtype = "float32"
flops = 1e6
tile_rows = 1
tile_columns = 1
units = 1
depth = 0
misaligned = 1

[[link]]
name = "link"
devices = 0
latency = 1e-5
bandwidth = 1e9
)";

/// The variable TESSERA_PACED, while it lives.
struct Paced {
  explicit Paced(const std::string& machine) { setenv("TESSERA_PACED", machine.c_str(), 1); }
  ~Paced() { unsetenv("TESSERA_PACED"); }
};

/// Two products of which two ranks compute a half each, and the sum over both.
struct Job {
  Job() {
    const Dim n("n", 32), k("k", 16), m("m", 16);
    Tensor x = nn::normal(1)(graph, {n, k}, DType::float32);
    Tensor y = einsum({x, graph.parameter("w", {k, m}, nn::normal(1))}, {n, m});
    options = {Mesh::parse("a:2"),
               Layout::parse("n:a"),
               {{"run", {sum_all(tanh(y)).named("sum")}, false}}};
  }
  double run(double& seconds) {
    Cluster cluster = Cluster::threads(2);
    Session session(graph, cluster, options);
    session.run("run");
    const double start = host_seconds();
    session.set_step(0);
    session.run("run");
    seconds = host_seconds() - start;
    return session.fetch_scalar("sum");
  }
  Graph graph;
  CompileOptions options;
};

TEST_CASE("TESSERA_PACED: steps take at least their price, and results stay", "[fast]") {
  const Folder folder;
  const std::string path = folder.write("slow.toml", kSlow);
  Job job;
  double seconds = 0, paced_seconds = 0;
  const double sum = job.run(seconds);
  const Paced paced(path);
  CHECK(job.run(paced_seconds) == sum);
  const Machine machine = Machine::load(path);
  const Explanation e = explain(job.graph, job.options, {}, &machine);
  CHECK(e.functions.back().time.compute > 8e-3);  // 8192 of the products' flops on a rank
  CHECK(paced_seconds >= e.functions.back().time.compute);
}

TEST_CASE("TESSERA_PACED: a machine that is not known is an error", "[fast][errors]") {
  Job job;
  double seconds = 0;
  const Paced paced("h10");
  expect_usage({"unknown machine 'h10'", "h100"}, [&] { job.run(seconds); });
}

}  // namespace TESSERA_FILE
