// The MPI entry points.
#include "base/fail.h"
#include "collectives/mpi_fabric.h"

namespace tessera {
namespace {

constexpr double kSetupSeconds = 120;

std::unique_ptr<Communicator> make(const void* comm, const MpiOptions& options, bool by_host) {
  auto wire = std::make_unique<Wire>(comm, kSetupSeconds, by_host);
  return make_mpi_communicator(MpiFabric::make(std::move(wire), options, kSetupSeconds),
                               kSetupSeconds);
}

}  // namespace

bool have_mpi() { return true; }

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  ensure_mpi();
  return make(mpi_comm_world(), options, true);
}

std::unique_ptr<Communicator> adopt_mpi(const void* comm, const MpiOptions& options) {
  require(comm, "[adopt_mpi] the communicator is null; pass the address of an MPI_Comm");
  ensure_mpi();
  return make(comm, options, false);
}

}  // namespace tessera
