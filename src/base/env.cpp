#include "base/env.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

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
    if (env.launched_ranks <= 0) continue;
    for (const char* local : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
      if (const char* size = std::getenv(local)) env.local_ranks = std::atoi(size);
    }
    for (const char* local : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
      const char* rank = std::getenv(local);
      if (rank != nullptr && env.local_rank < 0) env.local_rank = std::atoi(rank);
    }
    for (const char* name_of_rank : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
      const char* rank = std::getenv(name_of_rank);
      if (rank != nullptr && env.rank < 0) env.rank = std::atoi(rank);
    }
    return env;
  }
  return {};
}

bool has_nccl_host() { return std::getenv("NCCL_HOSTID") != nullptr; }

std::vector<std::string> cuda_folders() {
  namespace fs = std::filesystem;
  std::vector<std::string> all;
  const auto folders_in = [](const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), last; !error && at != last; at.increment(error))
      found.push_back(at->path());
    std::sort(found.begin(), found.end());
    return found;
  };
  if (const char* home = std::getenv("CUDA_HOME")) all.push_back(std::string(home) + "/lib64");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* environment = std::getenv(variable);
    if (environment == nullptr || *environment == '\0') continue;
    const fs::path lib = fs::path(environment) / "lib";
    for (const fs::path& python : folders_in(lib)) {
      if (!python.filename().string().starts_with("python3")) continue;
      for (const fs::path& package : folders_in(python / "site-packages" / "nvidia"))
        all.push_back((package / "lib").string());
    }
    all.push_back(lib.string());
  }
  all.push_back("/usr/local/cuda/lib64");
  return all;
}

std::string cache_folder() {
  const char *own = std::getenv("TESSERA_CACHE"), *user = std::getenv("XDG_CACHE_HOME"),
             *home = std::getenv("HOME");
  if (own != nullptr && *own != '\0') return own;
  if (user != nullptr && *user != '\0') return std::string(user) + "/tessera";
  return home != nullptr && *home != '\0' ? std::string(home) + "/.cache/tessera" : "";
}

std::string why_no_cache(const std::string& folder) {
  if (folder.empty()) return "neither TESSERA_CACHE, XDG_CACHE_HOME nor HOME is set";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const bool usable = !error && access(folder.c_str(), W_OK) == 0;
  return usable ? "" : fmt::format("the folder '{}' cannot be written", folder);
}

namespace {
bool is_off(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && std::string(value) == "off";
}
}  // namespace

bool may_fuse_for_gpu() { return !is_off("TESSERA_EPILOGUES"); }
bool may_use_cudnn() { return !is_off("TESSERA_CUDNN"); }
bool is_dumb_terminal() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) == "dumb";
}
bool may_colour() {
  const char* no = std::getenv("NO_COLOR");
  return (no == nullptr || *no == '\0') && !is_dumb_terminal();
}
bool may_use_graphs() { return !is_off("TESSERA_GRAPHS"); }
bool may_use_nccl() { return !is_off("TESSERA_NCCL"); }
bool may_time_matmuls() { return !is_off("TESSERA_TIMED_MATMULS"); }

std::string paced_machine() {
  const char* value = std::getenv("TESSERA_PACED");
  return value == nullptr ? "" : value;
}

std::string wanted_isa() {
  const char* value = std::getenv("TESSERA_ISA");
  return value == nullptr ? "" : value;
}

std::vector<std::pair<std::string, std::string>> numeric_environment() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const char* name :
       {"TESSERA_EPILOGUES", "TESSERA_CUDNN", "TESSERA_NCCL", "TESSERA_GRAPHS",
        "TESSERA_TIMED_MATMULS", "TESSERA_ISA", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
        "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
        "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO"}) {
    const char* value = std::getenv(name);
    all.emplace_back(name, value == nullptr ? "" : value);
  }
  return all;
}

int most_threads() {
  const char* value = std::getenv("OMP_NUM_THREADS");
  return value == nullptr ? 0 : std::max(0, std::atoi(value));
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace tessera
