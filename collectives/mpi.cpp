// The MPI entry points.
#include <mutex>

#include "base/fail.h"
#include "base/plugin.h"
#include "collectives/mpi_fabric.h"

namespace tessera {
namespace {

constexpr double kSetupSeconds = 120;

struct Loaded {
  MpiApi* api = nullptr;
  std::string why;
};

const Loaded& loaded() {
  static const Loaded once = [] {
    Loaded l;
    const auto open =
        reinterpret_cast<MpiOpen>(open_plugin("libtessera_mpi.so", "tessera_mpi_open", l.why));
    l.api = open != nullptr ? open(l.why) : nullptr;
    if (l.why == "libtessera_mpi.so is not there")
      l.why += ": install an MPI (Debian: libopenmpi-dev openmpi-bin) and build Tessera with it";
    else if (open == nullptr)
      l.why += "; install the MPI that Tessera was built with (Debian: openmpi-bin)";
    return l;
  }();
  return once;
}

std::unique_ptr<Communicator> make(const void* comm, const MpiOptions& options, bool by_host) {
  mpi_api().ensure();
  auto wire = mpi_api().duplicate(comm, kSetupSeconds, by_host);
  return make_mpi_communicator(MpiFabric::make(std::move(wire), options, kSetupSeconds),
                               kSetupSeconds);
}

}  // namespace

bool have_mpi() { return loaded().api != nullptr; }

std::string why_no_mpi() { return loaded().why; }

MpiApi& mpi_api() {
  const Loaded& l = loaded();
  if (l.api == nullptr) fail(ErrorKind::unsupported, "MPI cannot be used: {}", l.why);
  return *l.api;
}

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  return make(mpi_api().world(), options, true);
}

std::unique_ptr<Communicator> adopt_mpi(const void* comm, const MpiOptions& options) {
  TESSERA_REQUIRE(comm, "[adopt_mpi] the communicator is null; pass the address of an MPI_Comm");
  return make(comm, options, false);
}

}  // namespace tessera
