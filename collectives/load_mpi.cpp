// Opens libtessera_mpi.so when ranks of MPI are asked for. This library links no MPI, so it starts
// just as well on a machine without one.
#include <dlfcn.h>

#include "base/fail.h"
#include "base/part.h"
#include "collectives/mpi_api.h"

namespace tessera {

namespace {

constexpr const char* kLibrary = "libtessera_mpi.so";

struct Loaded {
  const MpiApi* api = nullptr;
  std::string why;
};

Loaded load() {
  Loaded made;
  if (mpi_version().empty()) {
    made.why = why_no_mpi();
    return made;
  }
  // Open MPI opens parts of its own, which need its symbols.
  void* library = open_part(kLibrary, true, made.why);
  const auto open =
      library ? reinterpret_cast<MpiOpen>(dlsym(library, "tessera_mpi_open")) : nullptr;
  if (library != nullptr && open == nullptr) made.why = fmt::format("{} is another file", kLibrary);
  made.api = open ? open(TESSERA_VERSION, made.why) : nullptr;
  return made;
}

const Loaded& loaded() {
  static const Loaded instance = load();
  return instance;
}

const MpiApi& api(const char* function) {
  if (loaded().api == nullptr)
    fail(ErrorKind::unsupported,
         "[{}] MPI cannot be used: {}; without it the ranks are threads of one process", function,
         loaded().why);
  return *loaded().api;
}

}  // namespace

std::string mpi_version() { return TESSERA_MPI_VERSION; }

std::string why_no_mpi() {
  if (mpi_version().empty())
    return "this build found no MPI when it was configured (Debian: libopenmpi-dev openmpi-bin)";
  bool found = false;
  path_of_part(kLibrary, found);
  return found ? ""
               : fmt::format(
                     "{} is not there, neither beside the program nor where it is "
                     "installed",
                     kLibrary);
}

std::string why_mpi_cannot_start() { return loaded().api != nullptr ? "" : loaded().why; }

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  return api("make_mpi_world").world(options);
}

std::unique_ptr<Communicator> adopt_mpi(const void* comm, const MpiOptions& options) {
  return api("adopt_mpi").adopt(comm, options);
}

}  // namespace tessera
