// Long runs on the ranks of an mpirun: memory, files, mappings, threads and communicators must not
// grow in any process. Arguments: --steps N --sessions N. The exit status is the number of things
// that grew.
#include "soak.h"
#include "tessera/interop/mpi.h"

using namespace tessera;

namespace {

/// The number that Open MPI and MPICH give a new communicator: the lowest that is free.
int64_t next_communicator() {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_SELF, &copy);
  const int64_t number = MPI_Comm_c2f(copy);
  MPI_Comm_free(&copy);
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  test::SoakOptions options = test::soak_options(argc, argv);
  options.make_ranks = [] { return Cluster::mpi(); };
  options.communicators = next_communicator;
  return test::soak(options);
}
