// Reductions over any dims. If the input is densest along a reduced dim, a block of threads walks
// the elements of one result side by side. If along a kept dim, a block has 32 neighbouring results
// in x, or in 16 bits four times as many, and walks their elements in y. Both ways, threads access
// neighbouring elements. If there are
// too few results to fill a GPU, each result's elements are split into parts: a first kernel
// reduces every part, a second one the parts. Partial results are combined in an order that depends
// on sizes only. The reduced values may be computed by a pointwise program from several operands (a
// prologue). Several results, one for each output of the program, are reduced side by side.
#include <algorithm>

#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

namespace {

/// Enough threads to fill any GPU, and the least elements per thread. Fixed, so that the order of
/// sums does not depend on the GPU.
constexpr int64_t kManyThreads = int64_t{1} << 18, kLeastWork = 8;

/// The kept dims (operands: the inputs, then the result) and the reduced ones (the inputs).
struct ReducedDims {
  kernels::Nest kept, reduced;
  int main = 0;  ///< the input with the most elements; its memory order counts
  int result() const { return static_cast<int>(kept.strides.size()) - 1; }
};

template <class Operand>
ReducedDims dims_of(const std::vector<Operand>& in, const Operand& out) {
  ReducedDims dims;
  dims.kept.strides.resize(in.size() + 1);
  dims.reduced.strides.resize(in.size());
  const auto& sizes = in.at(0).sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t size = sizes[d];
    if (size == 1) continue;
    std::vector<int64_t> strides;
    for (const Operand& operand : in) strides.push_back(operand.strides[d]);
    if (out.sizes[d] == size && !(size != 0 && out.strides[d] == 0)) {
      strides.push_back(out.strides[d]);
      dims.kept.add_dim(size, strides);
    } else {
      TESSERA_CHECK(out.sizes[d] == 1 || out.strides[d] == 0, "reduce: dim {} is {} and becomes {}",
                    d, size, out.sizes[d]);
      dims.reduced.add_dim(size, strides);
    }
  }
  const auto moving = [](const Operand& operand) {
    return std::count_if(operand.strides.begin(), operand.strides.end(),
                         [](int64_t stride) { return stride != 0; });
  };
  const auto most = std::max_element(
      in.begin(), in.end(), [&](const auto& a, const auto& b) { return moving(a) < moving(b); });
  dims.main = static_cast<int>(most - in.begin());
  for (kernels::Nest* nest : {&dims.kept, &dims.reduced}) {
    nest->order_by(dims.main);
    nest->merge();
  }
  return dims;
}

int64_t densest(const kernels::Nest& nest, int operand) {
  const int64_t stride =
      nest.rank() > 0 ? std::abs(nest.strides[static_cast<size_t>(operand)].back()) : 0;
  return stride == 0 ? std::numeric_limits<int64_t>::max() : stride;
}

/// How the work of a kernel is divided.
struct Cut {
  bool columns = false;
  int64_t results = 0, each = 0;     ///< number of results; elements per result
  int64_t side = 1, across = 1;      ///< groups of results per block; threads per group
  int64_t width = 1;                 ///< neighbouring results of a group
  int64_t parts = 1, part_size = 0;  ///< parts per result; elements per part
  int threads() const { return static_cast<int>(side * across); }
  int64_t groups() const { return results / width; }
  int64_t tiles() const { return (groups() + side - 1) / side; }
};

Cut whole(const ReducedDims& dims, int64_t width) {
  Cut cut;
  cut.results = dims.kept.elements();
  cut.each = cut.part_size = dims.reduced.elements();
  cut.columns = densest(dims.kept, dims.main) < densest(dims.reduced, dims.main) &&
                dims.kept.sizes.back() > 1;
  while (cut.across < (cut.columns ? 32 : 256) && cut.across * 2 <= cut.each) cut.across *= 2;
  cut.side = cut.columns ? 32 : 256 / cut.across;
  if (cut.columns) cut.width = width;
  return cut;
}

/// Neighbouring results of a thread in columns of 16 bits, so that it loads 8 bytes; 1 where sizes
/// or strides do not allow it.
template <class Operand>
int64_t width_of(const ReducedDims& dims, const std::vector<Operand>& in) {
  constexpr int64_t kWidth = 4;
  if (dims.kept.rank() == 0 || dims.kept.sizes.back() % kWidth != 0 ||
      !is_narrow(in[static_cast<size_t>(dims.main)].dtype))
    return 1;
  for (size_t k = 0; k < in.size(); ++k) {
    const auto &kept = dims.kept.strides[k], &reduced = dims.reduced.strides[k];
    if (kept.back() == 0) continue;
    const auto fits = [](int64_t stride) { return stride % kWidth == 0; };
    if (kept.back() != 1 || !std::all_of(kept.begin(), kept.end() - 1, fits) ||
        !std::all_of(reduced.begin(), reduced.end(), fits))
      return 1;
  }
  return kWidth;
}

