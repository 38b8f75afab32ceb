// A cuDNN convolution, between copies that bring its operands into cuDNN's layout.
#include "gpu/device/convolution.h"

#include "base/env.h"
#include "base/fail.h"
#include "gpu/device/enqueued.h"
#include "kernels/cuda/conv_plan.h"

namespace tessera {

namespace {

class ConvolutionKernel final : public Kernel, public Enqueued {
 public:
  ConvolutionKernel(CudaKernelApi& kernels, CudaConvolutionApi& library, CudaStream stream,
                    CudaConvolution convolution, void* workspace)
      : kernels_(kernels),
        library_(library),
        stream_(stream),
        convolution_(convolution),
        workspace_(workspace) {}
  void run() override {
    for (const CudaLaunch& launch : before_) kernels_.launch(launch, stream_);
    library_.run(convolution_, at_[0], at_[1], at_[2], workspace_, stream_);
    for (const CudaLaunch& launch : after_) kernels_.launch(launch, stream_);
  }
  std::vector<CudaLaunch> before_, after_;
  void* at_[3] = {};  ///< operands and result

 private:
  CudaKernelApi& kernels_;
  CudaConvolutionApi& library_;
  CudaStream stream_;
  CudaConvolution convolution_;
  void* workspace_;
};

CudaConv conv_of(const cuda::ConvPlan& plan, DType dtype, bool tf32) {
  CudaConv conv{dtype,       tf32,        plan.channels_last, static_cast<int>(plan.result),
                plan.images, plan.groups, plan.inputs,        plan.outputs,
                {}};
  for (size_t s = 0; s < 2; ++s) {
    const cuda::ConvDim& d = plan.dims[s];
    conv.dims[s] = {d.in, d.window, d.out, d.stride, d.dilation, d.pad};
  }
  return conv;
}

}  // namespace

std::unique_ptr<Kernel> GpuConvolutions::bind(const KernelArgs& args, std::string& why) {
  why = "TESSERA_CUDNN is off";
  CudaConvolutionApi* library = may_use_cudnn() ? gpu_.api.convolution(why) : nullptr;
  if (library == nullptr) return nullptr;
  library_ = library;
  const cuda::ConvPlan plan = cuda::plan_conv(*args.step);
  if (why = plan.why_not; !why.empty()) return nullptr;
  const CudaConvolution made =
      library_->prepare(conv_of(plan, args.out[0].dtype, gpu_.options.tf32));
  if (made == nullptr) {
    why = "cuDNN has no algorithm for it";
    return nullptr;
  }
  prepared_.push_back(made);
  auto kernel = std::make_unique<ConvolutionKernel>(gpu_.api.kernels(), *library_,
                                                    streams_.compute(), made, memory_.workspace());
  for (int side = 0; side < 3; ++side) {
    const int operand = cuda::conv_operand(plan.result, side);
    const bool is_result = operand == 2;
    const TensorArg& there = is_result ? args.out[0] : args.in[static_cast<size_t>(operand)];
    const cuda::ConvCopy& copy = plan.copies[side];
    kernel->at_[operand] = there.data;
    if (!copy.used) continue;
    TESSERA_CHECK(args.workspace != nullptr, "[{}] has no workspace", args.step->origin.name);
    TensorArg here = there;
    here.strides = copy.to;
    here.data = kernel->at_[operand] = static_cast<char*>(args.workspace) + copy.offset;
    (is_result ? kernel->after_ : kernel->before_)
        .push_back(is_result ? kernels_.make_copy(here, there) : kernels_.make_copy(there, here));
  }
  return kernel;
}

void GpuConvolutions::release() {
  for (CudaConvolution convolution : prepared_) library_->release(convolution);
  prepared_.clear();
}

}  // namespace tessera
