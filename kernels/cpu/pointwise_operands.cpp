// Binding of fused pointwise steps, first stage: operands and iteration space. Everything that
// depends on the position (loads, stores, indices, masks, random counters) is affine in the index,
// so all of them are operands of one loop nest with their own strides.
#include <algorithm>

#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

namespace {

/// Elements per block. Fewer with many arrays, so that they stay in the L1 cache with the
/// intermediate values. More with row instructions, each of which is a call for a few numbers; but
/// data from memory comes faster in few rows at a time.
constexpr int64_t kBlock = 1024, kBlockOfMany = 512, kBlockOfRows = 4096,
                  kNearBytes = int64_t{8} << 20;
/// Rows that are longer are cut into pieces, whose registers stay in the L1 cache. Pieces are a
/// power of two of the blocks of reduce_row.h, so that sums of rows do not depend on them.
constexpr int64_t kLongRow = 8192, kRowPiece = 2048;

class OperandBinder {
 public:
  explicit OperandBinder(const KernelArgs& args) : args_(args), step_(*args.step) {}

  PointwisePlan bind() {
    std::vector<std::vector<int64_t>> strides = add_outputs();
    for (const Instr& instr : step_.pointwise.code) add(instr, strides);
    plan_.starts.assign(strides.size(), 0);
    for (const BoundInstr& op : plan_.code) {  // addresses already include the start of the part
      const int operand = op.strides.operand;
      if (operand < 0 || op.instr.code == PointwiseOp::load || args_.split_dim < 0) continue;
      plan_.starts[operand] = args_.split_first * strides[operand][args_.split_dim];
    }
    make_space(std::move(strides));
    find_aliases();
    if (plan_.nest.elements() == 0) return std::move(plan_);
    reduce_strides();
    choose_block();
    return std::move(plan_);
  }

 private:
  /// Outputs come first, so that the innermost dim is the one that is stored densely.
  std::vector<std::vector<int64_t>> add_outputs() {
    std::vector<std::vector<int64_t>> strides;
    for (const TensorArg& out : args_.out) {
      TESSERA_CHECK(out.sizes == args_.out.at(0).sizes,
                    "outputs of a pointwise step differ in size");
      strides.push_back(out.strides);
    }
    const std::vector<int>& outputs = step_.pointwise.outputs;
    for (size_t k = 0; k < outputs.size(); ++k)
      plan_.outputs.push_back({outputs[k], {static_cast<int>(k)}});
    return strides;
  }

  void add(const Instr& instr, std::vector<std::vector<int64_t>>& strides) {
    BoundInstr& op = plan_.code.emplace_back();
    op.instr = instr;
    if (instr.code == PointwiseOp::load) op.arg = &args_.in.at(instr.slot);
    if (!is_positional(instr.code)) return;
    op.strides.operand = static_cast<int>(strides.size());
    strides.push_back(strides_of(op));
  }

  std::vector<int64_t> strides_of(const BoundInstr& op) const {
    const auto& sizes = args_.out.at(0).sizes;
    const Instr& instr = op.instr;
    if (instr.code == PointwiseOp::load) {
      TESSERA_CHECK(op.arg->sizes == sizes,
                    "an input of a pointwise step has not the sizes of the outputs");
      return op.arg->strides;
    }
    std::vector<int64_t> strides(sizes.size(), 0);
    if (instr.code == PointwiseOp::random) {
      for (size_t d = 0; d < sizes.size(); ++d) {
        const int e = instr.expr + 3 + 2 * static_cast<int>(d);
        TESSERA_CHECK(!step_.exprs[e].depends_on_scalars(),
                      "the index strides of random numbers depend on a run-time scalar");
        strides[d] = eval(args_, e);
      }
    } else if (instr.slot >= 0) {
      strides.at(instr.slot) = 1;
    }
    return strides;
  }

