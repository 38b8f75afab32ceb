// Binding of fused pointwise steps: the loop nest, the blocks and the loop of every instruction.
// Everything that pointwise.cpp only follows is decided here and in
// pointwise_{spreads,chains,places}.cpp.
#include <algorithm>
#include <type_traits>

#include "kernels/cpu/pointwise_interpreter.h"
#include "kernels/cpu/tables.h"
#include "kernels/pointwise.h"

namespace tessera::cpu {

std::span<const BlockOps* const> usable_block_ops() {
  static constexpr const BlockOps* kAll[] = {&kBaseOps, &kAvx2Ops, &kAvx512Ops};
#if defined(__x86_64__) && defined(__GNUC__)
  static const size_t usable = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? 3
               : 2;
  }();
#else
  static const size_t usable = 1;
#endif
  return {kAll, usable};
}

Pointwise::Pointwise(const KernelArgs& args, const BlockOps& ops) : args_(args), ops_(ops) {
  make_nest_and_ops();
  find_aliases();
  if (nest_.elements() == 0) return;
  choose_block();
  find_spreads();
  join_chains();
  choose_outputs();
  assign_buffers();
  for (Op& op : code_) bind_op(op);
  for (size_t i = 0; i < code_.size(); ++i) {
    const Code code = code_[i].instr.code;
    const bool still = code == Code::constant || code == Code::value;
    if (!code_[i].unused && !still) walked_.push_back(static_cast<int>(i));
  }
  refill(true);
}

/// Operands of the nest: outputs first, so that the innermost dim is the one that is stored
/// densely.
void Pointwise::make_nest_and_ops() {
  const Step& step = *args_.step;
  const auto& sizes = args_.out.at(0).sizes;
  const size_t rank = sizes.size();
  std::vector<std::vector<int64_t>> strides;
  for (const TensorArg& out : args_.out) {
    check(out.sizes == sizes, "outputs of a pointwise step differ in size");
    strides.push_back(out.strides);
  }
  for (size_t i = 0; i < step.exprs.size(); ++i)
    values_.push_back(eval(args_, static_cast<int>(i)));
  for (size_t k = 0; k < step.pointwise.outputs.size(); ++k) {
    outputs_.push_back({step.pointwise.outputs[k], {static_cast<int>(k)}});
  }
  for (const Instr& instr : step.pointwise.code) {
    Op op;
    op.instr = instr;
    if (instr.code == Code::load) op.arg = &args_.in.at(instr.slot);
    if (positional(instr.code)) {
      std::vector<int64_t> s(rank, 0);
      if (instr.code == Code::load) {
        check(op.arg->sizes == sizes,
              "an input of a pointwise step has not the sizes of the outputs");
        s = op.arg->strides;
      } else if (instr.code == Code::random) {
        for (size_t d = 0; d < rank; ++d) {
          check(!step.exprs[instr.expr + 3 + 2 * d].depends_on_scalars(),
                "the index strides of random numbers depend on a run-time scalar");
          s[d] = values_[instr.expr + 3 + 2 * d];
        }
      } else if (instr.slot >= 0) {
        s.at(instr.slot) = 1;
      }
      op.place.operand = static_cast<int>(strides.size());
      strides.push_back(std::move(s));
    }
    code_.push_back(std::move(op));
  }
  offsets_.assign(strides.size(), 0);
  for (const Op& op : code_) {  // of addresses, the part's start is in them already
    if (op.place.operand < 0 || op.instr.code == Code::load || args_.split_dim < 0) continue;
    offsets_[op.place.operand] = args_.split_first * strides[op.place.operand][args_.split_dim];
  }
  nest_ = make_nest(sizes, std::move(strides));
  row_ = row_dim(step.pointwise);
  std::vector<int64_t> along_row;
  for (const auto& s : nest_.strides) along_row.push_back(row_ < 0 ? 0 : s.at(row_));
  if (row_ >= 0) nest_.remove_dim(row_);
  nest_.drop_ones();
  nest_.order_by(0);
  nest_.merge();
  if (row_ >= 0) nest_.add_dim(sizes[row_], along_row);
  regs_.assign(code_.size(), nullptr);
}

/// Instructions that hand on their operand's register: copies, casts to float32 of what lies in a
/// float already, and the rounding to a narrow type if only stores read it, which round themselves.
void Pointwise::find_aliases() {
  std::vector<char> is_read(code_.size(), 0);
  for (const Op& op : code_) {
    for (const int r : {op.instr.a, op.instr.b, op.instr.c}) {
      if (r >= 0) is_read[r] = 1;
    }
  }
  for (size_t k = 0; k < outputs_.size(); ++k) {
    const int reg = outputs_[k].reg;
    is_read[reg] |= args_.out[k].dtype != code_[reg].instr.dtype;
  }
  for (size_t i = 0; i < code_.size(); ++i) {
    const Instr& instr = code_[i].instr;
    if (instr.code != Code::copy && instr.code != Code::cast) continue;
    const DType from = code_.at(instr.a).instr.dtype, to = instr.dtype;
    const bool widens = stored_as(from) == DType::float32 && to == DType::float32;
    const bool stored = stored_as(from) == DType::float32 && is_narrow(to) && !is_read[i];
    code_[i].alias = from == to || widens || stored;
  }
}

