#include "tessera/build_info.h"

#include <cstdio>
#include <cstring>
#include <thread>

#include "base/env.h"
#include "base/fail.h"
#include "base/isa.h"
#include "collectives/communicator.h"
#include "collectives/mpi_api.h"
#include "gpu/device/cuda_api.h"
#include "kernels/cpu/blas.h"
#include "tokenizer/encoder.h"

namespace tessera {

BuildInfo build_info() {
  BuildInfo info;
  info.version = TESSERA_VERSION;
  info.cores = static_cast<int>(std::thread::hardware_concurrency());
  info.cpu = "unknown";
  if (std::FILE* file = std::fopen("/proc/cpuinfo", "r")) {
    char line[512];
    while (std::fgets(line, sizeof(line), file)) {
      const char* colon = std::strchr(line, ':');
      if (std::strncmp(line, "model name", 10) == 0 && colon) {
        info.cpu = std::string(colon + 2, std::strcspn(colon + 2, "\n"));
        break;
      }
    }
    std::fclose(file);
  }
  info.isa = to_string(cpu_isa());
  info.blas = cpu::blas_description();
  info.mpi = have_mpi() ? mpi_api().version() : "no: " + why_no_mpi();
  const CudaSupport cuda = cuda_support();
  const std::string nccl = TESSERA_NCCL_VERSION;
  info.cuda = cuda.why_not.empty()
                  ? fmt::format("toolkit {}, driver for {}, {} GPU{}", cuda.toolkit, cuda.driver,
                                cuda.gpus, cuda.gpus == 1 ? "" : "s")
                  : "no: " + cuda.why_not +
                        (cuda.toolkit.empty() ? "" : " (built with CUDA " + cuda.toolkit + ")");
  info.nccl = cuda.toolkit.empty() ? "no: this build has no CUDA"
              : nccl.empty()       ? "no: nccl.h was not found when this build was configured"
                                   : nccl;
  const std::string cudnn = TESSERA_CUDNN_VERSION;
  info.cudnn = cuda.toolkit.empty() ? "no: this build has no CUDA"
               : cudnn.empty()      ? "no: cudnn.h of version 9 was not found when this build was "
                                      "configured; convolutions and attention have kernels of "
                                      "Tessera's own"
                                    : cudnn;
  const auto add = [&](const char* name, bool is_on) {
    info.switches +=
        fmt::format("{}{}={}", info.switches.empty() ? "" : " ", name, is_on ? "on" : "off");
  };
  add("TESSERA_CUDNN", may_use_cudnn());
  add("TESSERA_EPILOGUES", may_fuse_for_gpu());
  add("TESSERA_GRAPHS", may_use_graphs());
  add("TESSERA_NCCL", may_use_nccl());
  add("TESSERA_TIMED_MATMULS", may_time_matmuls());
  info.tokenizers = tokenizer_libraries();
  return info;
}

}  // namespace tessera
