// Each matmul of a sum adds to the buffer that the one before it wrote. The sum stands at the place
// of its last member. A part of `width` elements in rows of `pitch` elements: a stride of whole
// rows is a stride of as many longer rows, any other stays inside of a row.
#include "lower/passes/concat_k_matmuls.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/fuse_merge.h"
#include "lower/passes/liveness.h"
#include "lower/passes/step_bounds.h"
#include "program/kernels.h"
#include "program/specs.h"
#include "program/windows.h"

namespace tessera {

namespace {

using matmul_kinds::kSum;
constexpr int64_t kAligned = 8;  // elements: parts of rows lie as the library wants them

/// A buffer as a part of each row of another.
struct Part {
  int buffer = -1;
  int64_t width = 0, pitch = 0, first = 0;
};

/// The same elements in the part's place; nothing if the view's rows are others. `line`: a view of
/// one dim becomes one of rows.
std::optional<View> moved(const View& v, const Part& part, bool line) {
  View result = v;
  result.buffer = part.buffer;
  result.offset = v.offset / part.width * part.pitch + v.offset % part.width + part.first;
  if (line && v.sizes.size() == 1 && v.is_contiguous() && v.offset == 0 &&
      v.sizes[0] % part.width == 0) {
    result.sizes = {v.sizes[0] / part.width, part.width};
    result.strides = {part.pitch, 1};
    return result;
  }
  int64_t first = v.offset % part.width, last = first;  // in its row
  for (size_t d = 0; d < v.sizes.size(); ++d) {
    if (v.strides[d] % part.width == 0) {
      result.strides[d] = v.strides[d] / part.width * part.pitch;
    } else {
      (v.strides[d] < 0 ? first : last) += (v.sizes[d] - 1) * v.strides[d];
    }
  }
  const bool fits = first >= 0 && last < part.width && v.shift == AffineExpr{};
  return fits ? std::optional(result) : std::nullopt;
}

/// What one member contracts, and its dims without those.
struct Member {
  int place = -1;
  int64_t width = 1;  ///< elements that it contracts
  Step rest;          ///< operand strides in rows of `width`

  bool agrees(const Member& other) const {
    return rest.spec == other.rest.spec && same(rest.in[0], other.rest.in[0]) &&
           same(rest.in[1], other.rest.in[1]) && same(rest.out[0], other.rest.out[0]);
  }
  static bool same(const View& x, const View& y) {
    return x.dtype == y.dtype && x.sizes == y.sizes && x.strides == y.strides &&
           x.offset == y.offset && x.shift == y.shift;
  }
};

std::optional<Member> member_of(const Step& step, int place) {
  Member member{place, 1, step};
  auto& kinds = member.rest.as<MatmulSpec>().kinds;
  std::vector<std::pair<int64_t, int64_t>> sums;  // stride, size
  for (size_t d = kinds.size(); d-- > 0;) {
    if (kinds[d] != kSum) continue;
    const int64_t size = step.in[0].sizes[d];
    if (size != step.in[1].sizes[d]) return {};
    if (size > 1 && step.in[0].strides[d] != step.in[1].strides[d]) return {};
    if (size > 1) sums.emplace_back(step.in[0].strides[d], size);
    kinds.erase(kinds.begin() + static_cast<std::ptrdiff_t>(d));
    for (View* v : {&member.rest.in[0], &member.rest.in[1], &member.rest.out[0]}) {
      v->sizes.erase(v->sizes.begin() + static_cast<std::ptrdiff_t>(d));
      v->strides.erase(v->strides.begin() + static_cast<std::ptrdiff_t>(d));
    }
  }
  std::sort(sums.begin(), sums.end());
  for (const auto& [stride, size] : sums) {
    if (stride != member.width) return {};
    member.width *= size;
  }
  for (View* v : {&member.rest.in[0], &member.rest.in[1]}) {
    if (v->offset != 0 || v->shift != AffineExpr{}) return {};
    for (size_t d = 0; d < kinds.size(); ++d) {
      if (v->sizes[d] == 1) v->strides[d] = 0;
      if (v->strides[d] % member.width != 0) return {};
      v->strides[d] /= member.width;
    }
  }
  return member.width % kAligned == 0 ? std::optional(member) : std::nullopt;
}

class Adder {
 public:
  Adder(Program& program, Function& function, const StepPrices& prices,
        const std::function<bool(const Step&)>& takes,
        const std::function<int64_t(const Step&)>& workspace)
      : program_(program),
        function_(function),
        prices_(prices),
        takes_(takes),
        workspace_(workspace),
        fixed_(fixed_buffers(program, function)),
        touching_(program.buffers.size()),
        gone_(function.steps.size(), 0) {
    for (int s = 0; s < count(); ++s) {
      const Step& step = at(s);
      const bool may_move =
          step.kind == StepKind::compute && step.body.empty() && info_of(step.kernel).takes_rows;
      visit_views(step, [&](const View& v) {
        touching_[static_cast<size_t>(v.buffer)].insert(s);
        if (!may_move) fixed_[static_cast<size_t>(v.buffer)] = 1;
      });
    }
  }

