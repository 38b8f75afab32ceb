// Uses what was installed: every public header but the one that needs MPI, the model, the ranks.
#include <tessera/build_info.h>
#include <tessera/checkpoint.h>
#include <tessera/cli.h>
#include <tessera/data.h>
#include <tessera/explain.h>
#include <tessera/interop/cuda.h>
#include <tessera/interop/dlpack.h>
#include <tessera/tessera.h>
#include <tessera/testing.h>

#include <cstdio>

using namespace tessera;

int main(int argc, char**) try {
  Graph g;
  const Dim batch("batch", 6), hidden("hidden", 10);
  Tensor x = random_normal(g, {batch, hidden});
  Tensor w = g.parameter("w", {hidden}, nn::ones());
  Tensor loss = mean_all(square(einsum({x, w}, {batch}) - 1.0)).named("loss");
  minimize(loss, constant(g, 0.01), adam());
  Cluster ranks = argc > 1 ? Cluster::mpi() : Cluster::threads(3);  // any argument: processes
  const Mesh mesh({{"a", ranks.size()}});
  Session session(g, ranks, {mesh, Layout::parse("batch:a"), {{"train", {loss}, true}}});
  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    session.run("train");
    last = session.fetch_scalar("loss");
    if (step == 0) first = last;
  }
  std::printf("tessera %s: loss %.4f -> %.4f\n", build_info().version.c_str(), first, last);
  return last < first ? 0 : 1;
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
