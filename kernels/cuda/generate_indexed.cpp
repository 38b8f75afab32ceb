// gather: one thread per element of the result.
//
// scatter_add with a fixed order of sums and no atomics. A first kernel writes where the row of
// each position begins in the result, or -1. In the second, a block stands for a position. It exits
// if an earlier position has the same row. Otherwise it adds the updates of all later positions
// with that row, in order, and writes the row once. Its threads look at some positions each and
// share which ones match; then each thread sums some elements of the row. This costs positions^2
// comparisons of 4 bytes, which all blocks read from the L2 cache; the search for an earlier
// position begins with the nearest, so that frequent rows end it soon. Rows without updates were
// zeroed before.
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
  const auto& spec = args.step->as<IndexedSpec>();
  Indexed dim;
  dim.rule = spec.out_of_range == OutOfRange::error   ? 0
             : spec.out_of_range == OutOfRange::clamp ? 2
                                                      : 1;
  dim.stride = spec.stride;
  dim.first = arguments.expr(0);
  dim.n = arguments.expr(1);
  dim.size = std::to_string(spec.size);
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
  kernels::Nest nest =
      kernels::make_nest(out.sizes, {out.strides, args.step->as<IndexedSpec>().strides,
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

namespace {

/// Threads of a block of scatter_add, and the positions that it looks at between two barriers.
constexpr int kScatterThreads = 256;
constexpr int64_t kLooks = 4, kChunk = kScatterThreads * kLooks;

/// positions: operands out, updates, indices; row: out, updates.
struct Scattered {
  kernels::Nest positions, row;
  bool wide = false;  ///< places in the result need 64 bits
  int64_t chunks() const { return (positions.elements() + kChunk - 1) / kChunk; }
  const char* type() const { return wide ? "long long" : "int"; }
  int64_t workspace_bytes() const {
    if (positions.elements() == 0 || row.elements() == 0) return 0;
    return chunks() * kChunk * (wide ? 8 : 4);
  }
};

template <class Operand>
Scattered scattered(const Step& step, const Operand& indices, const Operand& updates,
                    const Operand& out) {
  const std::vector<int64_t>& strides = step.as<IndexedSpec>().strides;
  Scattered s;
  s.positions.strides.resize(3);
  s.row.strides.resize(2);
  for (size_t d = 0; d < updates.sizes.size(); ++d) {
    const std::vector<int64_t> all = {strides[d], updates.strides[d], indices.strides[d]};
    // A dim that the result lacks is summed over: it is ordered like those of the indices.
    const bool is_position = indices.strides[d] != 0 || strides[d] == 0;
    if (updates.sizes[d] == 1) continue;
    is_position ? s.positions.add_dim(updates.sizes[d], all)
                : s.row.add_dim(updates.sizes[d], {all[0], all[1]});
  }
  s.positions.merge();
  s.row.merge();
  int64_t last = 0;
  for (size_t d = 0; d < out.sizes.size(); ++d) last += (out.sizes[d] - 1) * out.strides[d];
  s.wide = last > INT32_MAX;
  return s;
}

}  // namespace

int64_t scatter_add_gpu_workspace(const Step& step) {
  return scattered(step, step.in.at(0), step.in.at(1), step.out.at(0)).workspace_bytes();
}

std::vector<Source> generate_scatter_add(const KernelArgs& args) {
  const TensorArg &indices = args.in.at(0), &updates = args.in.at(1), &out = args.out.at(0);
  const Scattered s = scattered(*args.step, indices, updates, out);
  const int64_t positions = s.positions.elements(), elements = s.row.elements(),
                bytes = s.workspace_bytes();
  if (bytes == 0) return {};
  const std::string position = dims_text(s.positions, "i", "long long", 1);

  Arguments look(args);
  const Indexed dim = indexed_of(args, look);
  const std::string index = look.in(0), places = look.workspace(bytes, s.type());
  std::string body = fmt::format(
      "  const long long i = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n"
      "  {} begin = -1;\n  if (i < {}) {{\n{}    const long long row = {};\n"
      "    if (row >= 0) begin = {} + row * {};\n  }}\n  {}[i] = begin;\n",
      kChunk, s.type(), positions, position,
      row_text(dim, fmt::format("{}[{}]", index, offset_text(s.positions, 2, 1, true)), "i",
               look.number(args.number + 1), look.fault()),
      offset_text(s.positions, 0, 1, true), dim.stride, places);
  Source first;
  first.text = unit(look, kChunk, body);
  first.words = look.words();
  first.threads = kChunk;
  first.blocks = s.chunks();

  Arguments add(args);
  const std::string from = add.in(1), to = add.out(0), found = add.workspace(bytes, s.type());
  const char* type = register_type(out.dtype);
  constexpr int64_t kMostKept = 8;  // sums per thread
  const int64_t kept = std::min(kMostKept, (elements + kScatterThreads - 1) / kScatterThreads);
  const std::string element =
      fmt::format("          const long long e = first + k * {}ll + t;\n", kScatterThreads) +
      dims_text(s.row, fmt::format("(e < {0} ? e : 0)", elements), "long long", 1);
  body = fmt::format(
      "  auto update = [&](long long i) -> long long {{\n{position}    return {of_update};\n  }};\n"
      "  const int t = static_cast<int>(threadIdx.x);\n"
      "  const long long mine = blockIdx.x;\n  const {index} to = {found}[mine];\n"
      "  if (to < 0) return;\n"
      "  for (long long start = mine / {chunk} * {chunk}; start >= 0; start -= {chunk}) {{\n"
      "    const auto places = load<{looks}>({found} + start + t * {looks});\n    int earlier = "
      "0;\n"
      "#pragma unroll\n    for (int j = 0; j < {looks}; ++j)\n"
      "      earlier |= places.x[j] == to && start + t * {looks} + j < mine;\n"
      "    if (__syncthreads_or(earlier) != 0) return;\n  }}\n"
      "  __shared__ unsigned same[{words}];\n"
      "  for (long long first = 0; first < {elements}; first += {slab}) {{\n"
      "    {type} sum[{kept}];\n"
      "    for (int k = 0; k < {kept}; ++k) sum[k] = {type}(0);\n"
      "    for (long long start = mine / {chunk} * {chunk}; start < {positions}; start += {chunk}) "
      "{{\n"
      "      int any = 0;\n#pragma unroll\n      for (int j = 0; j < {looks}; ++j) {{\n"
      "        const long long i = start + j * {threads} + t;\n"
      "        const unsigned warp = __ballot_sync(0xffffffffu, i >= mine && {found}[i] == to);\n"
      "        if (t % 32 == 0) same[j * {threads} / 32 + t / 32] = warp;\n"
      "        any |= warp != 0;\n      }}\n"
      "      if (__syncthreads_or(any) == 0) continue;\n"
      "      for (int w = 0; w < {words}; ++w) {{\n"
      "        for (unsigned left = same[w]; left != 0; left &= left - 1) {{\n"
      "          const auto* from = {from} + update(start + 32 * w + __ffs(left) - 1);\n"
      "#pragma unroll\n          for (int k = 0; k < {kept}; ++k) {{\n{element}"
      "            sum[k] = Sum::apply(sum[k], widen(from[{at}]));\n          }}\n        }}\n"
      "      }}\n      __syncthreads();\n    }}\n"
      "    for (int k = 0; k < {kept}; ++k) {{\n{element}"
      "      if (e < {elements}) narrow(sum[k], {to}[to + {in_row}]);\n    }}\n  }}\n",
      fmt::arg("position", position), fmt::arg("of_update", offset_text(s.positions, 1, 1, true)),
      fmt::arg("index", s.type()), fmt::arg("found", found), fmt::arg("chunk", kChunk),
      fmt::arg("looks", kLooks), fmt::arg("words", kChunk / 32),
      fmt::arg("threads", kScatterThreads), fmt::arg("elements", elements),
      fmt::arg("slab", kept * kScatterThreads), fmt::arg("type", type), fmt::arg("kept", kept),
      fmt::arg("positions", positions), fmt::arg("from", from), fmt::arg("element", element),
      fmt::arg("at", offset_text(s.row, 1, 1, true)), fmt::arg("to", to),
      fmt::arg("in_row", offset_text(s.row, 0, 1, true)));
  Source second;
  second.text = unit(add, kScatterThreads, body);
  second.words = add.words();
  second.threads = kScatterThreads;
  second.blocks = positions;
  return {first, second};
}

}  // namespace tessera::cuda
