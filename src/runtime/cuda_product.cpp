// A contraction on a card: matrix products of the library between the copies that pack their
// operands, with what the step does to the result in the product where the library can, else in a
// pointwise kernel behind it. What is no product of the library's runs by direct loops.
#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "kernels/cuda/epilogue.h"
#include "runtime/cuda_device.h"

namespace tessera {

namespace {

/// Of what an epilogue reads or writes besides the operands: nothing tells the library's heuristic
/// where that lies.
constexpr int64_t kSideAlignment = 16;

/// Kernels before, products (or kernels that are the product), kernels after.
class Products final : public Kernel, public Enqueued {
 public:
  struct Call {
    const void *a, *b, *added;
    void* c;
  };
  explicit Products(CudaDevice& device) : device_(device) {}
  void run() override {
    CudaApi& api = device_.api();
    for (const CudaLaunch& launch : before_) api.launch(launch, device_.compute());
    for (const Call& call : calls_) {
      api.run(product_, call.a, call.b, call.added, call.c, device_.product_workspace(),
              device_.compute());
    }
    for (const CudaLaunch& launch : after_) api.launch(launch, device_.compute());
  }
  CudaProduct product_ = nullptr;
  std::vector<CudaLaunch> before_, after_;
  std::vector<Call> calls_;

 private:
  CudaDevice& device_;
};

/// The operands of the library's product: those of the step, or their packed copies.
class Matrices {
 public:
  Matrices(const KernelArgs& args, const cuda::ProductPlan& plan) : args_(args), plan_(plan) {}

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
  /// The largest power of two up to 256 that divides the addresses in all calls.
  int64_t alignment(size_t x) const {
    uint64_t bits = 256;
    for (const auto& call : plan_.calls) bits |= reinterpret_cast<uint64_t>(at(x, call));
    return static_cast<int64_t>(bits & (~bits + 1));
  }

 private:
  const KernelArgs& args_;
  const cuda::ProductPlan& plan_;
};

int64_t alignment_of(const void* at) {
  const uint64_t bits = reinterpret_cast<uint64_t>(at) | 256;
  return static_cast<int64_t>(bits & (~bits + 1));
}

CudaGemm gemm_of(const KernelArgs& args, const cuda::ProductPlan& plan,
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
  if (plan.float8) g.float8 = {plan.float8->at(a), plan.float8->at(1 - a)};
  return g;
}

bool is_plain(const CudaGemm& g) { return g.bias == nullptr && !g.gelu && g.before == nullptr; }

/// The same product without anything but `added`.
CudaGemm plain(CudaGemm g) {
  g.bias = g.before = g.kept = nullptr;
  g.gelu = false;
  return g;
}

/// What is left of the epilogue, over the elements of the result once each.
CudaLaunch launch_rest(CudaDevice& device, const KernelArgs& args, const cuda::Epilogue& epilogue) {
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
        if (args.out[0].strides[d] == 0) arg.sizes[d] = 1;  // summed
      }
    }
  }
  return device.make_launch(cuda::generate_pointwise(mine), mine);
}

/// The library's calls of a product, with what goes before and comes after.
std::unique_ptr<Products> make_calls(CudaDevice& device, const KernelArgs& args,
                                     const cuda::ProductPlan& plan, const cuda::Epilogue& epilogue,
                                     const CudaWay& way) {
  auto kernel = std::make_unique<Products>(device);
  kernel->product_ = way.product;
  const Matrices matrices(args, plan);
  for (size_t x = 0; x < 3; ++x) {
    const cuda::Packed& packed = plan.packed[x];
    if (!packed.used) continue;
    check(args.workspace != nullptr, "contract needs {} bytes of workspace", plan.workspace);
    TensorArg there = matrices.operand(x), here = there;
    here.data = matrices.first(x);
    there.sizes = here.sizes = packed.sizes;
    there.strides = packed.from;
    here.strides = packed.to;
    if (x == 2) {
      kernel->after_.push_back(device.make_copy(here, there));
      continue;
    }
    std::optional<Float8> format;
    if (plan.float8) format = plan.float8->at(x), here.dtype = DType::uint8;
    kernel->before_.push_back(device.make_copy(there, here, format));
  }
  const void* added =
      epilogue.added < 0 ? nullptr : args.in[static_cast<size_t>(epilogue.added)].data;
  const size_t a = plan.swapped ? 1 : 0;
  for (const auto& call : plan.calls) {
    kernel->calls_.push_back(
        {matrices.at(a, call), matrices.at(1 - a, call), added, matrices.at(2, call)});
  }
  if (way.has_rest) {
    const CudaLaunch rest = launch_rest(device, args, epilogue);
    if (rest.blocks > 0) kernel->after_.push_back(rest);
  }
  return kernel;
}

}  // namespace

CudaProduct CudaDevice::prepare_product(const CudaGemm& gemm) {
  const uint64_t sides = reinterpret_cast<uint64_t>(gemm.kept) |
                         reinterpret_cast<uint64_t>(gemm.before) |
                         reinterpret_cast<uint64_t>(gemm.bias);
  const CudaProduct product = sides % kSideAlignment != 0 ? nullptr : api_.prepare(gemm);
  if (product != nullptr) products_.push_back(product);
  return product;
}

std::unique_ptr<Kernel> CudaDevice::bind_product(const KernelArgs& args) {
  const Step& step = *args.step;
  const cuda::ProductPlan plan = cuda::plan_product(step);
  cuda::Epilogue epilogue;
  if (!step.pointwise.code.empty()) {
    const std::optional<cuda::Epilogue> found = cuda::find_epilogue(step);
    check(found.has_value(), "[{}] is no product that a card can end so", step.origin.name);
    epilogue = *found;
  }
  std::vector<CudaWay> ways;
  if (plan.possible) {
    const CudaGemm whole = gemm_of(args, plan, epilogue, options_.tf32);
    CudaGemm problem = whole;  // what the choice is kept by
    std::vector<std::unique_ptr<Products>> kernels;
    std::vector<Kernel*> alike;
    const auto add_way = [&](const cuda::ProductPlan& by, const CudaGemm& gemm) {
      const CudaProduct product = prepare_product(gemm);
      if (product == nullptr) return false;
      ways.push_back({product, is_plain(gemm) && !is_plain(whole)});
      kernels.push_back(make_calls(*this, args, by, epilogue, ways.back()));
      alike.push_back(kernels.back().get());
      return true;
    };
    const cuda::ProductPlan bytes = cuda::plan_float8(step);
    const bool in_one = !bytes.packed[2].used && bytes.calls.size() == 1;
    if (bytes.possible && (step.pointwise.code.empty() || in_one)) {
      const CudaGemm narrow = plain(gemm_of(args, bytes, epilogue, false));
      if (add_way(bytes, narrow)) problem.float8 = narrow.float8;
    }
    add_way(plan, whole);
    if (!is_plain(whole)) add_way(plan, plain(whole));
    if (!ways.empty()) product_workspace();
    const size_t chosen = choose_way(problem, plan.calls.size(), ways, alike, args);
    if (!ways.empty()) return std::move(kernels[chosen]);
  }
  auto loops = std::make_unique<Products>(*this);
  for (const CudaLaunch& launch : {make_launch(cuda::generate_contract(args, epilogue.added), args),
                                   launch_rest(*this, args, epilogue)}) {
    if (launch.blocks > 0) loops->after_.push_back(launch);
  }
  return loops;
}

}  // namespace tessera
