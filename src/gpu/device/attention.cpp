// Attention with cuDNN. log_sum is copied if cuDNN needs it dense.
#include "gpu/device/attention.h"

#include "base/env.h"
#include "base/fail.h"
#include "gpu/device/enqueued.h"
#include "kernels/cuda/attention_plan.h"

namespace tessera {

namespace {

constexpr int64_t kRowBytes = 16;

class AttentionKernel final : public Kernel, public Enqueued {
 public:
  AttentionKernel(CudaKernelApi& kernels, CudaAttentionApi& library, CudaStream stream,
                  CudaAttention attention)
      : kernels_(kernels), library_(library), stream_(stream), attention_(attention) {}
  void run() override {
    for (const CudaLaunch& launch : before_) kernels_.launch(launch, stream_);
    library_.run(attention_, operands_, workspace_, stream_);
    for (const CudaLaunch& launch : after_) kernels_.launch(launch, stream_);
  }
  std::vector<CudaLaunch> before_, after_;
  CudaAttendOperands operands_;
  void* workspace_ = nullptr;

 private:
  CudaKernelApi& kernels_;
  CudaAttentionApi& library_;
  CudaStream stream_;
  CudaAttention attention_;
};

CudaAttend attend_of(const cuda::AttentionPlan& p) {
  const auto lie = [&](int side) {
    const cuda::AttentionPlan::Lie& l = p.lie[side];
    return CudaAttend::Strides{l.batch, l.head, l.position};
  };
  return {p.dtype,
          p.backward,
          p.causal,
          p.scale,
          p.batch,
          p.heads,
          p.key_heads,
          p.queries,
          p.keys,
          p.width,
          lie(cuda::kQuerySide),
          lie(cuda::kKeySide),
          lie(cuda::kValueSide),
          lie(cuda::kOutSide),
          lie(cuda::kLogSumSide),
          lie(cuda::kGradSide),
          lie(cuda::kQueryGradSide),
          lie(cuda::kKeyGradSide),
          lie(cuda::kValueGradSide)};
}

}  // namespace

std::unique_ptr<Kernel> GpuAttention::bind(const KernelArgs& args, std::string& why) {
  why = "TESSERA_CUDNN is off";
  CudaAttentionApi* library = may_use_cudnn() ? gpu_.api.attention(why) : nullptr;
  if (library == nullptr) return nullptr;
  library_ = library;
  const cuda::AttentionPlan plan = cuda::plan_attention(*args.step);
  if (why = plan.why_not; !why.empty()) return nullptr;
  const auto operand = [&](int side) -> const TensorArg* {
    const int at = cuda::attention_operand(plan, side);
    if (at < 0) return nullptr;
    const auto i = static_cast<size_t>(at);
    return i < args.in.size() ? &args.in[i] : &args.out.at(i - args.in.size());
  };
  const auto place = [&](int side) { return operand(side) ? operand(side)->data : nullptr; };
  for (int side = 0; side < cuda::kAttentionSides; ++side) {
    if (reinterpret_cast<uintptr_t>(place(side)) % kRowBytes != 0)
      why = "an operand does not begin at a multiple of 16 bytes";
  }
  if (!why.empty()) return nullptr;
  TESSERA_CHECK(args.workspace != nullptr, "[{}] has no workspace", args.step->origin.name);
  const CudaAttention made = library_->prepare(attend_of(plan), plan.library, why);
  if (made == nullptr) {
    why = fmt::format("cuDNN has no attention for it ({})", why);
    return nullptr;
  }
  prepared_.push_back(made);
  auto kernel =
      std::make_unique<AttentionKernel>(gpu_.api.kernels(), *library_, streams_.compute(), made);
  const auto past = reinterpret_cast<uintptr_t>(args.workspace) % cuda::kAttentionAlign;
  char* first = static_cast<char*>(args.workspace) + (past > 0 ? cuda::kAttentionAlign - past : 0);
  kernel->workspace_ = first + plan.copied;
  CudaAttendOperands& o = kernel->operands_;
  o = {place(cuda::kQuerySide),     place(cuda::kKeySide),     place(cuda::kValueSide),
       place(cuda::kOutSide),       place(cuda::kLogSumSide),  place(cuda::kGradSide),
       place(cuda::kQueryGradSide), place(cuda::kKeyGradSide), place(cuda::kValueGradSide)};
  if (plan.copied == 0) return kernel;
  const auto log_sum = [&](void* data, const cuda::AttentionPlan::Lie& lie) {
    return TensorArg{data,
                     DType::float32,
                     {plan.batch, plan.heads, plan.queries},
                     {lie.batch, lie.head, lie.position}};
  };
  const TensorArg there = log_sum(o.log_sum, plan.own_log_sum),
                  here = log_sum(first, plan.lie[cuda::kLogSumSide]);
  o.log_sum = here.data;
  (plan.backward ? kernel->before_ : kernel->after_)
      .push_back(plan.backward ? kernels_.make_copy(there, here) : kernels_.make_copy(here, there));
  return kernel;
}

void GpuAttention::release() {
  for (CudaAttention attention : prepared_) library_->release(attention);
  prepared_.clear();
}

}  // namespace tessera
