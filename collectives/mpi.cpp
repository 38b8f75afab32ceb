// The entry points of libtessera_mpi.so, the only part that is linked to an MPI.
#include <mpi.h>

#include "base/fail.h"
#include "collectives/mpi_api.h"
#include "collectives/mpi_fabric.h"

namespace tessera {
namespace {

constexpr double kSetupSeconds = 120;

std::unique_ptr<Communicator> make(const void* comm, const MpiOptions& options, bool by_host) {
  auto wire = std::make_unique<Wire>(comm, kSetupSeconds, by_host);
  return make_mpi_communicator(MpiFabric::make(std::move(wire), options, kSetupSeconds),
                               kSetupSeconds);
}

std::unique_ptr<Communicator> world(const MpiOptions& options) {
  ensure_mpi();
  return make(mpi_comm_world(), options, true);
}

std::unique_ptr<Communicator> adopt(const void* comm, const MpiOptions& options) {
  require(comm, "[adopt_mpi] the communicator is null; pass the address of an MPI_Comm");
  ensure_mpi();
  return make(comm, options, false);
}

/// How the version of the MPI begins for which this was compiled.
std::string compiled_for() {
#if defined(OMPI_MAJOR_VERSION)
  return fmt::format("Open MPI v{}.", OMPI_MAJOR_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH Version:";
#else
  return "";
#endif
}

constexpr MpiApi kApi = {world, adopt};

}  // namespace
}  // namespace tessera

extern "C" const tessera::MpiApi* tessera_mpi_open(const std::string& version, std::string& why) {
  if (version != TESSERA_VERSION) {
    why =
        fmt::format("libtessera_mpi.so is of Tessera {}, and this is {}", TESSERA_VERSION, version);
    return nullptr;
  }
  // A host program may have brought an MPI of its own, whose functions this one then calls.
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string found = std::string(text).substr(0, std::string(text).find_first_of(",\n")),
                    own = tessera::compiled_for();
  if (!found.starts_with(own)) {
    why = fmt::format(
        "the MPI of this process is '{}', and Tessera was built with '{}'; build Tessera with the "
        "MPI of the launcher and of mpi4py",
        found, own);
    return nullptr;
  }
  return &tessera::kApi;
}
