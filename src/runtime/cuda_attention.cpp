// Attention of the card's library; the logarithms of sums are copied where it wants them dense.
#include "base/env.h"
#include "base/fail.h"
#include "kernels/cuda/attention_plan.h"
#include "runtime/cuda_device.h"

namespace tessera {

namespace {

constexpr int64_t kRowBytes = 16;

class Attention final : public Kernel, public Enqueued {
 public:
  Attention(CudaDevice& device, CudaAttention attention) : device_(device), attention_(attention) {}
  void run() override {
    CudaApi& api = device_.api();
    for (const CudaLaunch& launch : before_) api.launch(launch, device_.compute());
    api.run(attention_, operands_, workspace_, device_.compute());
    for (const CudaLaunch& launch : after_) api.launch(launch, device_.compute());
  }
  std::vector<CudaLaunch> before_, after_;
  CudaAttendOperands operands_;
  void* workspace_ = nullptr;

 private:
  CudaDevice& device_;
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

std::unique_ptr<Kernel> CudaDevice::bind_attention(const KernelArgs& args, std::string& why) {
  why = may_use_cudnn() ? api_.why_no_attentions() : "TESSERA_CUDNN is off";
  if (!why.empty()) return nullptr;
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
  check(args.workspace != nullptr, "[{}] has no workspace", args.step->origin.name);
  const CudaAttention made = api_.prepare(attend_of(plan), plan.library, why);
  if (made == nullptr) {
    why = fmt::format("cuDNN has no attention for it ({})", why);
    return nullptr;
  }
  attentions_.push_back(made);
  auto kernel = std::make_unique<Attention>(*this, made);
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
      .push_back(plan.backward ? make_copy(there, here) : make_copy(here, there));
  return kernel;
}

}  // namespace tessera
