#include "kernels/cuda/attention_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/common/nest.h"

namespace tessera::cuda {

namespace {

/// Stored bytes per call; a larger batch is computed in parts.
constexpr int64_t kMostStored = int64_t{512} << 20;
constexpr int64_t kForwardBytes = 1 << 16, kRowElements = 8, kLeastPositions = 2;

class AttentionPlanner {
 public:
  explicit AttentionPlanner(const Step& step)
      : step_(step),
        spec_(step.as<AttentionSpec>()),
        length_(spec_.length),
        memory_(spec_.memory_length),
        width_(spec_.key_dim) {
    plan_.backward = step.out.size() > 2;
  }

  AttentionPlan plan() {
    AttentionPlan& p = plan_;
    const View& q = view(kQuerySide);
    p.dtype = q.dtype;
    p.causal = spec_.causal;
    p.scale = spec_.scale;
    p.queries = size(q, length_);
    p.keys = size(view(kKeySide), memory_);
    p.width = size(q, width_);
    p.why_not = why_not();
    if (p.why_not.empty()) p.why_not = find_heads();
    if (p.why_not.empty()) p.why_not = find_rows();
    if (!p.why_not.empty()) return p;
    const AttentionPlan::Lie& sums = p.lie[kLogSumSide];
    const bool dense = sums.position == 1 && (p.heads == 1 || sums.head == p.queries) &&
                       (p.batch == 1 || sums.batch == p.heads * p.queries);
    if (!dense) {
      p.copied = (p.batch * p.heads * p.queries * 4 + kAttentionAlign - 1) / kAttentionAlign *
                 kAttentionAlign;
      p.own_log_sum = sums;
      p.lie[kLogSumSide] = {p.heads * p.queries, p.queries, 1};
    }
    p.library = library_bytes();
    p.workspace = p.copied + p.library + kAttentionAlign;
    return p;
  }

 private:
  static int64_t size(const View& view, int64_t dim) {
    return view.sizes[static_cast<size_t>(dim)];
  }
  const View& view(int side) const {
    const auto at = static_cast<size_t>(attention_operand(plan_, side));
    return at < step_.in.size() ? step_.in[at] : step_.out[at - step_.in.size()];
  }
  bool has(int side) const { return attention_operand(plan_, side) >= 0; }
  static bool is_of_keys(int side) {
    return side == kKeySide || side == kValueSide || side == kKeyGradSide || side == kValueGradSide;
  }

  std::string why_not() const {
    const AttentionPlan& p = plan_;
    if (!is_narrow(p.dtype)) return fmt::format("it is of {}", to_string(p.dtype));
    for (int side = 0; side < kAttentionSides; ++side) {
      if (has(side) && side != kLogSumSide && view(side).dtype != p.dtype)
        return "its operands are of different types";
    }
    if (spec_.value_dim >= 0) return "its values have another width than its keys";
    const std::pair<const char*, bool> structures[] = {{"window", spec_.window > 0},
                                                       {"segments", spec_.segments},
                                                       {"soft_cap", spec_.soft_cap > 0},
                                                       {"slopes", spec_.slopes},
                                                       {"by_distance", spec_.by_distance >= 0},
                                                       {"dropout", spec_.dropout > 0}};
    for (const auto& [name, is_used] : structures) {
      if (is_used) return fmt::format("it has the option {}", name);
    }
    if (step_.in.size() != (p.backward ? 7u : 3u)) return "it has parts of the queries or keys";
    for (const AffineExpr& begin : step_.exprs) {
      if (p.causal &&
          (!begin.axis_terms.empty() || begin.depends_on_scalars() || begin.eval({}, nullptr) != 0))
        return "ranks have parts of the queries";
    }
    if (p.queries < kLeastPositions || p.keys < kLeastPositions || p.width % kRowElements != 0)
      return fmt::format(
          "it has {} queries, {} keys and a width of {}; a multiple of {} is possible", p.queries,
          p.keys, p.width, kRowElements);
    return "";
  }

