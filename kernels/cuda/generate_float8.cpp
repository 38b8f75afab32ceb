// Converts operands to bytes for 8-bit matmuls. A thread makes 16 bytes. Neighbouring threads
// follow the operand's memory, so that accesses are coalesced wherever the operand is dense.
#include "base/fail.h"
#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

namespace {

constexpr int64_t kBytes = 16;

kernels::Nest nest_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& to,
                      const std::vector<int64_t>& from) {
  kernels::Nest nest = kernels::make_nest(sizes, {to, from});
  nest.drop_ones();
  nest.order_by(0);
  nest.merge();
  return nest;
}

}  // namespace

bool can_store_float8(const std::vector<int64_t>& sizes, const std::vector<int64_t>& to,
                      const std::vector<int64_t>& from) {
  const kernels::Nest nest = nest_of(sizes, to, from);
  return nest.rank() > 0 && nest.strides[0].back() == 1 && nest.sizes.back() % kBytes == 0;
}

Source generate_float8(const KernelArgs& args, Float8 format) {
  const TensorArg &in = args.in.at(0), &out = args.out.at(0);
  TESSERA_CHECK(can_store_float8(out.sizes, out.strides, in.strides),
                "a copy in bytes has rows of no multiple of {}", kBytes);
  kernels::Nest nest = nest_of(out.sizes, out.strides, in.strides);
  const int64_t stride = nest.strides[1].back();
  nest.sizes.back() /= kBytes;
  for (auto& strides : nest.strides) strides.back() *= kBytes;
  bool dense = stride == 1 && reinterpret_cast<uint64_t>(in.data) % kBytes == 0;
  for (const int64_t s : nest.strides[1]) dense = dense && s * size_of(in.dtype) % kBytes == 0;
  nest.order_by(1);
  Arguments arguments(args);
  const std::string from = arguments.in(0), to = arguments.out(0);
  const std::string body = fmt::format(
      "  const long long i = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n"
      "  if (i >= {}) return;\n{}"
      "  store({} + {}, to_bytes<{}, {}>({} + {}, {}));\n",
      kThreads, nest.elements(), dims_text(nest, "i", "long long", 1), to,
      offset_text(nest, 0, 1, true), format == Float8::e5m2, dense, from,
      offset_text(nest, 1, 1, true), stride);
  Source source;
  source.text = unit(arguments, kThreads, body, "", "kernels/cuda/float8.h");
  source.words = arguments.words();
  source.threads = kThreads;
  source.blocks = (nest.elements() + kThreads - 1) / kThreads;
  return source;
}

}  // namespace tessera::cuda
