#include "gpu/device/steps.h"

#include <utility>

#include "base/fail.h"
#include "gpu/device/enqueued.h"
#include "gpu/device/host_step.h"
#include "kernels/cuda/attention_dot.h"

namespace tessera {

namespace {

/// Runs kernels one after the other. If they only add to a result, it is cleared first.
class Launches final : public Kernel, public Enqueued {
 public:
  Launches(CudaApi& api, CudaStream stream) : api_(api), stream_(stream) {}
  void run() override {
    if (clear_.bytes > 0)
      api_.memory().clear(const_cast<void*>(clear_.first), clear_.bytes, stream_);
    for (const CudaLaunch& launch : launches_) api_.kernels().launch(launch, stream_);
  }
  void add(CudaLaunch launch) {
    if (launch.blocks > 0) launches_.push_back(std::move(launch));
  }
  void clear(CudaRange range) { clear_ = range; }

 private:
  CudaApi& api_;
  CudaStream stream_;
  CudaRange clear_;
  std::vector<CudaLaunch> launches_;
};

}  // namespace

/// A step whose sums have the canonical order: the result has a place for each subtree.
std::unique_ptr<Kernel> GpuSteps::bind_ordered(const KernelArgs& args) {
  const SumOrder& order = args.step->order;
  KernelArgs memory = args;
  memory.out[0].sizes.push_back(order.places);
  memory.out[0].strides.push_back(order.stride);
  auto launches = std::make_unique<Launches>(gpu_.api, streams_.compute());
  if (cuda::gpu_kernel(args.step->kernel).clears_result) launches->clear(range_of(memory.out[0]));
  for (const cuda::Source& source : cuda::generate_ordered(args))
    launches->add(kernels_.make_launch(source, memory));
  return launches;
}

std::unique_ptr<Kernel> GpuSteps::bind(const KernelArgs& args) {
  const UseGpu here(gpu_);
  const cuda::GpuKernel& kernel = cuda::gpu_kernel(args.step->kernel);
  KernelArgs numbered = args;
  numbered.number = bound_++;
  if (args.step->order.is_strict()) return bind_ordered(numbered);
  if (gpu_.options.is_strict && kernel.library == cuda::GpuLibrary::matmul) {  // it adds nothing
    auto products = std::make_unique<Launches>(gpu_.api, streams_.compute());
    products->add(kernels_.make_launch(cuda::generate_matmul(args), args));
    return products;
  }
  if (kernel.library == cuda::GpuLibrary::matmul) return matmuls_.bind(args);
  std::string why;
  if (kernel.library == cuda::GpuLibrary::convolution) {
    if (std::unique_ptr<Kernel> convolution = convolutions_.bind(args, why)) return convolution;
  } else if (kernel.library == cuda::GpuLibrary::attention && is_narrow(args.in.at(0).dtype)) {
    if (std::unique_ptr<Kernel> attention = attention_.bind(args, why)) return attention;
  }
  if (!why.empty()) fall_back(*args.step, "runs by Tessera's own kernel: " + why);
  if (kernel.generate == nullptr || (kernel.can != nullptr && !kernel.can(*args.step))) {
    fall_back(*args.step, "runs on the host: a GPU has no kernel for it");
    return bind_on_host(gpu_, streams_, memory_, wait_, args);
  }
  auto launches = std::make_unique<Launches>(gpu_.api, streams_.compute());
  if (kernel.clears_result) launches->clear(range_of(args.out.at(0)));
  if (cuda::computes_dot(*args.step)) {
    const cuda::AttentionDot dot(
        args, static_cast<char*>(args.workspace) + cuda::attention_first_bytes(*args.step));
    launches->add(kernels_.make_launch(cuda::generate_pointwise(dot.args), dot.args));
    numbered.in.at(6) = dot.result;
  }
  for (const cuda::Source& source : kernel.generate(numbered))
    launches->add(kernels_.make_launch(source, numbered));
  return launches;
}

void GpuSteps::fall_back(const Step& step, const std::string& why) {
  fallbacks_.insert(
      fmt::format("[{}] {} ({}) {}", name_of(step), step.origin.name, step.origin.source, why));
}

std::vector<std::string> GpuSteps::fallbacks() const {
  std::vector<std::string> all(fallbacks_.begin(), fallbacks_.end());
  if (const std::string why = autotune_.why_not_kept(); !why.empty())
    all.push_back("matmul algorithms are measured anew in every process: " + why);
  for (const std::string& why : autotune_.ignored())
    all.push_back("a cached matmul algorithm is ignored and measured anew: " + why);
  if (const std::string why = gpu_.api.blas().why_not(); !why.empty())
    all.push_back("matmuls run by Tessera's own kernels: " + why);
  if (const std::string why = gpu_.api.kernels().why_from_ptx(); !why.empty())
    all.push_back("the driver compiles kernels from PTX: " + why);
  for (const std::string& why : gpu_.api.kernels().ignored())
    all.push_back("a cached kernel is ignored and compiled anew: " + why);
  return all;
}

void GpuSteps::release() {
  matmuls_.release();
  convolutions_.release();
  attention_.release();
}

}  // namespace tessera
