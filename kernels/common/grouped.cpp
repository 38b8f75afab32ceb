#include "kernels/common/grouped.h"

#include <algorithm>

#include "program/specs.h"

namespace tessera::kernels {

namespace {

constexpr int64_t kMostRows = 256;
constexpr int64_t kBlockRows = 128;  ///< of a block's group in the mean, at least
constexpr int64_t kMostBlocks = 16;

/// True if the operand walks all dims as one; `stride` is then that of its elements.
bool is_one(const Nest& nest, int operand, int64_t& stride) {
  const auto& s = nest.strides[static_cast<size_t>(operand)];
  for (int d = nest.rank() - 2; d >= 0; --d) {
    if (s[static_cast<size_t>(d)] !=
        s[static_cast<size_t>(d) + 1] * nest.sizes[static_cast<size_t>(d) + 1])
      return false;
  }
  stride = nest.rank() == 0 ? 0 : s.back();
  return true;
}

/// Makes the dims innermost in which Z does not move, and cuts the others into blocks.
void block_positions(GroupedPlan& plan, double used) {
  Nest& nest = plan.positions;
  for (int d = 0, end = nest.rank(); d < end;) {
    if (nest.strides[kZ][static_cast<size_t>(d)] != 0) {
      ++d;
      continue;
    }
    std::vector<int64_t> strides;
    for (const auto& s : nest.strides) strides.push_back(s[static_cast<size_t>(d)]);
    const int64_t size = nest.sizes[static_cast<size_t>(d)];
    nest.remove_dim(d);
    nest.add_dim(size, strides);
    plan.together *= size;
    --end;
  }
  const int64_t rows = nest.elements();
  const double mean =
      used * static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(plan.groups, 1));
  plan.blocks = std::clamp<int64_t>(static_cast<int64_t>(mean) / kBlockRows, 1,
                                    std::clamp<int64_t>(rows / plan.together, 1, kMostBlocks));
}

}  // namespace

GroupedPlan plan_grouped(const Step& step) {
  GroupedPlan plan;
  plan.is_dot = step.kernel == KernelKind::grouped_dot;
  const View &x = step.in.at(0), &m = plan.is_dot ? step.in.at(1) : step.out.at(0),
             &z = plan.is_dot ? step.out.at(0) : step.in.at(1), &indices = step.in.at(2);
  const auto& kinds = step.as<GroupedSpec>().kinds;
  const int64_t element = z.dtype == DType::float64 ? 8 : 4;
  const bool narrow = is_narrow(z.dtype);

  const auto is_row = [&](size_t d) {
    return kinds[d] == kGroupBatch || kinds[d] == kGroupPosition;
  };
  std::vector<int64_t> size(kinds.size()), to = z.strides;
  for (size_t d = 0; d < kinds.size(); ++d) {
    size[d] = std::max({x.sizes[d], m.sizes[d], z.sizes[d], indices.sizes[d]});
    plan.adds |= plan.is_dot && is_row(d) && size[d] > 1 && z.strides[d] == 0;
  }
  if (plan.adds && narrow) {
    plan.sums = 1;
    for (size_t d = kinds.size(); d-- > 0;) {
      if (z.strides[d] == 0) continue;
      to[d] = plan.sums;
      plan.sums *= size[d];
    }
  }
  for (Nest* nest : {&plan.batch, &plan.positions, &plan.inner, &plan.outer})
    nest->strides.resize(kGroupedOperands);
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kGroupIndexed) {
      plan.groups = size[d];
      plan.group_stride = m.strides[d];
      continue;
    }
    if (size[d] == 1) continue;
    Nest& nest = kinds[d] == kGroupBatch      ? plan.batch
                 : kinds[d] == kGroupPosition ? plan.positions
                 : kinds[d] == kGroupInner    ? plan.inner
                                              : plan.outer;
    nest.add_dim(size[d], {x.strides[d], m.strides[d], z.strides[d], indices.strides[d], to[d]});
  }
  plan.batch.merge();
  if (plan.adds) block_positions(plan, step.as<GroupedSpec>().expected_fill);
  plan.positions.merge();
  plan.inner.order_by(kM);
  plan.outer.order_by(kM);
  plan.rows = plan.positions.elements();
  plan.k = plan.inner.elements();
  plan.n = plan.outer.elements();
  const bool is_matrix =
      is_one(plan.inner, kM, plan.m_row) && is_one(plan.outer, kM, plan.m_column);
  plan.plain =
      !narrow && is_matrix && (plan.k == 1 || plan.n == 1 || plan.m_row == 1 || plan.m_column == 1);
  plan.chunk = std::max<int64_t>(1, std::min(plan.rows, kMostRows));

  const auto room = [&](int64_t bytes) {
    const int64_t start = plan.at.bytes;
    plan.at.bytes += (bytes + 63) / 64 * 64;
    return start;
  };
  plan.at.ends = room(plan.blocks * plan.groups * 8);
  plan.at.order = room(plan.rows * 4);
  plan.at.sums = room(plan.sums * element);
  plan.at.thread = plan.at.bytes;
  plan.at.x = room(plan.chunk * plan.k * element);
  plan.at.z = room(plan.chunk * plan.n * element);
  plan.at.m = room(plan.plain ? 0 : plan.k * plan.n * element);
  return plan;
}

}  // namespace tessera::kernels
