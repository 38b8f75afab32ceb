// Contractions that no cuBLASLt matmul expresses: one thread per element of the result, which walks
// the contracted dims in order.
#include "kernels/common/gemm_plan.h"
#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

Source generate_matmul(const KernelArgs& args, int added) {
  const TensorArg &a = args.in.at(0), &b = args.in.at(1), &out = args.out.at(0);
  const auto& kinds = args.step->as<MatmulSpec>().kinds;
  kernels::Nest kept, summed;  // operands out, a, b
  kept.strides.resize(3);
  summed.strides.resize(3);
  for (size_t d = 0; d < kinds.size(); ++d) {
    const bool is_sum = kinds[d] == kernels::kSum;
    const int64_t size = is_sum ? std::max(a.sizes[d], b.sizes[d]) : out.sizes[d];
    (is_sum ? summed : kept).add_dim(size, {out.strides[d], a.strides[d], b.strides[d]});
  }
  kept.drop_ones();
  kept.order_by(0);
  kept.merge();
  summed.drop_ones();
  summed.order_by(1);
  summed.merge();
  if (kept.elements() == 0) return {};
  Arguments arguments(args);
  const std::string from_a = arguments.in(0), from_b = arguments.in(1), to = arguments.out(0);
  const std::string first = added < 0 ? fmt::format("{}(0)", register_type(out.dtype))
                                      : fmt::format("widen({}[p0])", arguments.in(added));
  constexpr int kThreads = 256;
  std::string body = fmt::format(
      "  const long long i = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n  if (i >= "
      "{}) return;\n",
      kThreads, kept.elements());
  body += dims_text(kept, "i", "long long", 1);
  body += fmt::format("  const long long p0 = {}, p1 = {}, p2 = {};\n  {} sum = {};\n",
                      offset_text(kept, 0, 1, true), offset_text(kept, 1, 1, true),
                      offset_text(kept, 2, 1, true), register_type(out.dtype), first);
  const bool any = summed.elements() > 0;
  body += fmt::format("  for (long long k = 0; k < {}; ++k) {{\n{}", summed.elements(),
                      any ? dims_text(summed, "k", "long long", 1) : "");
  const std::string product =
      fmt::format("formula::Mul::apply(widen({}[p1 + {}]), widen({}[p2 + {}]))", from_a,
                  offset_text(summed, 1, 1, true), from_b, offset_text(summed, 2, 1, true));
  body +=
      fmt::format("{}  }}\n", any ? fmt::format("    sum = Sum::apply(sum, {});\n", product) : "");
  body += fmt::format("  narrow(sum, {}[p0]);\n", to);
  Source source;
  source.text = unit(arguments, kThreads, body);
  source.words = arguments.words();
  source.threads = kThreads;
  source.blocks = (kept.elements() + kThreads - 1) / kThreads;
  return source;
}

}  // namespace tessera::cuda
