// Attention by cuDNN's graphs of operations, opened when the first one is asked for.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/cuda_api.h"

namespace tessera::cuda {

class Attentions {
 public:
  Attentions();
  ~Attentions();
  /// Why there are none; empty if there are.
  std::string why_not();
  /// Null where no engine with a fixed order of sums does with `most` bytes of workspace on a card
  /// of this compute capability. Of the others the first of the library's heuristic, the same on
  /// every rank: nothing is measured.
  CudaAttention prepare(const CudaAttend& attend, int card, int major, int64_t most,
                        std::string& why);
  void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
           CudaStream stream);
  void release(CudaAttention attention);

 private:
  struct Library;
  struct Attention;
  Library& library();

  std::mutex mutex_;
  std::unique_ptr<Library> library_;
};

}  // namespace tessera::cuda
