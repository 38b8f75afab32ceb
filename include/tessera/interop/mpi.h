// Ranks of a host program that uses MPI itself. Not part of tessera.h: who includes this has
// <mpi.h> and links an MPI, the one that Tessera was built with.
#pragma once

#include <mpi.h>

#include "tessera/cluster.h"

namespace tessera {

/// One rank per process of `comm`, which is duplicated: messages of the host and of Tessera never
/// meet, and the host keeps and frees its own. Collective over `comm`. MPI must be initialized, and
/// stays the host's: the Cluster and its Sessions end before MPI_Finalize. Where threads of the
/// host call MPI while a Session runs, MPI was initialized with MPI_THREAD_MULTIPLE. Throws usage
/// errors: a null communicator, MPI not running; unsupported if Tessera was built without MPI.
inline Cluster adopt_mpi(MPI_Comm comm) {
  int is_initialized = 0, is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  const bool usable = is_initialized != 0 && is_finalized == 0 && comm != MPI_COMM_NULL;
  return Cluster::adopt_mpi(usable ? &comm : nullptr);
}

}  // namespace tessera
