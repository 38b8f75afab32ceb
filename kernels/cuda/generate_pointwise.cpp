// Fused pointwise steps without row instructions. One thread handles `width` neighbouring elements.
// An operand that is dense there is one access of up to 16 bytes; an operand that is constant there
// is one element. All loads come before all stores, so an output may alias an input, element by
// element.
#include "kernels/cuda/group.h"
#include "kernels/cuda/pointwise_codegen.h"

namespace tessera::cuda {

namespace {

class PointwiseText {
 public:
  PointwiseText(const KernelArgs& args, const Walk& walk)
      : args_(args), walk_(walk), arguments_(args) {}

  Source generate() {
    const kernels::Nest& nest = walk_.nest;
    const int64_t vectors = nest.elements() / walk_.width;
    Source source;
    source.threads = kThreads;
    source.blocks = (vectors + kThreads - 1) / kThreads;
    type_ = index_type(nest);
    std::string body = fmt::format(
        "  const {0} i = static_cast<{0}>(blockIdx.x) * {1} + static_cast<{0}>(threadIdx.x);\n"
        "  if (i >= {2}) return;\n",
        type_, kThreads, vectors);
    body += dims_text(nest, "i", type_, walk_.width);
    before();
    elements();
    after();
    source.text =
        unit(arguments_, kThreads,
             body + before_ +
                 fmt::format("#pragma unroll\n  for (int j = 0; j < {}; ++j) {{\n", walk_.width) +
                 inside_ + "  }\n" + after_);
    source.words = arguments_.words();
    return source;
  }

 private:
  std::string offset(int operand, bool wide) const {
    return offset_text(walk_.nest, operand, walk_.width, wide);
  }
  /// The index of element j.
  std::string lane(int operand) const {
    const int64_t stride = walk_.inner_stride(operand);
    return stride == 0 ? fmt::format("p{}", operand) : fmt::format("p{} + j * {}", operand, stride);
  }

  /// Emits offsets, vector loads, and what all elements of the thread share.
  void before() {
    for (size_t i = 0; i < walk_.program.code.size(); ++i) {
      const Instr& instr = walk_.program.code[i];
      const int op = walk_.operand[i];
      if (op < 0 || (instr.code == PointwiseOp::mask && instr.slot < 0)) continue;
      const bool memory = instr.code == PointwiseOp::load;
      before_ += fmt::format("  const {} p{} = {};\n", memory ? type_ : "long long", op,
                             offset(op, !memory));
      if (instr.code == PointwiseOp::random) before_ += random_text(walk_, i, arguments_, args_);
      if (!memory) continue;
      const std::string from = fmt::format("{} + p{}", arguments_.in(instr.slot), op);
      if (walk_.inner_stride(op) == 1 && walk_.width > 1) {
        before_ += fmt::format("  const auto v{} = load<{}>({});\n", i, walk_.width, from);
      } else if (walk_.inner_stride(op) == 0) {
        before_ +=
            fmt::format("  const {} r{} = widen(*({}));\n", register_type(instr.dtype), i, from);
      }
    }
    for (size_t k = 0; k < args_.out.size(); ++k) {
      before_ +=
          fmt::format("  const {} p{} = {};\n", type_, k, offset(static_cast<int>(k), false));
      if (wide(k)) {
        before_ +=
            fmt::format("  Vec<{}, {}> w{};\n", memory_type(args_.out[k].dtype), walk_.width, k);
      }
    }
  }

  bool wide(size_t k) const {
    return walk_.width > 1 && walk_.inner_stride(static_cast<int>(k)) == 1;
  }

  void elements() {
    for (size_t i = 0; i < walk_.program.code.size(); ++i) {
      const Instr& instr = walk_.program.code[i];
      const int op = walk_.operand[i];
      std::string value;
      if (instr.code == PointwiseOp::load) {
        if (walk_.inner_stride(op) == 0) continue;
        value = walk_.width > 1 && walk_.inner_stride(op) == 1
                    ? fmt::format("widen(v{}.x[j])", i)
                    : fmt::format("widen({}[{}])", arguments_.in(instr.slot), lane(op));
      } else {
        value = value_text(walk_, i, arguments_, op < 0 ? "" : lane(op), args_.step->origin.name);
      }
      inside_ += fmt::format("    const {} r{} = {};\n", register_type(instr.dtype), i, value);
    }
    for (size_t k = 0; k < args_.out.size(); ++k) {
      const int op = static_cast<int>(k);
      inside_ += fmt::format("    narrow(r{}, {});\n", walk_.program.outputs.at(k),
                             wide(k) ? fmt::format("w{}.x[j]", k)
                                     : fmt::format("{}[{}]", arguments_.out(op), lane(op)));
    }
  }

  void after() {
    for (size_t k = 0; k < args_.out.size(); ++k) {
      if (wide(k))
        after_ +=
            fmt::format("  store({} + p{}, w{});\n", arguments_.out(static_cast<int>(k)), k, k);
    }
  }

  const KernelArgs& args_;
  const Walk& walk_;
  Arguments arguments_;
  const char* type_ = "int";
  std::string before_, inside_, after_;
};

}  // namespace

Source generate_pointwise(const KernelArgs& args) {
  if (is_group(*args.step)) return generate_group(args);
  const Walk walk = make_walk(args);
  if (walk.nest.elements() == 0) return {};
  return walk.row < 0 ? PointwiseText(args, walk).generate() : generate_rows(args, walk);
}

}  // namespace tessera::cuda