/// Parts depend on sizes and strides alone; addresses may narrow what a thread loads.
bool is_aligned(const ReducedDims& dims, const std::vector<TensorArg>& in, int64_t width) {
  for (size_t k = 0; width > 1 && k < in.size(); ++k) {
    const auto bytes = static_cast<uintptr_t>(std::min<int64_t>(16, width * size_of(in[k].dtype)));
    if (dims.kept.strides[k].back() != 0 && reinterpret_cast<uintptr_t>(in[k].data) % bytes != 0)
      return false;
  }
  return true;
}

Cut in_parts(const ReducedDims& dims, int64_t width) {
  Cut cut = whole(dims, width);
  if (cut.results == 0) return cut;
  const int64_t wanted = kManyThreads / (cut.tiles() * cut.threads()),
                most = cut.each / (cut.across * kLeastWork), parts = std::min(wanted, most);
  if (parts < 2) return cut;
  const int64_t even = (cut.each + parts - 1) / parts;
  cut.part_size = (even + cut.across - 1) / cut.across * cut.across;
  cut.parts = (cut.each + cut.part_size - 1) / cut.part_size;
  return cut;
}

/// The dims of the second kernel: parts as [parts][results], and the results' places in the output.
ReducedDims dims_of_parts(const ReducedDims& dims, const Cut& cut, size_t results) {
  ReducedDims last;
  last.kept.sizes = dims.kept.sizes;
  last.kept.strides.assign(results, dims.kept.sizes);
  last.kept.strides.push_back(dims.kept.strides.back());
  int64_t stride = 1;
  for (size_t d = last.kept.sizes.size(); d-- > 0; stride *= last.kept.sizes[d])
    for (size_t k = 0; k < results; ++k) last.kept.strides[k][d] = stride;
  last.reduced.strides.resize(results);
  last.reduced.add_dim(cut.parts, std::vector<int64_t>(results, cut.results));
  return last;
}

int64_t bytes_of_parts(const Cut& cut, DType dtype, size_t results) {
  if (cut.parts < 2) return 0;
  return cut.parts * cut.results * size_of(is_narrow(dtype) ? DType::float32 : dtype) *
         static_cast<int64_t>(results);
}

/// The type of all indices and offsets: an address is the sum of a kept and a reduced offset.
const char* index_of(const ReducedDims& dims) {
  kernels::Nest all = dims.kept;
  for (size_t d = 0; d < dims.reduced.sizes.size(); ++d) {
    std::vector<int64_t> strides;
    for (const auto& operand : dims.reduced.strides) strides.push_back(operand[d]);
    strides.push_back(0);
    all.add_dim(dims.reduced.sizes[d], strides);
  }
  return index_type(all);
}

/// The sum of output `o`, of neighbour j.
std::string sum_text(size_t o, int64_t width) {
  return fmt::format("s{}{}", o, width > 1 ? "[j]" : "");
}

/// The head of a loop over the results of a group; none for one.
std::string each_of(int64_t width) {
  return width > 1 ? fmt::format("#pragma unroll\n  for (int j = 0; j < {}; ++j) {{\n", width) : "";
}

/// Accumulates the element, or the program's values, at p0, p1, ... plus the offsets of the reduced
/// index `r`, in s0, s1, ..., each of `width` neighbours.
std::string accumulate(const ReducedDims& dims, int64_t width, const PointwiseProgram& program,
                       const char* combiner, const std::vector<std::string>& in, const char* type,
                       const std::string& where) {
  if (dims.reduced.elements() == 0) return "";
  std::string text = dims_text(dims.reduced, "r", type, 1);
  const auto is_wide = [&](int k) {
    return width > 1 && dims.kept.strides[static_cast<size_t>(k)].back() != 0;
  };
  const auto place = [&](int k) {
    return fmt::format("p{} + {}", k, offset_text(dims.reduced, k, 1, false));
  };
  const auto element = [&](int k) {
    return is_wide(k) ? fmt::format("widen(x{}.x[j])", k)
                      : fmt::format("widen({}[{}])", in[static_cast<size_t>(k)], place(k));
  };
  for (int k = 0; k < static_cast<int>(in.size()); ++k) {
    if (is_wide(k))
      text += fmt::format("    const auto x{} = load<{}>({} + {});\n", k, width,
                          in[static_cast<size_t>(k)], place(k));
  }
  text += each_of(width);
  const auto add = [&](size_t o, const std::string& value) {
    text += fmt::format("    {0} = {1}::apply({0}, {2});\n", sum_text(o, width), combiner, value);
  };
  const auto reg = [](int r) { return fmt::format("v{}", r); };
  for (size_t i = 0; i < program.code.size(); ++i) {
    const Instr& instr = program.code[i];
    text += fmt::format(
        "    const {} v{} = {};\n", register_type(instr.dtype), i,
        instr.code == PointwiseOp::load ? element(instr.slot)
        : instr.code == PointwiseOp::constant
            ? literal(instr.dtype, instr.imm)
            : expression(program, instr, reg(instr.a), reg(instr.b), reg(instr.c), where));
  }
  if (program.code.empty()) add(0, element(0));
  for (size_t o = 0; o < program.outputs.size(); ++o) add(o, reg(program.outputs[o]));
  return text + (width > 1 ? "    }\n" : "");
}