  void make_space(std::vector<std::vector<int64_t>> strides) {
    const auto& sizes = args_.out.at(0).sizes;
    Nest& nest = plan_.nest = make_nest(sizes, std::move(strides));
    const int row = plan_.row = row_dim(step_.pointwise);
    std::vector<int64_t> along_row;
    for (const auto& s : nest.strides) along_row.push_back(row < 0 ? 0 : s.at(row));
    if (row >= 0) nest.remove_dim(row);
    nest.drop_ones();
    nest.order_by(0);
    nest.merge();
    if (row >= 0) nest.add_dim(sizes[row], along_row);
  }

  /// Instructions whose register is their operand's: copies, casts to float32 of values already in
  /// a float, and rounding to a 16-bit type that only stores read, which round themselves.
  void find_aliases() {
    std::vector<BoundInstr>& code = plan_.code;
    std::vector<char> is_read(code.size(), 0);
    for (const BoundInstr& op : code) {
      for (const int r : {op.instr.a, op.instr.b, op.instr.c}) {
        if (r >= 0) is_read[r] = 1;
      }
    }
    for (size_t k = 0; k < plan_.outputs.size(); ++k) {
      const int reg = plan_.outputs[k].reg;
      is_read[reg] |= args_.out[k].dtype != code[reg].instr.dtype;
    }
    for (size_t i = 0; i < code.size(); ++i) {
      const Instr& instr = code[i].instr;
      if (!converts(instr.code)) continue;
      const DType from = code.at(instr.a).instr.dtype, to = instr.dtype;
      const bool widens = stored_as(from) == DType::float32 && to == DType::float32;
      const bool stored = stored_as(from) == DType::float32 && is_narrow(to) && !is_read[i];
      code[i].alias = from == to || widens || stored;
    }
  }

  void reduce_strides() {
    const Nest& nest = plan_.nest;
    const int rank = nest.rank();
    auto reduce = [&](BlockStrides& s) {
      s.inner = rank > 0 ? nest.strides[s.operand][rank - 1] : 1;
      s.outer = rank > 1 ? nest.strides[s.operand][rank - 2] : 0;
    };
    for (BoundInstr& op : plan_.code) {
      if (op.strides.operand >= 0) reduce(op.strides);
    }
    for (Output& out : plan_.outputs) reduce(out.strides);
  }

  /// Blocks of equal length within a row, or as many whole rows as fit.
  void choose_block() {
    const Nest& nest = plan_.nest;
    const int rank = nest.rank();
    const int64_t n0 = rank > 0 ? nest.sizes[rank - 1] : 1,
                  n1 = rank > 1 ? nest.sizes[rank - 2] : 1;
    const int64_t arrays =
        std::count_if(plan_.code.begin(), plan_.code.end(), [](const BoundInstr& op) {
          return op.instr.code == PointwiseOp::load &&
                 (op.strides.inner != 0 || op.strides.outer != 0);
        });
    int64_t block = kBlock;
    if (plan_.row >= 0 && operand_bytes(args_) < kNearBytes) block = kBlockOfRows;
    if (plan_.row < 0 && arrays >= kManyArrays) block = kBlockOfMany;
    if (plan_.row >= 0 && n0 > kLongRow && sums_exactly()) {
      plan_.block = {1, kRowPiece};
    } else if (plan_.row >= 0) {
      plan_.block = {std::clamp<int64_t>(block / n0, 1, n1), n0};
    } else if (n0 > block / 2) {
      const int64_t pieces = (n0 + block - 1) / block;
      plan_.block = {1, std::min(n0, ((n0 + pieces - 1) / pieces + 15) / 16 * 16)};
    } else {
      plan_.block = {std::min(n1, block / n0), n0};
    }
    plan_.capacity = std::max(kBlock, plan_.block.elements());
  }

  /// False if a row instruction rounds its result, which it must not do by piece.
  bool sums_exactly() const {
    return std::none_of(plan_.code.begin(), plan_.code.end(), [](const BoundInstr& op) {
      return reduces_row(op.instr.code) && is_narrow(op.instr.dtype);
    });
  }

  const KernelArgs& args_;
  const Step& step_;
  PointwisePlan plan_;
};

}  // namespace

PointwisePlan bind_operands(const KernelArgs& args) { return OperandBinder(args).bind(); }

}  // namespace tessera::cpu