/// Blocks of equal length within a row, or as many whole rows as fit.
void Pointwise::choose_block() {
  const int rank = nest_.rank();
  const int64_t n0 = rank > 0 ? nest_.sizes[rank - 1] : 1,
                n1 = rank > 1 ? nest_.sizes[rank - 2] : 1;
  auto place = [&](Place& p) {
    p.inner = rank > 0 ? nest_.strides[p.operand][rank - 1] : 1;
    p.outer = rank > 1 ? nest_.strides[p.operand][rank - 2] : 0;
  };
  int64_t arrays = 0;
  for (Op& op : code_) {
    if (op.place.operand < 0) continue;
    place(op.place);
    arrays += op.instr.code == Code::load && (op.place.inner != 0 || op.place.outer != 0);
  }
  for (Output& out : outputs_) place(out.place);
  int64_t block = kBlock;
  if (row_ >= 0 && operand_bytes() < kNearBytes) block = kBlockOfRows;
  if (row_ < 0 && arrays >= kManyArrays) block = kBlockOfMany;
  if (row_ >= 0) {
    block_ = {std::clamp<int64_t>(block / n0, 1, n1), n0};
  } else if (n0 > block / 2) {
    const int64_t pieces = (n0 + block - 1) / block;
    block_ = {1, std::min(n0, ((n0 + pieces - 1) / pieces + 15) / 16 * 16)};
  } else {
    block_ = {std::min(n1, block / n0), n0};
  }
  capacity_ = std::max(kBlock, block_.elements());
}

void Pointwise::bind_op(Op& op) {
  const Instr& instr = op.instr;
  regs_[&op - code_.data()] = op.buffer;
  if (positional(instr.code) || instr.code == Code::constant || instr.code == Code::value) {
    if (op.arg != nullptr) {
      check(stored_as(op.arg->dtype) == stored_as(instr.dtype),
            "a pointwise load of {} from a {} tensor", to_string(instr.dtype),
            to_string(op.arg->dtype));
    }
    return;
  }
  if (instr.code >= Code::row_sum) {
    op.row_fn = ops_.find_row(instr.code, instr.dtype);
    if (op.row_fn == nullptr) {
      fail(ErrorKind::unsupported, "[{}] {} is not defined for {}", args_.step->origin.name,
           to_string(instr.code), to_string(instr.dtype));
    }
    return;
  }
  const int typed_by = instr.code == Code::where ? instr.b : instr.a;
  const DType operand = code_.at(typed_by).instr.dtype;
  const bool arithmetic = instr.code != Code::cast && instr.code != Code::copy;
  const bool boolean = instr.dtype == DType::bool_;
  check(!arithmetic || boolean || stored_as(operand) == stored_as(instr.dtype),
        "the pointwise operation {} has operands of {} and a result of {}", to_string(instr.code),
        to_string(operand), to_string(instr.dtype));
  if (op.fn != nullptr) return;
  op.fn = ops_.find(instr.code, operand, instr.dtype);
  if (op.fn == nullptr) {
    fail(ErrorKind::unsupported, "[{}] the pointwise operation {} is not defined for {}",
         args_.step->origin.name, to_string(instr.code), to_string(instr.dtype));
  }
}

void Pointwise::fill_constant(Op& op) {
  const Instr& instr = op.instr;
  with_type(instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = reinterpret_cast<T*>(op.buffer);
    T x = instr.code == Code::constant ? formula::cast<T>(instr.imm)
                                       : static_cast<T>(values_[instr.expr]);
    if (instr.dtype == DType::bool_) {
      x = T(instr.code == Code::constant ? instr.imm != 0 : values_[instr.expr] != 0);
    }
    if constexpr (std::is_same_v<T, float>) {
      x = rounded_to(x, instr.dtype);
    }
    std::fill(out, out + block_.elements(), x);
  });
}

/// Registers that do not change within a run: constants once, expressions of scalars when they
/// change.
void Pointwise::refill(bool all) {
  const Step& step = *args_.step;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (step.exprs[i].depends_on_scalars()) values_[i] = eval(args_, static_cast<int>(i));
  }
  for (Op& op : code_) {
    const Code code = op.instr.code;
    const bool varies = code == Code::value && step.exprs[op.instr.expr].depends_on_scalars();
    if (varies || (all && (code == Code::constant || code == Code::value))) fill_constant(op);
  }
}

Sharing share_pointwise(const Step& step, int threads) {
  const double instructions = static_cast<double>(step.pointwise.code.size());
  const View& out = step.out.at(0);
  std::vector<char> allowed(out.sizes.size(), 1);
  if (const int row = row_dim(step.pointwise); row >= 0) allowed[static_cast<size_t>(row)] = 0;
  return {outermost_dim(out, allowed, threads),
          static_cast<double>(out.elements()) * instructions * 0.2};
}

std::unique_ptr<Kernel> bind_pointwise_with(const KernelArgs& args, const BlockOps& ops) {
  return std::make_unique<Pointwise>(args, ops);
}

std::unique_ptr<Kernel> bind_pointwise(const KernelArgs& args) {
  return bind_pointwise_with(args, *usable_block_ops().back());
}

}  // namespace tessera::cpu