/// Declares a thread's result and its share of the elements: "wanted", "live", "p0", "p1", ... and
/// "place" of the result, "first" and "last" of the elements.
std::string places_text(const ReducedDims& dims, const Cut& cut, const char* index) {
  const bool wide = std::string(index) == "long long";
  const bool cuts = cut.parts > 1;
  const std::string result =
      cut.columns ? "threadIdx.x % 32" : fmt::format("threadIdx.x / {}", cut.across);
  std::string text = fmt::format(
      "  const {0} wanted = static_cast<{0}>({1}) * {2} + static_cast<{0}>({3});\n"
      "  const bool live = wanted < {4};\n",
      index, cuts ? fmt::format("blockIdx.x % {}", cut.tiles()) : "blockIdx.x", cut.side, result,
      cut.groups());
  if (dims.kept.rank() > 0) {
    text += fmt::format("  const {} i = live ? wanted : {} - 1;\n", index, cut.groups());
    text += dims_text(dims.kept, "i", index, cut.width);
  }
  for (int k = 0; k < dims.result(); ++k)
    text +=
        fmt::format("  const {} p{} = {};\n", index, k, offset_text(dims.kept, k, cut.width, wide));
  if (!cuts)
    return text + fmt::format("  const {0} place = {1};\n  const {0} first = 0, last = {2};\n",
                              index, offset_text(dims.kept, dims.result(), cut.width, wide),
                              cut.each);
  return text +
         fmt::format(
             "  const {0} part = static_cast<{0}>(blockIdx.x / {1});\n"
             "  const long long place = static_cast<long long>(part) * {2} + wanted{5};\n"
             "  const {0} first = part * {3}, last = first + {3} < {4} ? first + {3} : {4};\n",
             index, cut.tiles(), cut.results, cut.part_size, cut.each,
             cut.width > 1 ? fmt::format(" * {}", cut.width) : "");
}

/// Combines the partial result `sum`, of output `o`, over the threads of a group.
std::string combine_text(const Cut& cut, const char* name, const char* type, size_t o,
                         const std::string& sum) {
  if (cut.across == 1) return "";
  if (cut.columns) {
    return fmt::format(
        "  __syncthreads();\n  parts{4}[threadIdx.x] = {5};\n  __syncthreads();\n"
        "  for (int half = {2}; half > 0; half /= 2) {{\n"
        "    if (static_cast<int>(threadIdx.x) / 32 < half)\n"
        "      parts{4}[threadIdx.x] = {3}::apply(parts{4}[threadIdx.x], parts{4}[threadIdx.x "
        "+ half * 32]);\n    __syncthreads();\n  }}\n  {5} = parts{4}[threadIdx.x % 32];\n",
        type, cut.threads(), cut.across / 2, name, o, sum);
  }
  return fmt::format(
      "  {0} = reduce_threads<{1}, {2}>({0}, {3});\n", sum, name, cut.across,
      cut.across > 32 ? fmt::format("parts{}", o) : fmt::format("static_cast<{}*>(nullptr)", type));
}

/// One of the kernels: its dims, division, and operands.
struct ReduceKernel {
  const ReducedDims& dims;
  const Cut& cut;
  const PointwiseProgram& program;
  std::vector<std::string> from, to;
};

