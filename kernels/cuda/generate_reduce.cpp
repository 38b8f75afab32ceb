// Reductions over any dims. Where a reduced dim is the densest of the input, a block of threads
// walks the elements of one result side by side; where a kept dim is, a block has 32 neighbouring
// results in x and walks their elements in y, so that both access neighbouring elements. Partial
// results are combined in an order that depends on the sizes only.
#include <algorithm>

#include "kernels/cuda/text.h"

namespace tessera::cuda {

namespace {

/// The kept dims (operands in, out) and the reduced ones (in) of a step.
struct Dims {
  cpu::Nest kept, reduced;
};

Dims dims_of(const TensorArg& in, const TensorArg& out) {
  Dims dims;
  dims.kept.strides.resize(2);
  dims.reduced.strides.resize(1);
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    const int64_t size = in.sizes[d];
    if (size == 1) continue;
    if (out.sizes[d] == size && !(size != 0 && out.strides[d] == 0)) {
      dims.kept.add_dim(size, {in.strides[d], out.strides[d]});
    } else {
      check(out.sizes[d] == 1 || out.strides[d] == 0, "reduce: dim {} is {} and becomes {}", d,
            size, out.sizes[d]);
      dims.reduced.add_dim(size, {in.strides[d]});
    }
  }
  dims.kept.order_by(0);
  dims.kept.merge();
  dims.reduced.order_by(0);
  dims.reduced.merge();
  return dims;
}

int64_t densest(const cpu::Nest& nest) {
  return nest.rank() > 0 ? std::abs(nest.strides[0].back()) : std::numeric_limits<int64_t>::max();
}

/// Adds the element of the input at p0 + the offset of the reduced index `r`.
std::string accumulate(const cpu::Nest& reduced, const char* combiner, const std::string& in,
                       const char* type) {
  if (reduced.elements() == 0) return "";
  const std::string dims = dims_text(reduced, "r", type, 1);
  return fmt::format("{}    s = {}::apply(s, widen({}[p0 + {}]));\n", dims, combiner, in,
                     offset_text(reduced, 0, 1, false));
}

}  // namespace

Source generate_reduce(const KernelArgs& args) {
  const TensorArg &in = args.in.at(0), &out = args.out.at(0);
  check(in.sizes.size() == out.sizes.size() && in.dtype == out.dtype,
        "reduce needs two views of one dtype and the same number of dims");
  const Combiner combiner = args.step->combiner;
  const bool bits = combiner == Combiner::any || combiner == Combiner::all;
  if (bits && is_floating(in.dtype))
    fail(ErrorKind::unsupported, "any and all of {}", to_string(in.dtype));
  const Dims dims = dims_of(in, out);
  const int64_t results = dims.kept.elements(), each = dims.reduced.elements();
  if (results == 0) return {};
  const bool columns = dims.kept.rank() > 0 && densest(dims.kept) < densest(dims.reduced) &&
                       dims.kept.sizes.back() > 1;
  Arguments arguments(args);
  const std::string from = arguments.in(0), to = arguments.out(0);
  const char* name = combiner_name(combiner);
  const char* type = register_type(in.dtype);
  cpu::Nest all = dims.kept;  // an address is the sum of a kept and a reduced offset
  for (int d = 0; d < dims.reduced.rank(); ++d) {
    const auto at = static_cast<size_t>(d);
    all.add_dim(dims.reduced.sizes[at], {dims.reduced.strides[0][at], 0});
  }
  const char* index = index_type(all);
  const bool wide = std::string(index) == "long long";
  int64_t across = 1;  // threads that share a result
  while (across < (columns ? 32 : 256) && across * 2 <= each) across *= 2;
  const int64_t side = columns ? 32 : 256 / across;  // results of a block
  const int threads = static_cast<int>(side * across);
  const std::string result = columns ? "threadIdx.x % 32" : fmt::format("threadIdx.x / {}", across);
  const std::string share = columns ? "threadIdx.x / 32" : fmt::format("threadIdx.x % {}", across);
  std::string body = fmt::format(
      "  const {0} wanted = static_cast<{0}>(blockIdx.x) * {1} + static_cast<{0}>({2});\n"
      "  const bool live = wanted < {3};\n",
      index, side, result, results);
  if (dims.kept.rank() > 0) {
    body += fmt::format("  const {0} i = live ? wanted : {1} - 1;\n", index, results);
    body += dims_text(dims.kept, "i", index, 1);
  }
  body += fmt::format("  const {} p0 = {};\n  const {} p1 = {};\n  {} s = {}::identity<{}>();\n",
                      index, offset_text(dims.kept, 0, 1, wide), index,
                      offset_text(dims.kept, 1, 1, wide), type, name, type);
  body += fmt::format("  for ({0} r = static_cast<{0}>({1}); r < {2}; r += {3}) {{\n{4}  }}\n",
                      index, share, each, across, accumulate(dims.reduced, name, from, index));
  if (columns && across > 1) {
    body += fmt::format(
        "  __shared__ {0} parts[{1}];\n  parts[threadIdx.x] = s;\n  __syncthreads();\n"
        "  for (int half = {2}; half > 0; half /= 2) {{\n"
        "    if (static_cast<int>(threadIdx.x) / 32 < half)\n"
        "      parts[threadIdx.x] = {3}::apply(parts[threadIdx.x], parts[threadIdx.x + half * "
        "32]);\n    __syncthreads();\n  }}\n  s = parts[threadIdx.x % 32];\n",
        type, threads, across / 2, name);
  } else if (across > 1) {
    const bool shared = across > 32;
    if (shared) body += fmt::format("  __shared__ {} parts[{}];\n", type, threads / 32);
    body += fmt::format("  s = reduce_threads<{}, {}>(s, {});\n", name, across,
                        shared ? "parts" : fmt::format("static_cast<{}*>(nullptr)", type));
  }
  const std::string value = in.dtype == DType::bool_ ? "static_cast<uint8_t>(s != 0)" : "s";
  body += fmt::format("  if (live && {} == 0) narrow({}, {}[p1]);\n", share, value, to);
  Source source;
  source.text = unit(arguments, threads, body);
  source.words = arguments.words();
  source.threads = threads;
  source.blocks = (results + side - 1) / side;
  return source;
}

}  // namespace tessera::cuda
