// The MPI entry points of a build without MPI.
#include "base/fail.h"
#include "collectives/communicator.h"

namespace tessera {

bool have_mpi() { return false; }

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions&) {
  fail(ErrorKind::unsupported,
       "[make_mpi_world] this build has no MPI; configure with -DTESSERA_MPI=ON where Open MPI is "
       "installed, or run the ranks as threads of one process");
}

std::unique_ptr<Communicator> adopt_mpi(const void*, const MpiOptions&) {
  fail(ErrorKind::unsupported,
       "[adopt_mpi] this build has no MPI; configure with -DTESSERA_MPI=ON where Open MPI is "
       "installed");
}

}  // namespace tessera
