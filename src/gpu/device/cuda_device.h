// The CUDA device: cuda_api.h behind the Device interface, without any CUDA header.
//
// Each task is done by one of its parts: memory.h, streams.h, graph_capture.h, collectives.h, and
// steps.h, which binds the steps of a Program.
#pragma once

#include "gpu/device/rank_gpu.h"
#include "runtime/device.h"

namespace tessera {

class CudaDevice final : public Device {
 public:
  /// Throws a usage error if the GPU cannot work with the host program's stream.
  CudaDevice(CudaApi& api, int gpu, Communicator& world, CudaDeviceOptions options);
  ~CudaDevice() override;

  std::string name() const override { return gpu_.name(); }
  std::vector<std::string> fallbacks() const override;
  void* allocate(int64_t bytes, const char* what) override;
  void expect(const std::vector<std::pair<const char*, int64_t>>& all) override;
  void* allocate_on_host(int64_t bytes) override;
  std::unique_ptr<Kernel> bind(const KernelArgs& args) override;
  std::unique_ptr<Operation> prepare(Communicator& group,
                                     const std::vector<Collective>& collectives) override;
  void read(void* host, const void* device, int64_t bytes) override;
  void write(void* device, const void* host, int64_t bytes) override;
  void enter() override;
  void leave() noexcept override;
  void drain(bool failed) noexcept override;
  void begin(const int64_t* scalars, size_t count) override;
  void set_scalar(size_t index, int64_t value) override;
  int64_t settle(DataFault& fault) override;
  bool may_fault() const override;
  int mark(bool transfers) override;
  std::vector<double> marks() override;
  std::function<void()> capture(const std::function<void()>& work) override;
  std::string why_not_captured(const Kernel& kernel) const override;
  std::string why_not_captured(const Operation& operation) const override;
  std::string why_waits(const Kernel& kernel) const override;
  std::string why_waits(const Operation& operation) const override;
  bool shows_ranges() override { return gpu_.api.profiler() != nullptr; }
  void push_range(const char* text) override { gpu_.api.profiler()->push_range(text); }
  void pop_range() override { gpu_.api.profiler()->pop_range(); }

 private:
  struct Parts;
  void end() noexcept;

  const RankGpu gpu_;
  std::unique_ptr<Parts> parts_;
  void* before_ = nullptr;  ///< the context that the entering thread had
};

}  // namespace tessera