Source reduce_text(const KernelArgs& args, const ReduceKernel& kernel, DType dtype,
                   const Arguments& arguments) {
  const auto& [dims, cut, program, from, to] = kernel;
  const char* name = combiner_name(args.step->combiner);
  const char* type = register_type(dtype);
  const char* index = index_of(dims);
  const std::string share =
      cut.columns ? "threadIdx.x / 32" : fmt::format("threadIdx.x % {}", cut.across);
  std::string body = places_text(dims, cut, index);
  const bool shared = cut.columns ? cut.across > 1 : cut.across > 32;
  for (size_t o = 0; o < to.size(); ++o) {
    if (shared)
      body += fmt::format("  __shared__ {} parts{}[{}];\n", type, o,
                          cut.columns ? cut.threads() : cut.threads() / 32);
    body += cut.width > 1 ? fmt::format("  {} s{}[{}];\n{}    s{}[j] = {}::identity<{}>();\n  }}\n",
                                        type, o, cut.width, each_of(cut.width), o, name, type)
                          : fmt::format("  {0} s{2} = {1}::identity<{0}>();\n", type, name, o);
  }
  body += fmt::format(
      "#pragma unroll {4}\n"
      "  for ({0} r = first + static_cast<{0}>({1}); r < last; r += {2}) {{\n{3}  }}\n",
      index, share, cut.across,
      accumulate(dims, cut.width, program, name, from, index, args.step->origin.name),
      cut.width > 1 ? 2 : 4);
  const int64_t stride = cut.parts > 1 || dims.kept.rank() == 0
                             ? 1
                             : dims.kept.strides[static_cast<size_t>(dims.result())].back();
  for (size_t o = 0; o < to.size(); ++o) {
    const std::string sum = sum_text(o, cut.width);
    const std::string value = cut.parts == 1 && dtype == DType::bool_
                                  ? fmt::format("static_cast<uint8_t>({} != 0)", sum)
                                  : sum;
    body += each_of(cut.width) + combine_text(cut, name, type, o, sum);
    body += fmt::format("  if (live && {} == 0) narrow({}, {}[place{}]);\n", share, value, to[o],
                        cut.width > 1 ? fmt::format(" + j * {}", stride) : "");
    if (cut.width > 1) body += "  }\n";
  }
  Source source;
  source.text = unit(arguments, cut.threads(), body);
  source.words = arguments.words();
  source.threads = cut.threads();
  source.blocks = cut.tiles() * cut.parts;
  return source;
}

/// The dtype of the reduced values.
template <class Operand>
DType reduced_type(const PointwiseProgram& program, const std::vector<Operand>& in) {
  if (program.code.empty()) return in.at(0).dtype;
  return program.code.at(static_cast<size_t>(program.outputs.at(0))).dtype;
}

}  // namespace

int64_t reduce_workspace(const Step& step) {
  const ReducedDims dims = dims_of(step.in, step.out.at(0));
  return bytes_of_parts(in_parts(dims, width_of(dims, step.in)),
                        reduced_type(step.pointwise, step.in), step.out.size());
}

std::vector<Source> generate_reduce(const KernelArgs& args) {
  const PointwiseProgram& program = args.step->pointwise;
  const TensorArg& out = args.out.at(0);
  const DType dtype = reduced_type(program, args.in);
  TESSERA_CHECK(args.in.at(0).sizes.size() == out.sizes.size() && dtype == out.dtype,
                "reduce needs two views of one dtype and the same number of dims");
  for (const TensorArg& other : args.out)
    TESSERA_CHECK(other.dtype == dtype && other.sizes == out.sizes && other.strides == out.strides,
                  "reduce needs results that lie alike");
  const Combiner combiner = args.step->combiner;
  const bool bits = combiner == Combiner::any || combiner == Combiner::all;
  if (bits && is_floating(dtype))
    fail(ErrorKind::unsupported, "any and all of {}", to_string(dtype));
  const ReducedDims dims = dims_of(args.in, out);
  Cut cut = in_parts(dims, width_of(dims, args.in));
  if (!is_aligned(dims, args.in, cut.width)) cut.width = 1;
  if (cut.results == 0) return {};
  Arguments arguments(args);
  ReduceKernel first{dims, cut, program, {}, {}};
  for (int k = 0; k < static_cast<int>(args.in.size()); ++k) first.from.push_back(arguments.in(k));
  const size_t results = args.out.size();
  if (cut.parts == 1) {
    for (size_t o = 0; o < results; ++o) first.to.push_back(arguments.out(static_cast<int>(o)));
    return {reduce_text(args, first, dtype, arguments)};
  }
  const int64_t bytes = bytes_of_parts(cut, dtype, results);
  const ReducedDims dims_then = dims_of_parts(dims, cut, results);
  const Cut cut_then = whole(dims_then, 1);
  PointwiseProgram loads;
  Arguments then(args);
  ReduceKernel last{dims_then, cut_then, loads, {}, {}};
  const std::string there = arguments.workspace(bytes, register_type(dtype)),
                    from = then.workspace(bytes, register_type(dtype));
  for (size_t o = 0; o < results; ++o) {
    const int64_t part = static_cast<int64_t>(o) * cut.parts * cut.results;
    first.to.push_back(fmt::format("({} + {})", there, part));
    last.from.push_back(fmt::format("({} + {})", from, part));
    last.to.push_back(then.out(static_cast<int>(o)));
    Instr load;
    load.code = PointwiseOp::load;
    load.dtype = dtype;
    load.slot = static_cast<int>(o);
    loads.code.push_back(load);
    loads.outputs.push_back(static_cast<int>(o));
  }
  return {reduce_text(args, first, dtype, arguments), reduce_text(args, last, dtype, then)};
}

}  // namespace tessera::cuda