  /// Finds batch and heads among the other dims.
  std::string find_heads() {
    AttentionPlan& p = plan_;
    std::vector<int> sides;
    std::vector<std::vector<int64_t>> strides;
    for (int side = 0; side < kAttentionSides; ++side) {
      if (!has(side)) continue;
      sides.push_back(side);
      strides.push_back(view(side).strides);
    }
    kernels::Nest nest = kernels::make_nest(view(kQuerySide).sizes, strides);
    std::vector<int64_t> dims = {length_, memory_, width_};
    std::sort(dims.rbegin(), dims.rend());
    for (int64_t d : dims) nest.remove_dim(static_cast<int>(d));
    nest.drop_ones();
    nest.merge();
    const auto stride = [&](int side, int d) {
      const auto at = std::find(sides.begin(), sides.end(), side) - sides.begin();
      return nest.strides[static_cast<size_t>(at)][static_cast<size_t>(d)];
    };
    std::vector<int> own, shared;
    for (int d = 0; d < nest.rank(); ++d) (stride(kKeySide, d) == 0 ? shared : own).push_back(d);
    if (own.size() > 2 || shared.size() > 1)
      return fmt::format("it has {} dims of batch and heads, {} of them with shared keys",
                         nest.rank(), shared.size());
    const int group = shared.empty() ? -1 : shared[0];
    // The dim of key heads is the one right outside of the heads that share a key.
    const auto follows = [&](int d) {
      return group < 0 || std::all_of(sides.begin(), sides.end(), [&](int side) {
               return is_of_keys(side) ||
                      stride(side, d) == stride(side, group) * nest.sizes[group];
             });
    };
    if (own.size() == 2 && !follows(own[1])) std::swap(own[0], own[1]);
    if (own.size() == 2 && !follows(own[1]))
      return "heads that share keys do not follow each other";
    const int batch = own.empty() ? -1 : own[0], head = own.size() < 2 ? -1 : own[1];
    const auto count = [&](int d) { return d < 0 ? 1 : nest.sizes[static_cast<size_t>(d)]; };
    p.batch = count(batch);
    p.key_heads = count(head);
    p.heads = p.key_heads * count(group);
    for (int side : sides) {
      const int heads = is_of_keys(side) || group < 0 ? head : group;
      p.lie[side].batch = batch < 0 ? 0 : stride(side, batch);
      p.lie[side].head = heads < 0 ? 0 : stride(side, heads);
    }
    return p.batch * p.heads == 0 ? "it has no elements" : "";
  }

  std::string find_rows() {
    AttentionPlan& p = plan_;
    for (int side = 0; side < kAttentionSides; ++side) {
      if (!has(side)) continue;
      const View& v = view(side);
      AttentionPlan::Lie& lie = p.lie[side];
      lie.position = v.strides[static_cast<size_t>(is_of_keys(side) ? memory_ : length_)];
      if (side == kLogSumSide) continue;
      const auto fits = [](int64_t count, int64_t stride) {
        return count == 1 || (stride > 0 && stride % kRowElements == 0);
      };
      if (v.strides[static_cast<size_t>(width_)] != 1 || !fits(p.batch, lie.batch) ||
          !fits(is_of_keys(side) ? p.key_heads : p.heads, lie.head) || !fits(2, lie.position))
        return fmt::format("rows of operand {} do not lie at multiples of {} elements",
                           attention_operand(p, side), kRowElements);
    }
    return "";
  }

  int64_t library_bytes() const {
    const AttentionPlan& p = plan_;
    if (!p.backward) return kForwardBytes;
    const auto bytes = [&](int64_t batch) {
      return attention_sums_bytes(batch, p.heads, p.queries) +
             attention_stored_bytes(batch, p.heads, p.key_heads, p.queries, p.keys, p.width);
    };
    int64_t parts = 1;  // the most parts that are allowed, if even those are too large
    for (int64_t count = 1; count <= p.batch; ++count) {
      if (!attention_may_part(p.batch, count, p.heads, p.queries)) continue;
      parts = count;
      if (bytes(p.batch / parts) <= kMostStored) break;
    }
    return bytes(p.batch / parts) + kAttentionSpare;
  }

  const Step& step_;
  const AttentionSpec& spec_;
  const int64_t length_, memory_, width_;
  AttentionPlan plan_;
};

}  // namespace

int attention_operand(const AttentionPlan& plan, int side) {
  constexpr int kForward[kAttentionSides] = {0, 1, 2, 3, 4, -1, -1, -1, -1},
                kBackward[kAttentionSides] = {0, 1, 2, 4, 5, 3, 7, 8, 9};
  return plan.backward ? kBackward[side] : kForward[side];
}

AttentionPlan plan_attention(const Step& step) { return AttentionPlanner(step).plan(); }

}  // namespace tessera::cuda
