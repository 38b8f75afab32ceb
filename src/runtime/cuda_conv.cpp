// A convolution of the card's library, between the copies that lay its operands out as it wants
// them.
#include <utility>

#include "base/env.h"
#include "base/fail.h"
#include "kernels/cuda/conv_plan.h"
#include "runtime/cuda_device.h"

namespace tessera {

namespace {

class Convolution final : public Kernel, public Enqueued {
 public:
  Convolution(CudaDevice& device, CudaConvolution convolution)
      : device_(device), convolution_(convolution) {}
  void run() override {
    CudaApi& api = device_.api();
    for (const CudaLaunch& launch : before_) api.launch(launch, device_.compute());
    api.run(convolution_, at_[0], at_[1], at_[2], device_.product_workspace(), device_.compute());
    for (const CudaLaunch& launch : after_) api.launch(launch, device_.compute());
  }
  std::vector<CudaLaunch> before_, after_;
  void* at_[3] = {};  ///< operands and result

 private:
  CudaDevice& device_;
  CudaConvolution convolution_;
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

std::unique_ptr<Kernel> CudaDevice::bind_convolution(const KernelArgs& args, std::string& why) {
  why = may_use_cudnn() ? api_.why_no_convolutions() : "TESSERA_CUDNN is off";
  if (!why.empty()) return nullptr;
  const cuda::ConvPlan plan = cuda::plan_conv(*args.step);
  if (why = plan.why_not; !why.empty()) return nullptr;
  const CudaConvolution made = api_.prepare(conv_of(plan, args.out[0].dtype, options_.tf32));
  if (made == nullptr) {
    why = "cuDNN has no algorithm for it";
    return nullptr;
  }
  convolutions_.push_back(made);
  product_workspace();
  auto kernel = std::make_unique<Convolution>(*this, made);
  for (int side = 0; side < 3; ++side) {
    const int operand = cuda::conv_operand(plan.result, side);
    const bool is_result = operand == 2;
    const TensorArg& there = is_result ? args.out[0] : args.in[static_cast<size_t>(operand)];
    const cuda::ConvCopy& copy = plan.copies[side];
    kernel->at_[operand] = there.data;
    if (!copy.used) continue;
    check(args.workspace != nullptr, "[{}] has no workspace", args.step->origin.name);
    TensorArg here = there;
    here.strides = copy.to;
    here.data = kernel->at_[operand] = static_cast<char*>(args.workspace) + copy.offset;
    (is_result ? kernel->after_ : kernel->before_)
        .push_back(is_result ? make_copy(here, there) : make_copy(there, here));
  }
  return kernel;
}

}  // namespace tessera
