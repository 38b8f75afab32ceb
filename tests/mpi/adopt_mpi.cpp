// A host program with MPI of its own lends communicators to Tessera: the halves of its world train
// at the same time, messages of the host are under way meanwhile, and after all Sessions have ended
// the host's MPI works as before. The exit status is 0 if all is well.
#include <cstdio>

#include "tessera/interop/mpi.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

int failures = 0;

void expect(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  ++failures;
}

/// Sum of 0 .. 11 times `factor`, split over the ranks.
double sum_over(Cluster& ranks, double factor) {
  Graph g;
  const Dim items("items", 12);
  Tensor x = iota(g, items, DType::float32) * factor;
  Tensor total = sum_all(x).named("total");
  const Mesh mesh({{"a", ranks.size()}});
  Session session(g, ranks, {mesh, Layout::parse("items:a"), {{"run", {total}, false}}});
  for (int i = 0; i < 20; ++i) session.run("run");
  return session.fetch_scalar("total");
}

int world_sum(int mine) {
  int sum = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

void run(int rank, int size) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  int received = -1, next = (rank + 1) % size, before = (rank + size - 1) % size;
  MPI_Request message = MPI_REQUEST_NULL;
  MPI_Irecv(&received, 1, MPI_INT, before, 0, MPI_COMM_WORLD, &message);
  {
    Cluster ranks = adopt_mpi(half);
    int half_size = 0;
    MPI_Comm_size(half, &half_size);
    expect(ranks.size() == half_size && ranks.local_ranks() == 1, "the size of an adopted half");
    expect(ranks.backend() == "mpi", "the backend");
    const double factor = rank % 2 == 0 ? 1 : 3;
    expect(sum_over(ranks, factor) == 66 * factor, "the sum of a half");
    Cluster whole = adopt_mpi(MPI_COMM_WORLD);
    expect(whole.size() == size, "the size of the whole world");
    expect(sum_over(whole, 2) == 132, "the sum of the world");
    expect(world_sum(1) == size, "a collective of the host between Sessions");
  }
  MPI_Send(&rank, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
  MPI_Wait(&message, MPI_STATUS_IGNORE);
  expect(received == before, "a message of the host that was under way");
  MPI_Comm_free(&half);
  try {
    adopt_mpi(MPI_COMM_NULL);
    expect(false, "a null communicator is an error");
  } catch (const Error& e) {
    expect(e.kind() == ErrorKind::usage, "the kind of error of a null communicator");
  }
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0, rank = 0, size = 0, finalized = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    for (int i = 0; i < 3; ++i) run(rank, size);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 101);
  }
  MPI_Finalized(&finalized);
  expect(finalized == 0, "MPI is still the host's");
  const int everywhere = world_sum(failures);
  MPI_Finalize();
  return everywhere == 0 ? 0 : 1;
}
