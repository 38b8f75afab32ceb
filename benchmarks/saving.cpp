// bench_saving [--width N] [--layers N] [--batch N] [--every N] [--rounds N] [--dir DIR]: what
// saving in the background costs a step. Training of a stack of square products with Adam goes on
// in rounds of `every` steps, by turns without a save and with one that starts at the round's first
// step and is given until its end; what is compared are the sums of the steps' times.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>

#include "tessera/checkpoint.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

struct Options {
  int64_t width = 1024, layers = 8, batch = 512;
  int every = 20, rounds = 6;
  std::string parent = std::filesystem::temp_directory_path(), mesh = "data:1";
};

double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

Tensor stack(Graph& g, const Options& o) {
  const Dim batch("batch", o.batch), in("in", o.width), out("out", o.width);
  Tensor x = g.input("x", {batch, in}, DType::float32);
  for (int64_t i = 0; i < o.layers; ++i) {
    Tensor w = g.parameter(fmt::format("w{}", i), {in, out}, nn::normal(0.02));
    x = rename(tanh(einsum({x, w}, {batch, out})), "out", "in");
  }
  return mean_all(x * x).named("loss");
}

void measure(const Options& o, const std::string& directory) {
  Graph g;
  Tensor loss = stack(g, o);
  minimize(loss, g.input("lr", {}, DType::float32), adam({}), {});
  const Mesh mesh = Mesh::parse(o.mesh);
  Cluster cluster = Cluster::threads(mesh.size());
  Session session(g, cluster, {mesh, Layout::parse("batch:data"), {{"train", {loss}, true}}, 1, 1});
  Array rate(DType::float32, {}, {}), x(DType::float32, {"batch", "in"}, {o.batch, o.width});
  rate.data<float>()[0] = 1e-4f;
  for (int64_t i = 0; i < x.elements(); ++i) x.data<float>()[i] = static_cast<float>(i % 17) / 17;
  session.feed("lr", rate);
  session.feed("x", x);
  Checkpoints checkpoints(cluster, directory, 1);
  std::vector<double> plain, saving, copy, late, ratio;
  int64_t step = 0;
  for (int round = -1; round < o.rounds; ++round) {  // the first is not counted
    double ms[2] = {};
    for (const bool saves : {false, true}) {
      const double begin = now_ms();
      if (saves) {
        checkpoints.start(session, step);
        copy.push_back(now_ms() - begin);
      }
      for (int i = 0; i < o.every; ++i, ++step) session.run("train");
      ms[saves] = now_ms() - begin;
      if (saves) {
        const double end = now_ms();
        checkpoints.finish();
        late.push_back(now_ms() - end);
      }
    }
    if (round < 0) continue;
    plain.push_back(ms[0]);
    saving.push_back(ms[1]);
    ratio.push_back(ms[1] / ms[0] - 1);
  }
  fmt::print(
      "{} MB saved every {} steps of {:.0f} ms: overhead {:.1f} % (median of rounds; {:.1f} % from "
      "the sums' medians); a save's copy takes {:.0f} ms, and it ends {:.0f} ms after the round\n",
      Checkpoints::owned_bytes(session) / 1'000'000, o.every, median(plain) / o.every,
      100 * median(ratio), 100 * (median(saving) / median(plain) - 1), median(copy), median(late));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("what saving in the background costs a step");
  app.add_option("--width", o.width, "of the square products")->check(CLI::Range(8, 16384));
  app.add_option("--layers", o.layers)->check(CLI::Range(1, 1000));
  app.add_option("--batch", o.batch)->check(CLI::Range(1, 65536));
  app.add_option("--every", o.every, "steps between saves")->check(CLI::Range(1, 10000));
  app.add_option("--rounds", o.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--mesh", o.mesh, "of thread ranks: \"data:N\"");
  app.add_option("--dir", o.parent, "where the files are made, and removed")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  std::string directory = o.parent + "/tessera-bench-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    fmt::print(stderr, "bench_saving: cannot make {}\n", directory);
    return 1;
  }
  int code = 0;
  try {
    measure(o, directory);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_saving: {}\n", e.what());
    code = 1;
  }
  std::filesystem::remove_all(directory);
  return code;
}
