#include "lower/passes/in_place_results.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "lower/passes/fuse_merge.h"
#include "program/windows.h"

namespace tessera {

namespace {

class InPlaceResults {
 public:
  InPlaceResults(const Program& program, const Function& function,
                 const std::map<int, LiveRange>& ranges)
      : program_(program), fixed_(fixed_buffers(program, function)), ranges_(ranges) {
    for (size_t s = 0; s < function.steps.size(); ++s) {
      if (is_pointwise(function.steps[s])) visit(function.steps[s], static_cast<int>(s));
    }
  }

  std::map<int, int> take() { return std::move(operand_of_); }

 private:
  void visit(const Step& step, int s) {
    for (const View& out : step.out) {
      const auto in = std::find_if(step.in.begin(), step.in.end(),
                                   [&](const View& v) { return may_replace(step, s, out, v); });
      if (in == step.in.end()) continue;
      operand_of_[out.buffer] = in->buffer;
      replaced_.insert(in->buffer);
    }
  }

  bool may_replace(const Step& step, int s, const View& out, const View& in) const {
    if (!is_own(in.buffer) || !is_own(out.buffer) || replaced_.contains(in.buffer)) return false;
    if (ranges_.at(in.buffer).last != s || ranges_.at(out.buffer).first != s) return false;
    if (program_.buffers[in.buffer].bytes != program_.buffers[out.buffer].bytes) return false;
    if (!fills_buffer(program_, out) || touches(step.out, in.buffer)) return false;
    View result = out;
    result.buffer = in.buffer;
    // A step reads an element before it writes it, but elements in any order.
    return std::all_of(step.in.begin(), step.in.end(), [&](const View& v) {
      return v.buffer != in.buffer || same_window(v, result);
    });
  }

  /// Whether only this function uses the buffer, and an iteration only what it wrote itself.
  bool is_own(int buffer) const {
    return fixed_[buffer] == 0 && !program_.buffers[buffer].alternates;
  }

  const Program& program_;
  const std::vector<char> fixed_;
  const std::map<int, LiveRange>& ranges_;
  std::map<int, int> operand_of_;
  std::set<int> replaced_;  ///< operands
};

}  // namespace

std::map<int, int> in_place_results(const Program& program, const Function& function,
                                    const std::map<int, LiveRange>& ranges) {
  return InPlaceResults(program, function, ranges).take();
}

}  // namespace tessera
