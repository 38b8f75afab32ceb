// Ranges for NVIDIA's profilers, by NVTX's headers, which look for a profiler themselves.
#pragma once

namespace tessera::cuda {

class Ranges {
 public:
  Ranges();
  /// One was attached when this was made. If not, the others are not called.
  bool has_profiler() const { return domain_ != nullptr; }
  /// Of the calling thread, one in the other.
  void push(const char* text) const;
  void pop() const;

 private:
  void* domain_ = nullptr;
};

}  // namespace tessera::cuda
