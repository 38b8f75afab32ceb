// libcuda, opened at run time, and the implementation of CudaApi on it.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>

#include "cuda/compile.h"
#include "cuda/library.h"
#include "cuda/ranges.h"
#include "runtime/cuda_api.h"

namespace tessera::cuda {

/// The functions of the driver that are used.
struct Driver {
  Library library{{"libcuda.so.1"}};
#define TESSERA_MEMBER(name) decltype(&::name) name##_;
#include "cuda/driver.inc"
#undef TESSERA_MEMBER
  Driver();
  void check(CUresult result, const char* call, int line) const;
};

class Attentions;
class Convolutions;
class Groups;
class Products;

class DriverApi final : public CudaApi {
 public:
  /// Throws unsupported, with the reason, if no card can be used.
  DriverApi();
  ~DriverApi() override;

  std::vector<CudaCard> cards() override { return cards_; }
  void* use(int card) override;
  void restore(void* context) override;
  bool reaches(int card, int other) override;
  int64_t free_memory() override;
  void* allocate(int64_t bytes) override;
  void release(void* memory) override;
  int card_of(const void* memory) override;
  void* allocate_host(int64_t bytes) override;
  void release_host(void* memory) override;
  CudaStream make_stream() override;
  void release(CudaStream stream) override;
  void synchronize(CudaStream stream) override;
  std::string why_not_adopted(CudaStream stream) override;
  bool is_capturing(CudaStream stream) override;
  CudaEvent make_event() override;
  void release(CudaEvent event) override;
  void record(CudaEvent event, CudaStream stream) override;
  CudaEvent make_timer() override;
  double seconds_between(CudaEvent first, CudaEvent second) override;
  void wait(CudaStream stream, CudaEvent event) override;
  bool passed(CudaEvent event) override;
  void to_device(void* to, const void* host, int64_t bytes, CudaStream stream) override;
  void to_host(void* host, const void* from, int64_t bytes, CudaStream stream) override;
  void clear(void* memory, int64_t bytes, CudaStream stream) override;
  CudaKernel load(const std::string& text) override;
  void launch(const CudaLaunch& launch, CudaStream stream) override;
  CudaProduct prepare(const CudaGemm& gemm) override;
  std::string product_library() override;
  std::vector<std::string> algorithms(CudaProduct product, int most) override;
  bool use_algorithm(CudaProduct product, const std::string& algorithm) override;
  int64_t product_workspace() override;
  void run(CudaProduct product, const void* a, const void* b, const void* added, void* c,
           void* workspace, CudaStream stream) override;
  void release(CudaProduct product) override;
  std::string why_no_convolutions() override;
  CudaConvolution prepare(const CudaConv& conv) override;
  void run(CudaConvolution convolution, const void* first, const void* second, void* result,
           void* workspace, CudaStream stream) override;
  void release(CudaConvolution convolution) override;
  std::string why_no_attentions() override;
  CudaAttention prepare(const CudaAttend& attend, int64_t workspace, std::string& why) override;
  void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
           CudaStream stream) override;
  void release(CudaAttention attention) override;
  void begin_capture(CudaStream stream) override;
  CudaGraph end_capture(CudaStream stream) override;
  void launch(CudaGraph graph, CudaStream stream) override;
  void release(CudaGraph graph) override;
  bool has_profiler() override { return ranges_.has_profiler(); }
  void push_range(const char* text) override { ranges_.push(text); }
  void pop_range() override { ranges_.pop(); }
  std::string why_no_groups() override;
  std::string group_id() override;
  CudaGroup join(const std::string& id, int rank, int size, double seconds) override;
  void begin_calls() override;
  void end_calls() override;
  void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  Combiner combiner, CudaStream stream) override;
  void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                      Combiner combiner, CudaStream stream) override;
  void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  CudaStream stream) override;
  std::string trouble(CudaGroup group) override;
  void abort(CudaGroup group) noexcept override;

 private:
  Groups& groups();
  bool can_reach(int card, int other) const;
  void enable_access(CUcontext from, CUcontext to) const;

  Driver driver_;
  std::vector<CudaCard> cards_;
  std::vector<CUcontext> contexts_;
  std::mutex mutex_;
  std::mutex kernels_mutex_;  ///< of what follows: compiling one takes long
  Cache cache_;
  std::map<std::pair<int, std::string>, CUfunction> kernels_;  ///< by card and text
  std::unique_ptr<Products> products_;
  std::unique_ptr<Convolutions> convolutions_;
  std::unique_ptr<Attentions> attentions_;
  std::unique_ptr<Groups> groups_;
  Ranges ranges_;
};

}  // namespace tessera::cuda
