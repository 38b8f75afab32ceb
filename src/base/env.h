// Every environment variable that Tessera reads, in one place.
#pragma once

#include <string>

namespace tessera {

struct Environment {
  int launched_ranks = 0;         ///< of the MPI job or Slurm step; 0: not launched
  std::string launcher_variable;  ///< the variable that said so
  int local_ranks = 0;            ///< of them on this host; 0: the launcher does not say
};

/// OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_STEP_NUM_TASKS (of a step with a rank: SLURM_PROCID);
/// OMPI_COMM_WORLD_LOCAL_SIZE, MPI_LOCALNRANKS.
Environment read_environment();
/// Cores that this process may run on.
int usable_cores();

}  // namespace tessera
