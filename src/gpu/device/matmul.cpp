// A contraction on a GPU: copies that pack operands, matmuls of the library, copies back. The
// step's pointwise program runs in the library's epilogue if possible, else in a pointwise kernel
// after the matmul. What the library cannot express runs as direct loops.
#include "gpu/device/matmul.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "gpu/device/enqueued.h"
#include "kernels/cuda/epilogue.h"

namespace tessera {

namespace {

/// Alignment of the epilogue's own operands; the library's heuristic is not told of it.
constexpr int64_t kSideAlignment = 16;

/// Kernels before; matmuls, or kernels that replace them; kernels after.
class MatmulKernel final : public Kernel, public Enqueued {
 public:
  struct Call {
    const void *a, *b, *added;
    void* c;
  };
  MatmulKernel(CudaApi& api, CudaStream stream, GpuMemory& memory)
      : api_(api), stream_(stream), memory_(memory) {}
  void run() override {
    for (const CudaLaunch& launch : before_) api_.kernels().launch(launch, stream_);
    for (const Call& call : calls_) {
      api_.blas().run(matmul_, call.a, call.b, call.added, call.c, memory_.workspace(), stream_);
    }
    for (const CudaLaunch& launch : after_) api_.kernels().launch(launch, stream_);
  }
  CudaMatmul matmul_ = nullptr;
  std::vector<CudaLaunch> before_, after_;
  std::vector<Call> calls_;

 private:
  CudaApi& api_;
  CudaStream stream_;
  GpuMemory& memory_;
};

/// The operands of the library's matmul: the step's own or their packed copies.
class Matrices {
 public:
  Matrices(const KernelArgs& args, const cuda::MatmulPlan& plan) : args_(args), plan_(plan) {}

  /// x: 0, 1 or 2 for a, b or the result.
  const TensorArg& operand(size_t x) const { return x < 2 ? args_.in[x] : args_.out[0]; }
  char* first(size_t x) const {
    return plan_.packed[x].used ? static_cast<char*>(args_.workspace) + plan_.packed[x].offset
                                : static_cast<char*>(operand(x).data);
  }
  void* at(size_t x, const std::array<int64_t, 3>& call) const {
    return first(x) + call[x] * element(x);
  }
  int64_t element(size_t x) const { return plan_.float8 && x < 2 ? 1 : size_of(operand(x).dtype); }
  /// The largest power of two up to 256 that divides the operand's address in all calls.
  int64_t alignment(size_t x) const {
    uint64_t bits = 256;
    for (const auto& call : plan_.calls) bits |= reinterpret_cast<uint64_t>(at(x, call));
    return static_cast<int64_t>(bits & (~bits + 1));
  }

