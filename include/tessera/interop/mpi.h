// Ranks of a host program that uses MPI itself. Not part of tessera.h: including this requires
// <mpi.h> and linking the MPI that Tessera was built with.
#pragma once

#include <mpi.h>

#include "tessera/cluster.h"

namespace tessera {

/// One rank per process of `comm`. The communicator is duplicated, so messages of the host and of
/// Tessera never mix; the host keeps and frees its own. Collective over `comm`. The host
/// initializes and finalizes MPI; the Cluster and its Sessions must be destroyed before
/// MPI_Finalize. If threads of the host call MPI while a Session runs, MPI must be initialized with
/// MPI_THREAD_MULTIPLE. Throws usage errors for a null communicator and if MPI is not running;
/// unsupported if Tessera was built without MPI.
inline Cluster adopt_mpi(MPI_Comm comm) {
  int is_initialized = 0, is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  const bool usable = is_initialized != 0 && is_finalized == 0 && comm != MPI_COMM_NULL;
  return Cluster::adopt_mpi(usable ? &comm : nullptr);
}

}  // namespace tessera
