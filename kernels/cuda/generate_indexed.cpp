// gather: one thread per element of the result.
//
// scatter_add with a fixed order of sums and no atomics: one block per position. The block exits if
// an earlier position has the same target. Otherwise it adds the updates of all later positions
// with that target, in order, and writes the row once. Its threads look at one position each and
// share which ones match; then each thread sums some elements of the row. This costs positions^2
// comparisons of at most 8 bytes, which all blocks read from the L2 cache: 64 million for 8,192
// tokens. Rows without updates were zeroed before.
#include <algorithm>

#include "kernels/common/indexed.h"
#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

namespace {

/// The attributes of an indexed dim, as text.
struct Indexed {
  int rule = 1;
  int64_t stride = 0;  ///< of the indexed dim
  std::string first, size, n;
};

Indexed indexed_of(const KernelArgs& args, Arguments& arguments) {
  const kernels::OutOfRange rule = kernels::out_of_range_rule(*args.step);
  Indexed dim;
  dim.rule = rule == kernels::OutOfRange::error ? 0 : rule == kernels::OutOfRange::drop ? 1 : 2;
  dim.stride = args.step->attrs.get<int64_t>("stride");
  dim.first = arguments.expr(0);
  dim.n = arguments.expr(1);
  dim.size = std::to_string(args.step->attrs.get<int64_t>("size"));
  return dim;
}

/// Strides of a row-major position over the dims that the indices have.
std::vector<int64_t> position_strides(const TensorArg& indices, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 0);
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (indices.strides[d] == 0) continue;
    strides[d] = stride;
    stride *= sizes[d];
  }
  return strides;
}

std::string row_text(const Indexed& dim, const std::string& index, const std::string& position,
                     const std::string& step, const std::string& fault) {
  return fmt::format("local_row<{}>({}, {}, {}, {}, {}, static_cast<unsigned long long>({}), {})",
                     dim.rule, index, dim.first, dim.size, dim.n, position, step, fault);
}

}  // namespace

Source generate_gather(const KernelArgs& args) {
  const TensorArg &indices = args.in.at(1), &out = args.out.at(0);
  Arguments arguments(args);
  const Indexed dim = indexed_of(args, arguments);
  kernels::Nest nest = kernels::make_nest(
      out.sizes, {out.strides, args.step->attrs.get<std::vector<int64_t>>("strides"),
                  indices.strides, position_strides(indices, out.sizes)});
  nest.drop_ones();
  nest.order_by(0);
  nest.merge();
  if (nest.elements() == 0) return {};
  constexpr int kThreads = 256;
  const std::string weights = arguments.in(0), index = arguments.in(1), to = arguments.out(0);
  std::string body = fmt::format(
      "  const long long i = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n  if (i >= "
      "{}) return;\n",
      kThreads, nest.elements());
  body += dims_text(nest, "i", "long long", 1);
  body += fmt::format(
      "  const long long row = {};\n  {} x{{}};\n  if (row >= 0) x = {}[{} + row * {}];\n  {}[{}] "
      "= x;\n",
      row_text(dim, fmt::format("{}[{}]", index, offset_text(nest, 2, 1, true)),
               offset_text(nest, 3, 1, true), arguments.number(args.number + 1), arguments.fault()),
      memory_type(out.dtype), weights, offset_text(nest, 1, 1, true), dim.stride, to,
      offset_text(nest, 0, 1, true));
  Source source;
  source.text = unit(arguments, kThreads, body);
  source.words = arguments.words();
  source.threads = kThreads;
  source.blocks = (nest.elements() + kThreads - 1) / kThreads;
  return source;
}