 private:
  const KernelArgs& args_;
  const cuda::MatmulPlan& plan_;
};

int64_t alignment_of(const void* at) {
  const uint64_t bits = reinterpret_cast<uint64_t>(at) | 256;
  return static_cast<int64_t>(bits & (~bits + 1));
}

CudaGemm gemm_of(const KernelArgs& args, const cuda::MatmulPlan& plan,
                 const cuda::Epilogue& epilogue, bool tf32) {
  const cuda::Matrices& m = plan.matrices;
  const size_t a = plan.swapped ? 1 : 0;
  const Matrices matrices(args, plan);
  const auto data = [&](int k) { return args.in[static_cast<size_t>(k)].data; };
  CudaGemm g{args.in[0].dtype,
             tf32,
             m.m,
             m.n,
             m.k,
             m.batch,
             m.transposed_a,
             m.transposed_b,
             m.lda,
             m.ldb,
             m.ldc,
             m.stride_a,
             m.stride_b,
             m.stride_c,
             matrices.alignment(a),
             matrices.alignment(1 - a),
             matrices.alignment(2)};
  g.result = args.out[0].dtype;
  g.adds = epilogue.added >= 0;
  if (g.adds) g.align_c = std::min(g.align_c, alignment_of(data(epilogue.added)));
  if (epilogue.bias >= 0) g.bias = data(epilogue.bias);
  g.gelu = epilogue.gelu;
  if (epilogue.kept >= 0) g.kept = args.out[static_cast<size_t>(epilogue.kept)].data;
  if (epilogue.before >= 0) g.before = data(epilogue.before);
  if (epilogue.sums >= 0) {
    const TensorArg& sums = args.out.back();
    g.sums = sums.data;
    g.sums_of_a = static_cast<size_t>(epilogue.sums) == a;
    g.sums_type = sums.dtype;
    g.stride_sums = epilogue.stride_sums;
  }
  if (plan.float8) g.float8 = {plan.float8->at(a), plan.float8->at(1 - a)};
  return g;
}

bool is_plain(const CudaGemm& g) {
  return g.bias == nullptr && !g.gelu && g.before == nullptr && g.sums == nullptr;
}

/// The same matmul with no epilogue but `added`.
CudaGemm plain(CudaGemm g) {
  g.bias = g.before = g.kept = g.sums = nullptr;
  g.gelu = false;
  return g;
}

/// Kernels for the sums of an operand.
std::vector<CudaLaunch> launch_sums(GpuKernels& kernels, const KernelArgs& args,
                                    int64_t workspace) {
  const std::optional<Step> sums = cuda::sums_of_epilogue(*args.step);
  if (!sums) return {};
  KernelArgs mine = args;
  mine.step = &*sums;
  mine.workspace = static_cast<char*>(args.workspace) + workspace;
  mine.in = {args.in[static_cast<size_t>(args.step->as<MatmulSpec>().sums)]};
  mine.out = {args.out.back()};
  mine.in[0].sizes = sums->in[0].sizes;
  mine.out[0].sizes = sums->out[0].sizes;
  std::vector<CudaLaunch> launches;
  for (const cuda::Source& source : cuda::generate_reduce(mine))
    launches.push_back(kernels.make_launch(source, mine));
  return launches;
}

/// A kernel for the rest of the epilogue, over each element of the result once.
CudaLaunch launch_rest(GpuKernels& kernels, const KernelArgs& args,
                       const cuda::Epilogue& epilogue) {
  const std::optional<Step> rest = cuda::rest_of_epilogue(*args.step, epilogue);
  if (!rest) return {};
  KernelArgs mine = args;
  mine.step = &*rest;
  mine.in = {args.out[0]};
  for (const int k : {epilogue.bias, epilogue.before}) {
    if (k >= 0) mine.in.push_back(args.in[static_cast<size_t>(k)]);
  }
  for (auto* operands : {&mine.in, &mine.out}) {
    for (TensorArg& arg : *operands) {
      for (size_t d = 0; d < arg.sizes.size(); ++d) {
        if (args.out[0].strides[d] == 0) arg.sizes[d] = 1;  // a contracted dim
      }
    }
  }
  return kernels.make_launch(cuda::generate_pointwise(mine), mine);
}

/// Adds the library calls of a matmul, and the copies before and after them.
void add_calls(MatmulKernel& kernel, GpuKernels& kernels, const KernelArgs& args,
               const cuda::MatmulPlan& plan, const cuda::Epilogue& epilogue, const MatmulWay& way) {
  kernel.matmul_ = way.matmul;
  const Matrices matrices(args, plan);
  for (size_t x = 0; x < 3; ++x) {
    const cuda::Packed& packed = plan.packed[x];
    if (!packed.used) continue;
    TESSERA_CHECK(args.workspace != nullptr, "matmul needs {} bytes of workspace", plan.workspace);
    TensorArg there = matrices.operand(x), here = there;
    here.data = matrices.first(x);
    there.sizes = here.sizes = packed.sizes;
    there.strides = packed.from;
    here.strides = packed.to;
    if (x == 2) {
      kernel.after_.push_back(kernels.make_copy(here, there));
      continue;
    }
    std::optional<Float8> format;
    if (plan.float8) format = plan.float8->at(x), here.dtype = DType::uint8;
    kernel.before_.push_back(kernels.make_copy(there, here, format));
  }
  const void* added =
      epilogue.added < 0 ? nullptr : args.in[static_cast<size_t>(epilogue.added)].data;
  const size_t a = plan.swapped ? 1 : 0;
  for (const auto& call : plan.calls) {
    kernel.calls_.push_back(
        {matrices.at(a, call), matrices.at(1 - a, call), added, matrices.at(2, call)});
  }
  if (way.has_rest) {
    const CudaLaunch rest = launch_rest(kernels, args, epilogue);
    if (rest.blocks > 0) kernel.after_.push_back(rest);
    for (const CudaLaunch& sums : launch_sums(kernels, args, plan.workspace))
      kernel.after_.push_back(sums);
  }
}

}  // namespace

CudaMatmul GpuMatmuls::prepare(const CudaGemm& gemm) {
  const uint64_t sides =
      reinterpret_cast<uint64_t>(gemm.kept) | reinterpret_cast<uint64_t>(gemm.before) |
      reinterpret_cast<uint64_t>(gemm.bias) | reinterpret_cast<uint64_t>(gemm.sums);
  const CudaMatmul matmul = sides % kSideAlignment != 0 ? nullptr : gpu_.api.blas().prepare(gemm);
  if (matmul != nullptr) prepared_.push_back(matmul);
  return matmul;
}

void GpuMatmuls::release() {
  for (CudaMatmul matmul : prepared_) gpu_.api.blas().release(matmul);
  prepared_.clear();
}

std::unique_ptr<Kernel> GpuMatmuls::bind(const KernelArgs& args) {
  const Step& step = *args.step;
  const auto make_kernel = [&] {
    return std::make_unique<MatmulKernel>(gpu_.api, streams_.compute(), memory_);
  };
  const cuda::MatmulPlan plan = cuda::plan_matmul(step);
  cuda::Epilogue epilogue;
  if (!step.pointwise.code.empty() || step.as<MatmulSpec>().sums >= 0) {
    const std::optional<cuda::Epilogue> found = cuda::find_epilogue(step);
    TESSERA_CHECK(found.has_value(), "[{}] is not a matmul with an epilogue that a GPU has",
                  step.origin.name);
    epilogue = *found;
  }
  std::vector<MatmulWay> ways;
  if (plan.possible) {
    const CudaGemm whole = gemm_of(args, plan, epilogue, gpu_.options.tf32);
    CudaGemm problem = whole;  // key of the cached choice
    std::vector<std::unique_ptr<MatmulKernel>> kernels;
    std::vector<Kernel*> alike;
    const auto add_way = [&](const cuda::MatmulPlan& by, const CudaGemm& gemm) {
      const CudaMatmul matmul = prepare(gemm);
      if (matmul == nullptr) return false;
      ways.push_back({matmul, is_plain(gemm) && !is_plain(whole)});
      kernels.push_back(make_kernel());
      add_calls(*kernels.back(), kernels_, args, by, epilogue, ways.back());
      alike.push_back(kernels.back().get());
      return true;
    };
    const cuda::MatmulPlan bytes = cuda::plan_float8(step);
    const bool in_one = !bytes.packed[2].used && bytes.calls.size() == 1;
    if (bytes.possible && (step.pointwise.code.empty() || in_one)) {
      const CudaGemm narrow = plain(gemm_of(args, bytes, epilogue, false));
      if (add_way(bytes, narrow)) problem.float8 = narrow.float8;
    }
    add_way(plan, whole);
    if (!is_plain(whole)) add_way(plan, plain(whole));
    if (!ways.empty()) memory_.workspace();
    const size_t chosen = autotune_.choose(problem, plan.calls.size(), ways, alike, args);
    if (!ways.empty()) return std::move(kernels[chosen]);
  }
  auto loops = make_kernel();
  for (const CudaLaunch& launch :
       {kernels_.make_launch(cuda::generate_matmul(args, epilogue.added), args),
        launch_rest(kernels_, args, epilogue)}) {
    if (launch.blocks > 0) loops->after_.push_back(launch);
  }
  for (const CudaLaunch& sums : launch_sums(kernels_, args, plan.workspace))
    loops->after_.push_back(sums);
  return loops;
}

}  // namespace tessera
