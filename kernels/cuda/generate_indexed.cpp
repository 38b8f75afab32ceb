// gather: one thread per element of the result.
//
// scatter_add with a fixed order of sums and no atomics. A first kernel writes where the row of
// each position begins in the result, or -1. In the second, a block stands for a position. It exits
// if an earlier position has the same row. Otherwise it adds the updates of all later positions
// with that row, in order, and writes the row once. Its threads look at some positions each and
// share which ones match; then each thread sums some elements of the row. This costs positions^2
// comparisons of 4 bytes, which all blocks read from the L2 cache; the search for an earlier
// position begins with the nearest, so that frequent rows end it soon. Rows without updates were
// zeroed before. Under strict numerics positions are numbered in the canonical order of their sums.
#include <algorithm>

#include "kernels/common/indexed.h"
#include "kernels/cuda/ordered_text.h"

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
      "  const long long row = {};\n  {} x{{}};\n  if (row >= 0) x = {}[{} + row * {}];\n"
      "  if (row == kElsewhere) narrow({}, x);  // adding it changes nothing\n  {}[{}] = x;\n",
      row_text(dim, fmt::format("{}[{}]", index, offset_text(nest, 2, 1, true)),
               offset_text(nest, 3, 1, true), arguments.number(args.number + 1), arguments.fault()),
      memory_type(out.dtype), weights, offset_text(nest, 1, 1, true), dim.stride,
      literal(out.dtype, -0.0), to, offset_text(nest, 0, 1, true));
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

/// The positions of a scatter_add as a kernel numbers them.
struct Numbered {
  std::string before;   ///< declared once
  std::string declare;  ///< for position "i"
  std::string out, updates, indices, row_major;
  std::string count, place;  ///< of positions; of the sums' place in the result
  int64_t blocks = 0;
  const char* header = "kernels/cuda/device.h";

  Numbered(const Scattered& s) : blocks(s.positions.elements()) {
    declare = dims_text(s.positions, "i", "long long", 1);
    out = offset_text(s.positions, 0, 1, true);
    updates = offset_text(s.positions, 1, 1, true);
    indices = offset_text(s.positions, 2, 1, true);
    row_major = "i";
    count = std::to_string(blocks);
  }

  /// For each index that the result has, the terms of a place in their order.
  Numbered(const KernelArgs& args, const OrderedTerms& terms, size_t at, Arguments& arguments) {
    const TensorArg &index = args.in[0], &update = args.in[1];
    const std::vector<int64_t> to = args.step->as<IndexedSpec>().strides,
                               row = position_strides(index, update.sizes);
    kernels::Nest each;
    each.strides.resize(4);
    for (size_t d = 0; d < update.sizes.size(); ++d) {
      if (to[d] != 0 && index.strides[d] != 0 && update.sizes[d] != 1)
        each.add_dim(update.sizes[d], {to[d], update.strides[d], index.strides[d], row[d]});
    }
    before = terms.declaration(arguments, at);
    declare = fmt::format(
        "  {0} k[{1}];\n  const unsigned long long leaf = terms.find(static_cast<{0}>(i % "
        "terms.count()), k);\n{2}",
        terms.type(), terms.dims(), dims_text(each, "i / terms.count()", "long long", 1));
    const auto offset = [&](int operand, const std::vector<int64_t>& strides) {
      return offset_text(each, operand, 1, true) + " + " + terms.offset(arguments, at, strides);
    };
    out = offset_text(each, 0, 1, true);
    updates = offset(1, update.strides);
    indices = offset(2, index.strides);
    row_major = offset(3, row);
    count = fmt::format("{}ll * terms.count()", each.elements());
    place = terms.place_offset(arguments, at);
    blocks = each.elements() * terms.count(at);
    header = kOrderedHeader;
  }
};

/// Writes where the row of each position begins in the result.
Source look_up(const KernelArgs& args, const Scattered& s, Arguments& look,
               const Numbered& numbered) {
  const Indexed dim = indexed_of(args, look);
  const std::string index = look.in(0), places = look.workspace(s.workspace_bytes(), s.type());
  const std::string body = fmt::format(
      "{}  const long long i = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n"
      "  {} begin = -1;\n  if (i < {}) {{\n{}    const long long row = {};\n"
      "    if (row >= 0) begin = {} + row * {};\n  }}\n  {}[i] = begin;\n",
      numbered.before, kChunk, s.type(), numbered.count, numbered.declare,
      row_text(dim, fmt::format("{}[{}]", index, numbered.indices), numbered.row_major,
               look.number(args.number + 1), look.fault()),
      numbered.out, dim.stride, places);
  Source source;
  source.text = unit(look, kChunk, body, "", numbered.header);
  source.words = look.words();
  source.threads = kChunk;
  source.blocks = (numbered.blocks + kChunk - 1) / kChunk;
  return source;
}

