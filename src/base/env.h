// Every environment variable that Tessera reads, in one place.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct Environment {
  int launched_ranks = 0;         ///< of the MPI job or Slurm step; 0: not launched
  std::string launcher_variable;  ///< the variable that said so
  int local_ranks = 0;            ///< of them on this host; 0: the launcher does not say
  int rank = -1;                  ///< of this process; -1: it does not say
  int local_rank = -1;            ///< the number of this one on its host; -1: it does not say
};

/// OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_STEP_NUM_TASKS (of a step with a rank: SLURM_PROCID);
/// OMPI_COMM_WORLD_LOCAL_SIZE, MPI_LOCALNRANKS; OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID,
/// SLURM_LOCALID; OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID.
Environment read_environment();
/// NCCL_HOSTID is set: processes that share a GPU may form a group of NCCL.
bool has_nccl_host();
/// The folder of what may be kept between runs: TESSERA_CACHE, XDG_CACHE_HOME/tessera or
/// HOME/.cache/tessera; empty if none is set.
std::string cache_folder();
/// Makes it. What keeps `folder` from being written, for messages; empty if nothing does.
std::string why_no_cache(const std::string& folder);
/// TESSERA_EPILOGUES is not "off": products on a GPU take what stands behind them, and reductions
/// what stands before them.
bool may_fuse_for_gpu();
/// TESSERA_TIMED_PRODUCTS is not "off": a product's algorithm on a GPU is chosen by measuring.
bool may_time_products();
/// TESSERA_CUDNN is not "off": convolutions and attention on a GPU are cuDNN's where it is there.
bool may_use_cudnn();
/// The toolkit in CUDA_HOME, or "": where CUDA's libraries are looked for beside the system's
/// places.
std::string cuda_home();
/// Variables that decide numbers, of Tessera and of the libraries under it, by name; "" where
/// unset.
std::vector<std::pair<std::string, std::string>> numeric_environment();
/// Cores that this process may run on.
int usable_cores();

}  // namespace tessera
