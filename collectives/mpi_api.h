// What libtessera_mpi.so offers to the library that opens it.
#pragma once

#include <memory>
#include <string>

#include "collectives/communicator.h"

namespace tessera {

struct MpiApi {
  std::unique_ptr<Communicator> (*world)(const MpiOptions& options);
  std::unique_ptr<Communicator> (*adopt)(const void* comm, const MpiOptions& options);
};
/// Its only symbol, "tessera_mpi_open". Null if it does not belong to Tessera's `version`, or if
/// another MPI than its own is in this process; then `why` says so.
using MpiOpen = const MpiApi* (*)(const std::string& version, std::string& why);

}  // namespace tessera