  bool run() {
    const int first = function_.early, last = function_.first_update - function_.late;
    std::map<int, std::vector<int>> sums;  // buffer -> the matmuls that were added in it so far
    std::vector<std::vector<int>> found;
    for (int s = first; s < last; ++s) {
      const Step& step = at(s);
      if (step.kernel != KernelKind::matmul || !is_floating(step.in[0].dtype) ||
          !step.as<MatmulSpec>().float8.empty() || step.out.size() != 1)
        continue;
      std::vector<int>& sum = sums[step.out[0].buffer];
      if (step.in.size() == 2 && step.pointwise.code.empty()) {
        if (sum.size() > 1) found.push_back(sum);
        sum = {s};
      } else if (adds_in_place(step) && !sum.empty()) {
        sum.push_back(s);
      } else {
        if (sum.size() > 1) found.push_back(sum);
        sum.clear();
      }
    }
    for (const auto& [buffer, sum] : sums) {
      if (sum.size() > 1) found.push_back(sum);
    }
    bool changed = false;
    for (const std::vector<int>& sum : found) changed |= merge(sum);
    if (changed) drop_steps(function_, gone_);
    return changed;
  }

 private:
  int count() const { return static_cast<int>(function_.steps.size()); }
  Step& at(int place) { return function_.steps[static_cast<size_t>(place)]; }

  bool writes(int place, int buffer) {
    const auto& out = at(place).out;
    return std::any_of(out.begin(), out.end(), [&](const View& v) { return v.buffer == buffer; });
  }

  /// True if until the last member only members touch the result, and nothing writes operands.
  bool may_wait(const std::vector<int>& sum) {
    const int result = at(sum[0]).out[0].buffer;
    for (int s = sum.front(); s < sum.back(); ++s) {
      if (std::find(sum.begin(), sum.end(), s) != sum.end()) continue;
      if (touching_[static_cast<size_t>(result)].count(s) != 0) return false;
      for (const int m : sum) {
        for (size_t x = 0; x < 2 && m < s; ++x) {
          if (writes(s, at(m).in[x].buffer)) return false;
        }
      }
    }
    return fixed_[static_cast<size_t>(result)] == 0;
  }

  /// The parts of the operands, in common buffers that are not in the program yet; nothing if they
  /// cannot be parts.
  std::optional<std::map<int, Part>> parts_of(const std::vector<Member>& members,
                                              std::vector<Buffer>& buffers) {
    std::map<int, Part> parts;
    const int64_t pitch =
        std::accumulate(members.begin(), members.end(), int64_t{0},
                        [](int64_t sum, const Member& m) { return sum + m.width; });
    for (size_t x = 0; x < 2; ++x) {
      Part part{static_cast<int>(program_.buffers.size() + buffers.size()), 0, pitch, 0};
      int64_t rows = 0;
      for (const Member& m : members) {
        const View& v = m.rest.in[x];
        const Buffer& buffer = program_.buffers[static_cast<size_t>(v.buffer)];
        const int64_t row = m.width * size_of(v.dtype);
        part.width = m.width;
        const bool fits = fixed_[static_cast<size_t>(v.buffer)] == 0 && !buffer.alternates &&
                          buffer.bytes % row == 0 && (rows == 0 || rows == buffer.bytes / row);
        if (!fits || !parts.emplace(v.buffer, part).second) return {};
        rows = buffer.bytes / row;
        part.first += m.width;
      }
      buffers.push_back(program_.buffers[static_cast<size_t>(members[0].rest.in[x].buffer)]);
      buffers.back().bytes = rows * pitch * size_of(members[0].rest.in[x].dtype);
    }
    return parts;
  }

