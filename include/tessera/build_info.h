// What this build and this machine support: the report of `tessera info`.
#pragma once

#include <string>

namespace tessera {

struct BuildInfo {
  std::string version, cpu, isa, blas;
  int cores = 1;
  std::string mpi, cuda, nccl, cudnn;  ///< the version found, or "no: why"
  /// What of a GPU's parts this process uses or, by an environment variable, leaves out:
  /// "TESSERA_CUDNN=on TESSERA_GRAPHS=off ..."
  std::string switches;
  std::string tokenizers;  ///< the libraries that tokenizers use, and those that lack
};
BuildInfo build_info();

}  // namespace tessera
