// Pointwise steps over many tensors in one launch (lower/passes/group_tensors.h). A block belongs
// to one tensor, which it finds by its number in a tree of branches that the whole block takes
// alike; the addresses are arguments. A thread has 4 neighbouring elements if all tensors allow it,
// and loads them all before it stores any. An operand may be rows that lie apart.
#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/group.h"

namespace tessera::cuda {

namespace {

class GroupText {
 public:
  explicit GroupText(const KernelArgs& args)
      : args_(args),
        arguments_(args),
        program_(args.step->pointwise),
        tensors_(static_cast<size_t>(args.step->as<TensorGroup>().tensors)) {
    while (shared_ < args.in.size() && args.in[shared_].strides[0] == 0) ++shared_;
    ins_ = (args.in.size() - shared_) / tensors_;
    outs_ = args.out.size() / tensors_;
    width_ = has_vectors() ? 4 : 1;
    first_.push_back(0);
    for (size_t t = 0; t < tensors_; ++t) {
      const int64_t each = int64_t{kThreads} * width_;
      first_.push_back(first_.back() + (size(t) + each - 1) / each);
    }
  }

  Source generate() {
    std::string body = "  const int b = static_cast<int>(blockIdx.x);\n  long long n, first;\n";
    for (size_t f = 0; f < ins_; ++f)
      body += fmt::format("  const {}* x{};\n", memory_type(args_.in[shared_ + f].dtype), f);
    for (size_t o = 0; o < outs_; ++o)
      body += fmt::format("  {}* y{};\n", memory_type(args_.out[o].dtype), o);
    for (size_t k = 0; k < ins_ + outs_; ++k) {
      if (has_rows(k)) body += fmt::format("  long long row{0}, gap{0};\n", k);
    }
    choose(0, tensors_, body);
    body += fmt::format(
        "  const long long e = ((b - first) * {} + static_cast<int>(threadIdx.x)) * {};\n"
        "  if (e >= n) return;\n",
        kThreads, width_);
    std::string inside;
    for (size_t i = 0; i < program_.code.size(); ++i) instruction(i, body, inside);
    for (size_t o = 0; o < outs_; ++o) {
      body += fmt::format("  Vec<{}, {}> w{};\n", memory_type(args_.out[o].dtype), width_, o);
      inside += fmt::format("    narrow(r{}, w{}.x[j]);\n", program_.outputs.at(o), o);
    }
    body +=
        fmt::format("#pragma unroll\n  for (int j = 0; j < {}; ++j) {{\n{}  }}\n", width_, inside);
    for (size_t o = 0; o < outs_; ++o)
      body += fmt::format("  store(y{0} + {1}, w{0});\n", o, place(ins_ + o));
    Source source;
    source.threads = kThreads;
    source.blocks = first_.back();
    source.text = unit(arguments_, kThreads, body);
    source.words = arguments_.words();
    return source;
  }

 private:
  int64_t size(size_t tensor) const {
    const auto& sizes = args_.out[tensor * outs_].sizes;
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  }

  /// Operand k of a tensor: its inputs, then its outputs.
  const TensorArg& operand(size_t tensor, size_t k) const {
    return k < ins_ ? args_.in[shared_ + tensor * ins_ + k] : args_.out[tensor * outs_ + k - ins_];
  }
  bool has_rows(size_t k) const {
    bool found = false;
    for (size_t t = 0; t < tensors_; ++t) found |= operand(t, k).sizes.size() > 1;
    return found;
  }
  /// The place of element e in operand k.
  std::string place(size_t k) const {
    return has_rows(k) ? fmt::format("(e + e / row{0} * gap{0})", k) : "e";
  }

  bool has_vectors() const {
    const auto fits = [](const TensorArg& arg) {
      const int64_t bytes = std::min<int64_t>(16, 4 * size_of(arg.dtype));
      return arg.sizes.back() % 4 == 0 && (arg.sizes.size() == 1 || arg.strides[0] % 4 == 0) &&
             reinterpret_cast<uintptr_t>(arg.data) % static_cast<size_t>(bytes) == 0;
    };
    return std::all_of(args_.in.begin() + static_cast<std::ptrdiff_t>(shared_), args_.in.end(),
                       fits) &&
           std::all_of(args_.out.begin(), args_.out.end(), fits);
  }

  /// Sets the size, the first block and the addresses of the block's tensor, one of [from, to).
  void choose(size_t from, size_t to, std::string& body) {
    if (to - from > 1) {
      const size_t half = from + (to - from) / 2;
      body += fmt::format("  if (b < {}) {{\n", first_[half]);
      choose(from, half, body);
      body += "  } else {\n";
      choose(half, to, body);
      body += "  }\n";
      return;
    }
    body += fmt::format("  n = {}; first = {};", size(from), first_[from]);
    for (size_t f = 0; f < ins_; ++f)
      body +=
          fmt::format(" x{} = {};", f, arguments_.in(static_cast<int>(shared_ + from * ins_ + f)));
    for (size_t o = 0; o < outs_; ++o)
      body += fmt::format(" y{} = {};", o, arguments_.out(static_cast<int>(from * outs_ + o)));
    for (size_t k = 0; k < ins_ + outs_; ++k) {
      if (!has_rows(k)) continue;
      const TensorArg& arg = operand(from, k);
      const bool apart = arg.sizes.size() > 1;
      body += fmt::format(" row{0} = {1}; gap{0} = {2};", k, apart ? arg.sizes[1] : size(from),
                          apart ? arg.strides[0] - arg.sizes[1] : 0);
    }
    body += "\n";
  }

  void instruction(size_t i, std::string& before, std::string& inside) {
    const Instr& instr = program_.code[i];
    const auto reg = [](int r) { return fmt::format("r{}", r); };
    std::string value;
    if (instr.code == PointwiseOp::load) {
      const auto slot = static_cast<size_t>(instr.slot);
      if (slot < shared_) {
        before += fmt::format("  const {} r{} = widen(*{});\n", register_type(instr.dtype), i,
                              arguments_.in(instr.slot));
        return;
      }
      before += fmt::format("  const auto v{} = load<{}>(x{} + {});\n", i, width_, slot - shared_,
                            place(slot - shared_));
      value = fmt::format("widen(v{}.x[j])", i);
    } else if (instr.code == PointwiseOp::constant) {
      value = literal(instr.dtype, instr.imm);
    } else {
      value = expression(program_, instr, reg(instr.a), reg(instr.b), reg(instr.c),
                         args_.step->origin.name);
    }
    inside += fmt::format("    const {} r{} = {};\n", register_type(instr.dtype), i, value);
  }

  const KernelArgs& args_;
  Arguments arguments_;
  const PointwiseProgram& program_;
  size_t tensors_, shared_ = 0, ins_ = 0, outs_ = 0;  ///< operands that all share; of each tensor
  int width_ = 1;
  std::vector<int64_t> first_;  ///< by tensor: its first block; then the number of blocks
};

}  // namespace

bool is_group(const Step& step) { return step.find<TensorGroup>() != nullptr; }

Source generate_group(const KernelArgs& args) { return GroupText(args).generate(); }

}  // namespace tessera::cuda
