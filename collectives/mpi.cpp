// The MPI entry points.
#include "base/fail.h"
#include "collectives/mpi_fabric.h"

namespace tessera {
namespace {

constexpr double kSetupSeconds = 120;

}  // namespace

bool have_mpi() { return true; }

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  ensure_mpi();
  return adopt_mpi(mpi_comm_world(), options);
}

std::unique_ptr<Communicator> adopt_mpi(const void* comm, const MpiOptions& options) {
  require(comm, "[adopt_mpi] the communicator is null; pass the address of an MPI_Comm");
  ensure_mpi();
  auto fabric =
      MpiFabric::make(std::make_unique<Wire>(comm, kSetupSeconds), options, kSetupSeconds);
  return make_mpi_communicator(std::move(fabric), kSetupSeconds);
}

}  // namespace tessera
