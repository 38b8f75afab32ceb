// A reduction takes over the instructions that compute its operand, if it is the only reader:
//   y, z = pointwise(x, ...) {f, g}     ->  z = pointwise(x, ...) {g}
//   s = reduce sum(y)                       s = reduce sum(x, ...) {f}
// Then y is not stored. Examples: a sum of squares or exponentials, or of cast values. The
// reduction reads the operands of y instead, so this pays only if the two steps together touch
// fewer bytes.
#include "lower/passes/fuse_prologues.h"

#include <algorithm>

#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/epilogue_chain.h"
#include "lower/passes/fuse_merge.h"

namespace tessera {

namespace {

class Prologues {
 public:
  Prologues(const Program& program, Function& function)
      : function_(function),
        fixed_(fixed_buffers(program, function)),
        reads_(program.buffers.size(), 0),
        writer_(program.buffers.size(), -1) {}

  void run() {
    for (int s = 0; s < count(); ++s) {
      for (const View& v : at(s).in) ++reads_[v.buffer];
      for (const View& v : at(s).out) {
        if (writer_[v.buffer] >= 0) fixed_[v.buffer] = 1;
        writer_[v.buffer] = s;
      }
    }
    for (int s = 0; s < count(); ++s) {
      if (info_of(at(s).kernel).fusion == Fusion::prologue) extend(s);
    }
    const auto gone = [](const Step& step) { return is_pointwise(step) && step.out.empty(); };
    auto& steps = function_.steps;
    const auto stores = steps.begin() + function_.first_update;
    function_.first_update -= static_cast<int>(std::count_if(steps.begin(), stores, gone));
    std::erase_if(steps, gone);
  }

 private:
  int count() const { return static_cast<int>(function_.steps.size()); }
  Step& at(int place) { return function_.steps[static_cast<size_t>(place)]; }

  void extend(int place) {
    const View operand = at(place).in[0];
    const int maker = writer_[operand.buffer];
    const bool alone = !fixed_[operand.buffer] && reads_[operand.buffer] == 1 && maker >= 0 &&
                       maker < place && is_pointwise(at(maker));
    const int stores = function_.first_update;
    if (!alone || (maker < stores) != (place < stores)) return;
    const std::optional<Step> reduction = with_prologue(at(place), at(maker));
    if (!reduction || !is_there(*reduction, maker, place)) return;
    const int64_t before = touched_bytes(at(maker)) + touched_bytes(at(place));
    Step rest = at(maker);
    keep_outputs(rest, [&](int buffer) { return buffer != operand.buffer; });
    if (touched_bytes(*reduction) + (rest.out.empty() ? 0 : touched_bytes(rest)) >= before) return;
    for (const View& v : at(maker).in) --reads_[v.buffer];
    for (const View& v : rest.in) reads_[v.buffer] += rest.out.empty() ? 0 : 1;
    for (const View& v : reduction->in) ++reads_[v.buffer];
    at(place) = *reduction;
    at(maker) = std::move(rest);
  }

  /// True if no step from the pointwise step to the reduction overwrites an operand.
  bool is_there(const Step& reduction, int maker, int place) {
    const auto reads = [&](const View& out) {
      return std::any_of(reduction.in.begin(), reduction.in.end(),
                         [&](const View& in) { return in.buffer == out.buffer; });
    };
    for (int s = maker; s < place; ++s) {
      if (std::any_of(at(s).out.begin(), at(s).out.end(), reads)) return false;
    }
    return true;
  }

  /// For each dim of the reduction's operand: the matching dim of the pointwise step, or -1 for
  /// size 1. Nothing if the two have other dims.
  static std::optional<std::vector<int>> dims_of(const View& operand, const View& made) {
    if (operand.offset != made.offset || operand.shift != made.shift ||
        operand.elements() != made.elements())
      return {};
    std::vector<char> taken(made.sizes.size(), 0);
    std::vector<int> dims;
    for (size_t d = 0; d < operand.sizes.size(); ++d) {
      int found = -1;
      for (size_t e = 0; e < made.sizes.size() && operand.sizes[d] != 1 && found < 0; ++e) {
        if (!taken[e] && made.sizes[e] == operand.sizes[d] && made.strides[e] == operand.strides[d])
          found = static_cast<int>(e);
      }
      if (found < 0 && operand.sizes[d] != 1) return {};
      if (found >= 0) taken[static_cast<size_t>(found)] = 1;
      dims.push_back(found);
    }
    return dims;
  }

  /// The reduction with the instructions of `maker` that compute its operand; nothing if
  /// impossible.
  static std::optional<Step> with_prologue(const Step& reduction, const Step& maker) {
    const View& operand = reduction.in[0];
    const auto made = std::find_if(maker.out.begin(), maker.out.end(),
                                   [&](const View& v) { return v.buffer == operand.buffer; });
    const std::optional<std::vector<int>> dims = dims_of(operand, *made);
    if (!dims) return {};
    Step only = maker;
    keep_outputs(only, [&](int buffer) { return buffer == operand.buffer; });
    const auto& code = only.pointwise.code;
    if (only.out.size() != 1 || only.in.empty() ||
        std::any_of(code.begin(), code.end(),
                    [](const Instr& instr) { return changes_with_layout(instr.code); }))
      return {};
    Step result = reduction;
    result.pointwise = only.pointwise;
    result.exprs = only.exprs;
    result.in.clear();
    for (const View& v : only.in) {
      View& in = result.in.emplace_back(v);
      in.sizes = operand.sizes;
      in.strides.clear();
      for (const int d : *dims) in.strides.push_back(d < 0 ? 0 : v.strides[static_cast<size_t>(d)]);
    }
    return result;
  }

  Function& function_;
  std::vector<char> fixed_;  ///< by buffer: used outside of this function, or written twice
  std::vector<int> reads_, writer_;
};

}  // namespace

void fuse_prologues(Program& program) {
  for (Function* f : all_functions(program.functions)) Prologues(program, *f).run();
  drop_unused_buffers(program);
}

}  // namespace tessera
