// Steps that the card has no kernel for: their operands are copied to the host, the kernel of the
// CPU runs there, and the results are copied back. It waits for the card, so it is slow and never
// part of a capture; but every model runs.
#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "runtime/cuda_device.h"

namespace tessera {
namespace {

class OnHost final : public Kernel, public Enqueued {
 public:
  OnHost(CudaDevice& device, const KernelArgs& args) : device_(device), name_(args.step->kernel) {
    const KernelEntry* entry = find_cpu_kernel(name_);
    if (entry == nullptr) {
      fail(ErrorKind::unsupported, "[{}] there is no kernel '{}' ({})", args.step->origin.name,
           name_, args.step->origin.source);
    }
    KernelArgs mine = args;
    for (TensorArg& arg : mine.in) stage(arg, false);
    for (TensorArg& arg : mine.out) stage(arg, true);
    const int64_t workspace =
        entry->workspace_bytes == nullptr ? 0 : entry->workspace_bytes(*args.step);
    if (workspace > 0) mine.workspace = device_.pinned(workspace);
    kernel_ = entry->bind(mine);
  }

  void run() override {
    CudaApi& api = device_.api();
    for (const Copy& copy : copies_) {
      if (copy.bytes > 0) api.to_host(copy.host, copy.there, copy.bytes, device_.compute());
    }
    device_.finish(device_.compute());
    kernel_->run();
    api.use(device_.card());  // a function of the user's may have chosen another
    for (const Copy& copy : copies_) {
      if (copy.bytes > 0 && copy.is_result)
        api.to_device(copy.there, copy.host, copy.bytes, device_.compute());
    }
    device_.finish(device_.compute());  // the pinned copies are free for the next run
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

  /// What the operand touches, whole: a result may leave gaps that hold something else.
  void stage(TensorArg& arg, bool is_result) {
    const CudaRange range = range_of(arg);
    char* host = static_cast<char*>(device_.pinned(range.bytes));
    const int64_t offset =
        static_cast<const char*>(arg.data) - static_cast<const char*>(range.first);
    copies_.push_back({const_cast<void*>(range.first), host, range.bytes, is_result});
    arg.data = host + offset;
  }

  CudaDevice& device_;
  std::string name_;
  std::vector<Copy> copies_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace

std::unique_ptr<Kernel> bind_on_host(CudaDevice& device, const KernelArgs& args) {
  return std::make_unique<OnHost>(device, args);
}

}  // namespace tessera
