#include "base/env.h"

#include <cstdlib>

namespace tessera {

Environment read_environment() {
  Environment env;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    if (std::string(name) == "SLURM_STEP_NUM_TASKS" && std::getenv("SLURM_PROCID") == nullptr)
      continue;
    env.launched_ranks = std::atoi(value);
    env.launcher_variable = name;
    if (env.launched_ranks > 0) return env;
  }
  return {};
}

}  // namespace tessera
