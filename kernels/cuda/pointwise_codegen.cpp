#include "kernels/cuda/pointwise_codegen.h"

#include <algorithm>

namespace tessera::cuda {

namespace {

Instr instr_of(PointwiseOp code, DType dtype) {
  Instr instr;
  instr.code = code;
  instr.dtype = dtype;
  return instr;
}

/// "copy" and "fill" as pointwise programs.
PointwiseProgram program_of(const KernelArgs& args) {
  const Step& step = *args.step;
  if (step.kernel == KernelKind::copy) {
    Instr load = instr_of(PointwiseOp::load, args.in.at(0).dtype);
    load.slot = 0;
    return {{load}, {0}};
  }
  if (step.kernel == KernelKind::fill) {
    Instr constant = instr_of(PointwiseOp::constant, args.out.at(0).dtype);
    constant.imm = step.as<FillSpec>().value;
    return {{constant}, {0}};
  }
  return step.pointwise;
}

std::vector<int64_t> strides_of(const Instr& instr, const KernelArgs& args) {
  const size_t rank = args.out.at(0).sizes.size();
  if (instr.code == PointwiseOp::load) {
    const TensorArg& in = args.in.at(static_cast<size_t>(instr.slot));
    TESSERA_CHECK(in.sizes == args.out[0].sizes,
                  "an input of a pointwise step has not the sizes of the outputs");
    return in.strides;
  }
  std::vector<int64_t> strides(rank, 0);
  if (instr.code == PointwiseOp::random) {
    for (size_t d = 0; d < rank; ++d) {
      const auto e = static_cast<int>(static_cast<size_t>(instr.expr) + 3 + 2 * d);
      TESSERA_CHECK(!args.step->exprs.at(static_cast<size_t>(e)).depends_on_scalars(),
                    "the index strides of random numbers depend on a run-time scalar");
      strides[d] = kernels::eval(args, e);
    }
  } else if (instr.slot >= 0) {
    strides.at(static_cast<size_t>(instr.slot)) = 1;
  }
  return strides;
}

/// The widest accesses that all operands in memory allow.
int width_of(const Walk& walk, const KernelArgs& args) {
  if (walk.nest.rank() == 0) return 1;
  struct Operand {
    const TensorArg* arg;
    int number;
  };
  std::vector<Operand> operands;
  for (size_t k = 0; k < args.out.size(); ++k) operands.push_back({&args.out[k], int(k)});
  for (size_t i = 0; i < walk.program.code.size(); ++i) {
    if (walk.program.code[i].code == PointwiseOp::load) {
      operands.push_back(
          {&args.in[static_cast<size_t>(walk.program.code[i].slot)], walk.operand[i]});
    }
  }
  int64_t smallest = 16;
  for (const Operand& o : operands) {
    const int64_t inner = walk.inner_stride(o.number);
    if (inner != 0 && inner != 1) return 1;
    if (inner == 1) smallest = std::min<int64_t>(smallest, size_of(o.arg->dtype));
  }
  for (int64_t width = std::min<int64_t>(8, 16 / smallest); width > 1; width /= 2) {
    bool fits = walk.row_size() % width == 0;
    for (const Operand& o : operands) {
      if (walk.inner_stride(o.number) != 1) continue;
      const int64_t item = size_of(o.arg->dtype), bytes = std::min<int64_t>(16, width * item);
      fits = fits && reinterpret_cast<uintptr_t>(o.arg->data) % static_cast<size_t>(bytes) == 0;
      const auto& strides = walk.nest.strides[static_cast<size_t>(o.number)];
      for (int d = 0; d + 1 < walk.nest.rank(); ++d)
        fits = fits && strides[static_cast<size_t>(d)] * item % bytes == 0;
    }
    if (fits) return static_cast<int>(width);
  }
  return 1;
}

}  // namespace

Walk make_walk(const KernelArgs& args) {
  Walk walk;
  walk.program = program_of(args);
  const auto& sizes = args.out.at(0).sizes;
  std::vector<std::vector<int64_t>> strides;
  for (const TensorArg& out : args.out) {
    TESSERA_CHECK(out.sizes == sizes, "outputs of a pointwise step differ in size");
    strides.push_back(out.strides);
  }
  for (const Instr& instr : walk.program.code) {
    walk.operand.push_back(is_positional(instr.code) ? static_cast<int>(strides.size()) : -1);
    if (is_positional(instr.code)) strides.push_back(strides_of(instr, args));
  }
  walk.nest = kernels::make_nest(sizes, std::move(strides));
  walk.row = row_dim(walk.program);
  std::vector<int64_t> along_row;
  for (const auto& s : walk.nest.strides)
    along_row.push_back(walk.row < 0 ? 0 : s.at(static_cast<size_t>(walk.row)));
  if (walk.row >= 0) walk.nest.remove_dim(walk.row);
  walk.nest.drop_ones();
  walk.nest.order_by(0);
  walk.nest.merge();
  if (walk.row >= 0) walk.nest.add_dim(sizes[static_cast<size_t>(walk.row)], along_row);
  walk.width = width_of(walk, args);
  return walk;
}

std::string random_text(const Walk& walk, size_t i, Arguments& arguments, const KernelArgs& args) {
  const Instr& instr = walk.program.code[i];
  std::string first;  // the logical index of element 0
  for (size_t d = 0; d < args.out[0].sizes.size(); ++d) {
    const int e = instr.expr + 2 + 2 * static_cast<int>(d);
    first += fmt::format("{}{} * {}", d == 0 ? "" : " + ", arguments.expr(e),
                         arguments.number(kernels::eval(args, e + 1)));
  }
  return fmt::format("  Random q{0}({1}, {2});\n  const long long first{0} = {3};\n", i,
                     arguments.expr(instr.expr), arguments.expr(instr.expr + 1),
                     first.empty() ? "0" : first);
}

std::string value_text(const Walk& walk, size_t i, Arguments& arguments, const std::string& offset,
                       const std::string& where) {
  const Instr& instr = walk.program.code[i];
  const char* type = register_type(instr.dtype);
  auto reg = [](int r) { return fmt::format("r{}", r); };
  auto from_integer = [&](const std::string& x) {
    if (instr.dtype == DType::bool_) return fmt::format("static_cast<uint8_t>(({}) != 0)", x);
    if (is_narrow(instr.dtype))
      return rounded_text(instr.dtype, fmt::format("static_cast<float>({})", x));
    return fmt::format("static_cast<{}>({})", type, x);
  };
  switch (instr.code) {
    case PointwiseOp::constant:
      return literal(instr.dtype, instr.imm);
    case PointwiseOp::value:
      return from_integer(arguments.expr(instr.expr));
    case PointwiseOp::index:
      return from_integer(fmt::format("{} + ({})", arguments.expr(instr.expr), offset));
    case PointwiseOp::random:
      return fmt::format("q{0}.at(first{0} + {1})", i, offset);
    case PointwiseOp::mask: {
      const std::string keep = instr.slot < 0
                                   ? fmt::format("{} != 0", arguments.expr(instr.expr))
                                   : fmt::format("({}) < {}", offset, arguments.expr(instr.expr));
      return fmt::format("{} ? {} : {}", keep, reg(instr.a), literal(instr.dtype, instr.imm));
    }
    default:
      return expression(walk.program, instr, reg(instr.a), reg(instr.b), reg(instr.c), where);
  }
}

}  // namespace tessera::cuda
