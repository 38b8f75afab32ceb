// Steps for which the GPU has no kernel: the operands are copied to the host, the CPU kernel runs
// there, and the results are copied back. This waits for the GPU, so it is slow and cannot be
// captured; but every model runs.
#include "gpu/device/host_step.h"

#include "base/fail.h"
#include "gpu/device/enqueued.h"
#include "gpu/device/kernels.h"

namespace tessera {
namespace {

class OnHost final : public Kernel, public Enqueued {
 public:
  OnHost(const RankGpu& gpu, const GpuStreams& streams, GpuMemory& memory, GpuWait& wait,
         const KernelArgs& args)
      : gpu_(gpu), stream_(streams.compute()), wait_(wait), name_(name_of(*args.step)) {
    const KernelEntry* entry = find_cpu_kernel(args.step->kernel);
    if (entry == nullptr) {
      fail(ErrorKind::unsupported, "[{}] there is no kernel '{}' ({})", args.step->origin.name,
           name_, args.step->origin.source);
    }
    KernelArgs mine = args;
    for (TensorArg& arg : mine.in) stage(arg, memory, false);
    for (TensorArg& arg : mine.out) stage(arg, memory, true);
    const int64_t workspace =
        entry->workspace_bytes == nullptr ? 0 : entry->workspace_bytes(*args.step);
    if (workspace > 0) mine.workspace = memory.pinned(workspace);
    kernel_ = entry->bind(mine);
  }

  void run() override {
    CudaMemoryApi& api = gpu_.api.memory();
    for (const Copy& copy : copies_) {
      if (copy.bytes > 0) api.to_host(copy.host, copy.there, copy.bytes, stream_);
    }
    wait_.finish(stream_);
    kernel_->run();
    gpu_.api.contexts().use(gpu_.number);  // the user's function may have selected another GPU
    for (const Copy& copy : copies_) {
      if (copy.bytes > 0 && copy.is_result)
        api.to_device(copy.there, copy.host, copy.bytes, stream_);
    }
    wait_.finish(stream_);  // the pinned memory is free for the next run
  }

  std::string why_not_captured() const override {
    return fmt::format("its kernel '{}' runs on the host", name_);
  }
  std::string why_waits() const override { return why_not_captured(); }

 private:
  struct Copy {
    void *there, *host;
    int64_t bytes;
    bool is_result;
  };

  /// Stages the whole range of memory that the operand touches: gaps in a result must keep their
  /// values.
  void stage(TensorArg& arg, GpuMemory& memory, bool is_result) {
    const CudaRange range = range_of(arg);
    char* host = static_cast<char*>(memory.pinned(range.bytes));
    const int64_t offset =
        static_cast<const char*>(arg.data) - static_cast<const char*>(range.first);
    copies_.push_back({const_cast<void*>(range.first), host, range.bytes, is_result});
    arg.data = host + offset;
  }

  const RankGpu& gpu_;
  CudaStream stream_;
  GpuWait& wait_;
  std::string name_;
  std::vector<Copy> copies_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace

std::unique_ptr<Kernel> bind_on_host(const RankGpu& gpu, const GpuStreams& streams,
                                     GpuMemory& memory, GpuWait& wait, const KernelArgs& args) {
  return std::make_unique<OnHost>(gpu, streams, memory, wait, args);
}

}  // namespace tessera
