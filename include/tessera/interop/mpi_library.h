// Communicators of a host program's MPI without <mpi.h>: for bindings of other languages. Programs
// in C++ call the typed function of tessera/interop/mpi.h.
#pragma once

#include <string>

#include "tessera/cluster.h"

namespace tessera {

/// As the typed function. `comm`: the address of an MPI_Comm; null if there is none to adopt.
/// `library`: what MPI_Get_library_version of the host says. Throws unsupported if the MPI that
/// Tessera opens is another one.
Cluster adopt_mpi(const void* comm, const std::string& library);

}  // namespace tessera
