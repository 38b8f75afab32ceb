// Binding of fused pointwise steps: how outputs are stored, and which loads are prefetched. The
// last writer of an output that overlaps no input computes into the output's memory. Results of
// large steps bypass the caches.
#include <algorithm>

#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

namespace {

/// Steps that touch more bytes than this use non-temporal stores, as memcpy does: cache lines are
/// not read only to be overwritten. If every element needs an exponential or the like, those reads
/// are hidden, and up to twice as many bytes stay in the cache for their readers.
constexpr int64_t kStreamBytes = int64_t{12} << 20;

bool computes_long(PointwiseOp code) { return info_of(code).cost == CostClass::expensive; }

/// True if it computes long enough to hide prefetching.
bool hides_fetching(const BoundInstr& op) {
  const auto slow = [](Link link) {
    return link == Link::div || link == Link::rdiv || link == Link::sqrt || link == Link::exp;
  };
  if (op.chain) return slow(op.chain->shape.first) || slow(op.chain->shape.second);
  return op.instr.code != PointwiseOp::random && info_of(op.instr.code).cost >= CostClass::slow;
}

/// The byte range [first, last) that a view touches.
std::pair<const char*, const char*> range_of(const TensorArg& t) {
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    if (t.sizes[d] == 0) return {nullptr, nullptr};
    (t.strides[d] < 0 ? low : high) += (t.sizes[d] - 1) * t.strides[d];
  }
  const char* base = static_cast<const char*>(t.data);
  return {base + low * size_of(t.dtype), base + (high + 1) * size_of(t.dtype)};
}

int64_t bytes_of(const TensorArg& t) {
  const auto [first, last] = range_of(t);
  return last - first;
}

bool overlap(const TensorArg& x, const TensorArg& y) {
  auto [a, b] = range_of(x);
  auto [c, d] = range_of(y);
  return a < d && c < b;
}

/// True if elements of `x` and `y` with the same index have the same address.
bool same_place(const TensorArg& x, const TensorArg& y) {
  return x.data == y.data && x.dtype == y.dtype && x.strides == y.strides;
}

class OutputPlanner {
 public:
  OutputPlanner(PointwisePlan& plan, const KernelArgs& args)
      : plan_(plan), args_(args), last_(last_reads(plan)) {}

  void run() {
    find_copied();
    const int64_t bytes = operand_bytes(args_);
    const bool hides = std::any_of(plan_.code.begin(), plan_.code.end(), [](const BoundInstr& op) {
      return op.broadcast != Broadcast::along_row && computes_long(op.instr.code);
    });
    choose_fetched(bytes);
    const bool streams = bytes >= (hides ? 2 : 1) * kStreamBytes;
    for (size_t k = 0; k < plan_.outputs.size(); ++k) choose(static_cast<int>(k), streams);
  }

 private:
  /// If an input overlaps an output and is stored to another output, it must be copied before that
  /// one is overwritten.
  void find_copied() {
    for (size_t i = 0; i < plan_.code.size(); ++i) {
      BoundInstr& op = plan_.code[i];
      op.copied = op.arg != nullptr && last_[i] == static_cast<int>(plan_.code.size()) &&
                  std::any_of(args_.out.begin(), args_.out.end(),
                              [&](const TensorArg& out) { return overlap(*op.arg, out); });
    }
  }

  /// With many operands in far memory, the next block is prefetched during a slow instruction; the
  /// loops around it do little but read one array each. One or two arrays are prefetched better by
  /// hardware.
  void choose_fetched(int64_t bytes) {
    constexpr int64_t kNear = int64_t{1} << 20;
    if (plan_.row >= 0 || bytes < kNear) return;
    std::vector<int> loads;
    for (size_t i = 0; i < plan_.code.size(); ++i) {
      const BoundInstr& op = plan_.code[i];
      const bool full = op.broadcast == Broadcast::none;
      if (op.instr.code == PointwiseOp::load && full && op.strides.dense(plan_.block))
        loads.push_back(static_cast<int>(i));
    }
    const auto slow = std::find_if(plan_.code.begin(), plan_.code.end(), [](const BoundInstr& op) {
      return !op.unused && op.broadcast == Broadcast::none && hides_fetching(op);
    });
    if (std::ssize(loads) < kManyArrays || slow == plan_.code.end()) return;
    slow->fetches = true;
    plan_.fetched = std::move(loads);
  }

  void choose(int k, bool streams) {
    Output& out = plan_.outputs[k];
    const TensorArg& target = args_.out[k];
    BoundInstr& op = plan_.code[out.reg];
    const PointwiseOp code = op.instr.code;
    const bool computed = !is_positional(code) && !is_still(code) && !op.alias &&
                          op.broadcast != Broadcast::along_row;
    out.once_a_row = plan_.row >= 0 && out.strides.inner == 0;
    if (!out.once_a_row) plan_.need_elements(out.reg);
    out.stream = streams && !is_narrow(target.dtype);
    out.direct = computed && !out.stream && op.output < 0 && !is_narrow(target.dtype) &&
                 out.strides.dense(plan_.block) && !computed_before(out.reg) &&
                 find_last_read(out, target);
    TESSERA_CHECK(stored_as(target.dtype) == stored_as(op.instr.dtype),
                  "output {} of a pointwise step is {}, but its register is {}", k,
                  to_string(target.dtype), to_string(op.instr.dtype));
    if (!out.direct) return;
    op.output = k;
    const TensorArg* rest = code == PointwiseOp::where ? plan_.code[op.instr.c].arg : nullptr;
    op.keeps = rest != nullptr && same_place(*rest, target);
  }

  /// True if a pass over a long row computes it that does not store it.
  bool computed_before(int reg) const {
    return std::any_of(plan_.passes.begin(), plan_.passes.end(), [&](const RowPass& pass) {
      return !pass.stores &&
             std::find(pass.pieces.begin(), pass.pieces.end(), reg) != pass.pieces.end();
    });
  }

  /// Finds the last instruction that reads the old content of an output's memory. An input may have
  /// the very same address if nothing reads it after the output is written. Returns false if the
  /// output must not be written before the end of the block.
  bool find_last_read(Output& out, const TensorArg& target) const {
    for (size_t i = 0; i < plan_.code.size(); ++i) {
      const BoundInstr& op = plan_.code[i];
      if (op.instr.code != PointwiseOp::load || !overlap(*op.arg, target)) continue;
      if (!same_place(*op.arg, target) || last_[i] > out.reg) return false;
      out.read_to = std::max(out.read_to, last_[i]);
    }
    return true;
  }

  PointwisePlan& plan_;
  const KernelArgs& args_;
  const std::vector<int> last_;
};

}  // namespace

int64_t operand_bytes(const KernelArgs& args) {
  int64_t bytes = 0;
  for (const TensorArg& in : args.in) bytes += bytes_of(in);
  for (const TensorArg& out : args.out) bytes += bytes_of(out);
  return bytes;
}

void plan_outputs(PointwisePlan& plan, const KernelArgs& args) { OutputPlanner(plan, args).run(); }

}  // namespace tessera::cpu
