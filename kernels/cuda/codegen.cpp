#include "kernels/cuda/codegen.h"

#include <cstdlib>
#include <cstring>

#include "kernels/common/pointwise.h"
#include "kernels/common/types.h"

namespace tessera::cuda {

const char* register_type(DType t) { return is_narrow(t) ? "float" : memory_type(t); }

const char* memory_type(DType t) {
  switch (t) {
    case DType::float32:
      return "float";
    case DType::float64:
      return "double";
    case DType::bfloat16:
      return "BFloat16";
    case DType::float16:
      return "Float16";
    case DType::int64:
      return "int64_t";
    case DType::int32:
      return "int32_t";
    case DType::uint8:
    case DType::bool_:
      return "uint8_t";
  }
  return "";
}

std::string rounded_text(DType t, const std::string& x) {
  return is_narrow(t) ? fmt::format("round_to_{}({})", to_string(t), x) : x;
}

std::string literal(DType t, double value) {
  switch (t) {
    case DType::float32:
    case DType::bfloat16:
    case DType::float16: {
      const float x = kernels::rounded_to(formula::cast<float>(value), t);
      return fmt::format("bits_as<float>(0x{:08x}u)", bits_as<uint32_t>(x));
    }
    case DType::float64:
      return fmt::format("bits_as<double>(0x{:016x}ull)",
                         static_cast<unsigned long long>(bits_as<uint64_t>(value)));
    case DType::bool_:
      return value != 0 ? "uint8_t(1)" : "uint8_t(0)";
    case DType::uint8:
      return fmt::format("uint8_t({})", formula::cast<uint8_t>(value));
    case DType::int32:
      return fmt::format("static_cast<int32_t>({}u)",
                         static_cast<uint32_t>(formula::cast<int32_t>(value)));
    case DType::int64:
      return fmt::format("static_cast<int64_t>({}ull)",
                         static_cast<uint64_t>(formula::cast<int64_t>(value)));
  }
  return "";
}

namespace {

/// The expression `x` of register type `from`, converted to `to`.
std::string converted(DType from, DType to, const std::string& x) {
  if (from == to) return x;
  if (to == DType::bool_) return fmt::format("formula::NotEqual::apply({0}, decltype({0})(0))", x);
  if (is_narrow(to)) return rounded_text(to, fmt::format("static_cast<float>({})", x));
  return fmt::format("formula::cast<{}>({})", register_type(to), x);
}

}  // namespace

std::string expression(const PointwiseProgram& program, const Instr& instr, const std::string& a,
                       const std::string& b, const std::string& c, const std::string& where) {
  const auto dtype_of = [&](int reg) { return program.code.at(static_cast<size_t>(reg)).dtype; };
  if (converts(instr.code)) return converted(dtype_of(instr.a), instr.dtype, a);
  if (instr.code == PointwiseOp::where)
    return fmt::format("formula::Where::apply({}, {}, {})", a, b, c);
  const InstructionInfo& info = info_of(instr.code);
  const bool is_undefined = info.dtypes == DtypeRule::floating && !is_floating(instr.dtype);
  if (*info.formula == 0 || is_undefined) {
    fail(ErrorKind::unsupported, "[{}] the pointwise operation {} is not defined for {}", where,
         to_string(instr.code), to_string(instr.dtype));
  }
  const std::string call =
      fmt::format("formula::{}::apply({})", info.formula, info.operands == 1 ? a : a + ", " + b);
  return is_test(info.dtypes) ? call : rounded_text(instr.dtype, call);
}

const char* combiner_name(PointwiseOp code) {
  switch (code) {
    case PointwiseOp::row_prod:
      return "Prod";
    case PointwiseOp::row_max:
      return "Max";
    case PointwiseOp::row_min:
      return "Min";
    default:
      return "Sum";
  }
}

const char* combiner_name(Combiner combiner) {
  switch (combiner) {
    case Combiner::sum:
      return "Sum";
    case Combiner::prod:
      return "Prod";
    case Combiner::max:
      return "Max";
    case Combiner::min:
      return "Min";
    case Combiner::any:
      return "Any";
    case Combiner::all:
      return "All";
  }
  return "";
}

std::string Arguments::add(Word::Kind kind, int index, int64_t number, const std::string& type,
                           const std::string& name) {
  const std::string field = fmt::format("{} {};", type, name);
  for (const std::string& f : fields_) {
    if (f == field && kind != Word::Kind::number) return "a." + name;
  }
  words_.push_back({kind, index, number});
  fields_.push_back(field);
  return "a." + name;
}

std::string Arguments::out(int k) {
  return add(Word::Kind::out, k, 0,
             std::string(memory_type(args_.out.at(static_cast<size_t>(k)).dtype)) + "*",
             fmt::format("o{}", k));
}

std::string Arguments::in(int k) {
  return add(Word::Kind::in, k, 0,
             fmt::format("const {}*", memory_type(args_.in.at(static_cast<size_t>(k)).dtype)),
             fmt::format("i{}", k));
}

std::string Arguments::scalars() {
  return add(Word::Kind::scalars, 0, 0, "const long long*", "scalars");
}

std::string Arguments::fault() { return add(Word::Kind::fault, 0, 0, "Fault*", "fault"); }

std::string Arguments::workspace(int64_t bytes, const char* type) {
  return add(Word::Kind::workspace, 0, bytes, std::string(type) + "*", "workspace");
}

std::string Arguments::number(int64_t value) {
  return add(Word::Kind::number, 0, value, "long long", fmt::format("n{}", words_.size()));
}

std::string Arguments::expr(int e) {
  const AffineExpr& x = args_.step->exprs.at(static_cast<size_t>(e));
  if (!x.depends_on_scalars()) return number(x.eval(args_.coordinates, args_.scalars));
  TESSERA_CHECK(x.modulus == 0, "expression {} of '{}' has a modulus", e, args_.step->origin.name);
  TESSERA_CHECK(x.table == nullptr, "expression {} of '{}' has a table", e,
                args_.step->origin.name);
  AffineExpr fixed = x;
  fixed.scalar = -1;
  fixed.divisor = 1;
  fixed.lo = std::numeric_limits<int64_t>::min();
  fixed.hi = std::numeric_limits<int64_t>::max();
  const std::string constant = number(fixed.eval(args_.coordinates, args_.scalars));
  const std::string factor = number(x.scalar_factor), low = number(x.lo), high = number(x.hi);
  // The divisor is a literal: division by 1 folds away, any other costs a call.
  return fmt::format("scalar_expr({}, {}, {}[{}], {}ll, {}, {})", constant, factor, scalars(),
                     x.scalar, x.divisor, low, high);
}

std::string Arguments::declaration() const {
  std::string text = "struct Args {\n";
  for (const std::string& field : fields_) text += "  " + field + "\n";
  return text + "};\n";
}

const char* index_type(const kernels::Nest& nest) {
  constexpr int64_t kLimit = (int64_t{1} << 31) - 4096;
  if (nest.elements() >= kLimit) return "long long";
  for (const auto& strides : nest.strides) {
    int64_t span = 0;
    for (size_t d = 0; d < strides.size(); ++d)
      span += std::abs(strides[d]) * std::max<int64_t>(0, nest.sizes[d] - 1);
    if (span >= kLimit) return "long long";
  }
  return "int";
}

std::string dims_text(const kernels::Nest& nest, const std::string& linear, const char* type,
                      int64_t inner) {
  const int rank = nest.rank();
  if (rank == 0) return "";
  if (rank == 1) return fmt::format("  const {} d0 = {};\n", type, linear);
  std::string text = fmt::format("  {} rest = {};\n", type, linear);
  for (int d = rank - 1; d > 0; --d) {
    const int64_t size = nest.sizes[static_cast<size_t>(d)] / (d == rank - 1 ? inner : 1);
    text += fmt::format("  const {} d{} = rest % {};\n  rest /= {};\n", type, d, size, size);
  }
  return text + fmt::format("  const {} d0 = rest;\n", type);
}

std::string offset_text(const kernels::Nest& nest, int operand, int64_t inner, bool wide) {
  std::string text;
  const auto& strides = nest.strides[static_cast<size_t>(operand)];
  for (int d = 0; d < nest.rank(); ++d) {
    const int64_t stride = strides[static_cast<size_t>(d)] * (d == nest.rank() - 1 ? inner : 1);
    if (stride == 0) continue;
    const std::string dim =
        wide ? fmt::format("static_cast<long long>(d{})", d) : fmt::format("d{}", d);
    text += (text.empty() ? "" : " + ") + (stride == 1 ? dim : fmt::format("{} * {}", dim, stride));
  }
  return text.empty() ? "0" : text;
}

std::string unit(const Arguments& arguments, int threads, const std::string& body,
                 const std::string& before, const std::string& header, int resident) {
  const std::string bounds =
      resident > 0 ? fmt::format("{}, {}", threads, resident) : std::to_string(threads);
  return fmt::format(
      "#include \"{}\"\n\nusing namespace tessera;\nusing namespace tessera::device;\n\n{}{}\n"
      "extern \"C\" __global__ void __launch_bounds__({}) {}(Args a) {{\n{}}}\n",
      header, before, arguments.declaration(), bounds, kName, body);
}

}  // namespace tessera::cuda