Source generate_scatter_add(const KernelArgs& args) {
  const TensorArg &indices = args.in.at(0), &updates = args.in.at(1), &out = args.out.at(0);
  Arguments arguments(args);
  const Indexed dim = indexed_of(args, arguments);
  const auto& strides = args.step->attrs.get<std::vector<int64_t>>("strides");
  kernels::Nest positions, row;  // operands out, updates, indices; for row: out, updates
  positions.strides.resize(3);
  row.strides.resize(2);
  for (size_t d = 0; d < updates.sizes.size(); ++d) {
    const std::vector<int64_t> all = {strides[d], updates.strides[d], indices.strides[d]};
    // A dim that the result lacks is summed over: it is ordered like those of the indices.
    const bool is_position = indices.strides[d] != 0 || strides[d] == 0;
    if (updates.sizes[d] == 1) continue;
    is_position ? positions.add_dim(updates.sizes[d], all)
                : row.add_dim(updates.sizes[d], {all[0], all[1]});
  }
  positions.merge();
  row.merge();
  if (positions.elements() == 0 || row.elements() == 0) return {};
  const std::string index = arguments.in(0), from = arguments.in(1), to = arguments.out(0);
  const char* type = register_type(out.dtype);
  const std::string position = dims_text(positions, "i", "long long", 1);
  const std::string number = arguments.number(args.number + 1), fault = arguments.fault();
  // Only the block of a position reports its bad index; look-ups of other positions stay small.
  auto look_up = [&](const char* name, const Indexed& as) {
    return fmt::format(
        "  auto {} = [&](long long i) -> long long {{\n{}    const long long row = {};\n"
        "    return row < 0 ? -1 : {} + row * {};\n  }};\n",
        name, position,
        row_text(as, fmt::format("{}[{}]", index, offset_text(positions, 2, 1, true)), "i", number,
                 fault),
        offset_text(positions, 0, 1, true), dim.stride);
  };
  Indexed silent = dim;
  if (silent.rule == 0) silent.rule = 1;
  std::string body = look_up("target", silent) + look_up("checked", dim);
  body += "  auto update = [&](long long i) -> long long {\n" + position;
  body += fmt::format("    return {};\n  }};\n", offset_text(positions, 1, 1, true));
  constexpr int kThreads = 256;
  constexpr int64_t kMostKept = 8;  // sums per thread
  const int64_t kept = std::min(kMostKept, (row.elements() + kThreads - 1) / kThreads);
  body += fmt::format(
      "  const int t = static_cast<int>(threadIdx.x);\n"
      "  const long long mine = blockIdx.x, to = checked(mine);\n  int earlier = 0;\n"
      "#pragma unroll 4\n"
      "  for (long long i = t; i < (to >= 0 ? mine : 0); i += {0}) {{\n"
      "    if (target(i) == to) earlier = 1;\n  }}\n"
      "  if (__syncthreads_or(earlier) != 0 || to < 0) return;\n  __shared__ unsigned same[{1}];\n",
      kThreads, kThreads / 32);
  const std::string element =
      fmt::format("      const long long e = first + k * {}ll + t;\n", kThreads) +
      dims_text(row, fmt::format("(e < {0} ? e : 0)", row.elements()), "long long", 1);
  body += fmt::format(
      "  for (long long first = 0; first < {elements}; first += {slab}) {{\n"
      "    {type} sum[{kept}];\n"
      "    for (int k = 0; k < {kept}; ++k) sum[k] = {type}(0);\n"
      "    for (long long start = mine; start < {positions}; start += {threads}) {{\n"
      "      const bool here = start + t < {positions} && target(start + t) == to;\n"
      "      const unsigned warp = __ballot_sync(0xffffffffu, here);\n"
      "      if (t % 32 == 0) same[t / 32] = warp;\n      __syncthreads();\n"
      "      for (int w = 0; w < {threads} / 32; ++w) {{\n"
      "        for (unsigned left = same[w]; left != 0; left &= left - 1) {{\n"
      "          const auto* from = {from} + update(start + 32 * w + __ffs(left) - 1);\n"
      "#pragma unroll\n          for (int k = 0; k < {kept}; ++k) {{\n{element}"
      "            sum[k] = Sum::apply(sum[k], widen(from[{at}]));\n          }}\n        }}\n"
      "      }}\n      __syncthreads();\n    }}\n"
      "    for (int k = 0; k < {kept}; ++k) {{\n{element}"
      "      if (e < {elements}) narrow(sum[k], {to}[to + {place}]);\n    }}\n  }}\n",
      fmt::arg("elements", row.elements()), fmt::arg("slab", kept * kThreads),
      fmt::arg("type", type), fmt::arg("kept", kept), fmt::arg("positions", positions.elements()),
      fmt::arg("threads", kThreads), fmt::arg("from", from), fmt::arg("element", element),
      fmt::arg("at", offset_text(row, 1, 1, true)), fmt::arg("to", to),
      fmt::arg("place", offset_text(row, 0, 1, true)));
  Source source;
  source.text = unit(arguments, kThreads, body);
  source.words = arguments.words();
  source.threads = kThreads;
  source.blocks = positions.elements();
  return source;
}

}  // namespace tessera::cuda
