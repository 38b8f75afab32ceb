// Lends a communicator to what was installed.
#include <tessera/interop/mpi.h>
#include <tessera/tessera.h>

#include <cstdio>

using namespace tessera;

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 1;
  try {
    Cluster ranks = adopt_mpi(MPI_COMM_WORLD);
    Graph g;
    const Dim items("items", 12);
    Tensor total = sum_all(iota(g, items, DType::float32)).named("total");
    const Mesh mesh({{"a", ranks.size()}});
    Session session(g, ranks, {mesh, Layout::parse("items:a"), {{"run", {total}, false}}});
    session.run("run");
    status = session.fetch_scalar("total") == 66 ? 0 : 1;
    // A communicator of an MPI that calls itself otherwise is refused.
    const MPI_Comm comm = MPI_COMM_WORLD;
    adopt_mpi(&comm, "MPICH Version: 4.0.2");
    status = 1;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::unsupported) status = 1;
    std::fprintf(stderr, "%s\n", e.what());
  }
  MPI_Finalize();
  return status;
}