/// Adds the updates of a row's positions. depth: of the tree of sums; 0: they are one chain.
Source add_rows(const KernelArgs& args, const Scattered& s, Arguments& add,
                const Numbered& numbered, int depth) {
  const int64_t elements = s.row.elements();
  const std::string from = add.in(1), to = add.out(0),
                    found = add.workspace(s.workspace_bytes(), s.type());
  const char* type = register_type(args.out[0].dtype);
  constexpr int64_t kMostKept = 8;  // sums per thread
  const int64_t kept = std::min(kMostKept, (elements + kScatterThreads - 1) / kScatterThreads);
  const std::string element =
      fmt::format("          const long long e = first + k * {}ll + t;\n", kScatterThreads) +
      dims_text(s.row, fmt::format("(e < {0} ? e : 0)", elements), "long long", 1);
  const bool is_ordered = depth > 0;
  const std::string tree = !is_ordered ? ""
                                       : fmt::format(
                                             "    OpenSums<Sum, {}, {}, {}> open;\n"
                                             "    unsigned long long leaf = leaf_of(mine);\n",
                                             type, kept, depth);
  const std::string next =
      !is_ordered ? ""
                  : "          const unsigned long long own = leaf_of(start + 32 * w + __ffs(left) "
                    "- 1);\n          if (own != leaf) open.push(sum, leaf, own);\n"
                    "          leaf = own;\n";
  const std::string body = fmt::format(
      "{before}"
      "  auto update = [&](long long i) -> long long {{\n{position}    return {of_update};\n  }};\n"
      "{leaf_of}"
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
      "{tree}    {type} sum[{kept}];\n"
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
      "        for (unsigned left = same[w]; left != 0; left &= left - 1) {{\n{next}"
      "          const auto* from = {from} + update(start + 32 * w + __ffs(left) - 1);\n"
      "#pragma unroll\n          for (int k = 0; k < {kept}; ++k) {{\n{element}"
      "            sum[k] = Sum::apply(sum[k], widen(from[{at}]));\n          }}\n        }}\n"
      "      }}\n      __syncthreads();\n    }}\n"
      "{finish}    for (int k = 0; k < {kept}; ++k) {{\n{element}"
      "      if (e < {elements}) narrow({sum}, {to}[to + {in_row}{place}]);\n    }}\n  }}\n",
      fmt::arg("before", numbered.before), fmt::arg("position", numbered.declare),
      fmt::arg("of_update", numbered.updates),
      fmt::arg("leaf_of", !is_ordered ? ""
                                      : "  auto leaf_of = [&](long long i) -> unsigned long long "
                                        "{\n" +
                                            numbered.declare + "    return leaf;\n  };\n"),
      fmt::arg("tree", tree), fmt::arg("next", next),
      fmt::arg("finish", is_ordered ? "    open.finish(sum);\n" : ""),
      fmt::arg("sum",
               is_ordered && !args.step->order.is_split() ? "complete<Sum>(sum[k])" : "sum[k]"),
      fmt::arg("place", numbered.place), fmt::arg("index", s.type()), fmt::arg("found", found),
      fmt::arg("chunk", kChunk), fmt::arg("looks", kLooks), fmt::arg("words", kChunk / 32),
      fmt::arg("threads", kScatterThreads), fmt::arg("elements", elements),
      fmt::arg("slab", kept * kScatterThreads), fmt::arg("type", type), fmt::arg("kept", kept),
      fmt::arg("positions", numbered.count), fmt::arg("from", from), fmt::arg("element", element),
      fmt::arg("at", offset_text(s.row, 1, 1, true)), fmt::arg("to", to),
      fmt::arg("in_row", offset_text(s.row, 0, 1, true)));
  Source source;
  source.text = unit(add, kScatterThreads, body, "", numbered.header);
  source.words = add.words();
  source.threads = kScatterThreads;
  source.blocks = numbered.blocks;
  return source;
}

}  // namespace

int64_t scatter_add_gpu_workspace(const Step& step) {
  return scattered(step, step.in.at(0), step.in.at(1), step.out.at(0)).workspace_bytes();
}

std::vector<Source> generate_scatter_add(const KernelArgs& args) {
  const Scattered s = scattered(*args.step, args.in.at(0), args.in.at(1), args.out.at(0));
  if (s.workspace_bytes() == 0) return {};
  if (!args.step->order.is_strict()) {
    Arguments look(args), add(args);
    return {look_up(args, s, look, Numbered(s)), add_rows(args, s, add, Numbered(s), 0)};
  }
  const OrderedTerms terms(args);
  std::vector<Source> sources;
  for (size_t place = 0; place < terms.places(); ++place) {
    Arguments look(args), add(args);
    const Numbered looked(args, terms, place, look), added(args, terms, place, add);
    sources.push_back(look_up(args, s, look, looked));
    sources.push_back(add_rows(args, s, add, added, terms.depth()));
  }
  return sources;
}

}  // namespace tessera::cuda
