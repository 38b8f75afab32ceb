// Ranks of a host program that uses MPI itself. Not part of tessera.h: including this requires
// <mpi.h>, and that the program links the MPI that Tessera was built with.
#pragma once

#include <mpi.h>

#include <string>

#include "tessera/interop/mpi_library.h"

namespace tessera {

/// One rank per process of `comm`. The communicator is duplicated, so messages of the host and of
/// Tessera never mix; the host keeps and frees its own. Collective over `comm`. The host
/// initializes and finalizes MPI; the Cluster and its Sessions must be destroyed before
/// MPI_Finalize. If threads of the host call MPI while a Session runs, MPI must be initialized with
/// MPI_THREAD_MULTIPLE. Throws usage errors for a null communicator and if MPI is not running;
/// unsupported if Tessera has no MPI here, or another one.
inline Cluster adopt_mpi(MPI_Comm comm) {
  int is_initialized = 0, is_finalized = 0, length = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  const bool usable = is_initialized != 0 && is_finalized == 0 && comm != MPI_COMM_NULL;
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  MPI_Get_library_version(library, &length);
  return adopt_mpi(usable ? &comm : nullptr, library);
}

}  // namespace tessera
