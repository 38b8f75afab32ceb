// Every environment variable that Tessera reads, in one place.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct Environment {
  int launched_ranks = 0;         ///< number of ranks in the MPI job or Slurm step; 0: not launched
  std::string launcher_variable;  ///< the variable that gave it
  int local_ranks = 0;            ///< ranks on this host; 0: not given by the launcher
  int rank = -1;                  ///< of this process; -1: not given
  int local_rank = -1;            ///< of this process on its host; -1: not given
};

/// Reads OMPI_COMM_WORLD_SIZE, PMI_SIZE or SLURM_STEP_NUM_TASKS (only with SLURM_PROCID);
/// OMPI_COMM_WORLD_LOCAL_SIZE or MPI_LOCALNRANKS; OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID or
/// SLURM_LOCALID; OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID.
Environment read_environment();
/// True if NCCL_HOSTID is set: processes that share a GPU may then form an NCCL group.
bool has_nccl_host();
/// The cache folder: TESSERA_CACHE, XDG_CACHE_HOME/tessera or HOME/.cache/tessera; empty if none of
/// these is set.
std::string cache_folder();
/// Creates `folder`. Returns why it cannot be written, for messages; empty if it can.
std::string why_no_cache(const std::string& folder);
/// TESSERA_EPILOGUES is not "off": GPU matmuls fuse pointwise ops that follow, and
/// reductions fuse those that precede.
bool may_fuse_for_gpu();
/// TESSERA_TIMED_MATMULS is not "off": GPU matmul algorithms are chosen by timing.
bool may_time_matmuls();
/// TESSERA_CUDNN is not "off": GPU convolutions and attention use cuDNN if it is installed.
bool may_use_cudnn();
/// TESSERA_GRAPHS is not "off": the steps of a GPU are captured as CUDA graphs.
bool may_use_graphs();
/// TESSERA_NCCL is not "off": collectives between GPUs use NCCL if it is installed.
bool may_use_nccl();
/// TESSERA_PACED: the machine whose prices the steps of the CPU take as their times; empty: none.
std::string paced_machine();
/// TESSERA_ISA: the instruction set of the CPU's kernels (base/isa.h); empty: the widest one.
std::string wanted_isa();
/// TERM is "dumb": a terminal without control sequences.
bool is_dumb_terminal();
/// NO_COLOR is unset or empty, and the terminal is not dumb: text on a terminal may have colours.
bool may_colour();
/// Where CUDA's libraries are looked for behind the loader's own places: the toolkit in CUDA_HOME;
/// NVIDIA's packages (site-packages/nvidia/*/lib) and the libraries of the Python environments in
/// VIRTUAL_ENV and CONDA_PREFIX; /usr/local/cuda.
std::vector<std::string> cuda_folders();
/// Variables that decide numbers, of Tessera and of the libraries under it, by name; "" where
/// unset.
std::vector<std::pair<std::string, std::string>> numeric_environment();
/// Number of cores in this process's CPU affinity mask.
int usable_cores();
/// OMP_NUM_THREADS, the first number of a list: a rank has no more threads unless it is given them.
/// 0: not set, or no number.
int most_threads();

}  // namespace tessera