  /// The step with its operands in their parts; nothing if the device cannot run it so.
  std::optional<Step> with_parts(const Step& step, const std::map<int, Part>& parts) {
    Step result = step;
    const bool is_group = step.find<TensorGroup>() != nullptr;
    for (auto* views : {&result.in, &result.out}) {
      for (View& v : *views) {
        const auto part = parts.find(v.buffer);
        if (part == parts.end()) continue;
        std::optional<View> there = moved(v, part->second, is_group);
        if (!there) return {};
        v = std::move(*there);
      }
    }
    const bool ends = !step.pointwise.code.empty() || has_sums(step);
    if (step.kernel != KernelKind::matmul) return result;
    if (ends && takes_ && !takes_(result)) return {};
    if (workspace_ && workspace_(result) > workspace_(step)) return {};
    return result;
  }

  Step sum_of(const std::vector<Member>& members, const std::map<int, Part>& parts) {
    Step sum = members.back().rest;
    sum.pointwise = {};
    sum.in.resize(2);
    sum.flops = 0;
    for (const Member& m : members) sum.flops += at(m.place).flops;
    sum.as<MatmulSpec>().kinds.push_back(kSum);
    for (size_t x = 0; x < 2; ++x) {
      const Part& part = parts.at(members[0].rest.in[x].buffer);
      View& v = sum.in[x];
      v.buffer = part.buffer;
      for (int64_t& stride : v.strides) stride *= part.pitch;
      v.sizes.push_back(part.pitch);
      v.strides.push_back(1);
    }
    sum.out[0].sizes.push_back(parts.begin()->second.pitch);
    sum.out[0].strides.push_back(0);
    return sum;
  }

  bool merge(const std::vector<int>& sum) {
    std::vector<Member> members;
    for (const int m : sum) {
      std::optional<Member> member = member_of(at(m), m);
      if (!member || (!members.empty() && !member->agrees(members[0]))) return false;
      members.push_back(std::move(*member));
    }
    if (!may_wait(sum)) return false;
    std::vector<Buffer> buffers;
    const std::optional<std::map<int, Part>> parts = parts_of(members, buffers);
    if (!parts) return false;
    Step all = sum_of(members, *parts);
    if (workspace_ && workspace_(all) > workspace_(at(sum.back()))) return false;
    if (prices_.seconds) {
      double apart = 0;
      for (const int m : sum) apart += prices_.seconds(at(m));
      if (prices_.seconds(all) >= apart) return false;
    }
    std::map<int, Step> changed;
    for (const auto& [buffer, part] : *parts) {
      for (const int s : touching_[static_cast<size_t>(buffer)]) {
        if (std::find(sum.begin(), sum.end(), s) != sum.end() || changed.count(s) != 0) continue;
        std::optional<Step> step = with_parts(at(s), *parts);
        if (!step) return false;
        changed[s] = std::move(*step);
      }
    }
    for (auto& [s, step] : changed) at(s) = std::move(step);
    for (const int m : sum) gone_[static_cast<size_t>(m)] = m != sum.back();
    at(sum.back()) = std::move(all);
    for (Buffer& buffer : buffers) {
      program_.buffers.push_back(std::move(buffer));
      fixed_.push_back(1);
      touching_.emplace_back();
    }
    return true;
  }

  Program& program_;
  Function& function_;
  const StepPrices& prices_;
  const std::function<bool(const Step&)>& takes_;
  const std::function<int64_t(const Step&)>& workspace_;
  std::vector<char> fixed_;              ///< by buffer: cannot become a part
  std::vector<std::set<int>> touching_;  ///< by buffer: places
  std::vector<char> gone_;               ///< by place
};

}  // namespace

void concat_k_matmuls(Program& program, const StepPrices& prices,
                      const std::function<bool(const Step&)>& takes,
                      const std::function<int64_t(const Step&)>& workspace) {
  bool changed = false;
  for (Function* f : all_functions(program.functions)) {
    const Function before = *f;
    const int64_t peak = peak_live_bytes(program, *f);
    if (!Adder(program, *f, prices, takes, workspace).run()) continue;
    if (peak_live_bytes(program, *f) > peak + peak / 64) *f = before;
    changed = true;
  }
  if (changed) drop_unused_buffers(program);
}

}  // namespace tessera
