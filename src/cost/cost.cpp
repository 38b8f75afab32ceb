#include "cost/cost.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "cost/work.h"
#include "program/specs.h"

namespace tessera {

int64_t elements_stored(const View& view) {
  int64_t elements = 1;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.strides[d] != 0) elements *= view.sizes[d];
  }
  return elements;
}

namespace {

double over(double work, double rate) { return rate > 0 ? work / rate : 0; }

double bytes_seconds(const Machine& machine, const KernelRate& rate, double bytes) {
  return rate.bandwidth > 0 ? bytes / rate.bandwidth : machine.memory_seconds(bytes);
}

/// Every element of the iteration space runs all instructions.
double pointwise_seconds(const Machine& machine, const Step& step, const std::string& dtype) {
  double easy = 0, hard = 0;
  for (const Instr& instr : step.pointwise.code) {
    const CostClass cost = info_of(instr.code).cost;
    if (cost != CostClass::free) (cost == CostClass::expensive ? hard : easy) += 1;
  }
  const auto* const group = step.find<TensorGroup>();
  const auto tensors = static_cast<size_t>(group == nullptr ? 1 : group->tensors);
  double elements = 0;
  for (size_t k = 0; k < step.out.size(); k += step.out.size() / tensors)
    elements += static_cast<double>(step.out[k].elements());
  return over(easy * elements, machine.kernel(kInstructionRates[0], dtype).flops) +
         over(hard * elements, machine.kernel(kInstructionRates[1], dtype).flops);
}

double operand_bytes(const Step& step) {
  if (step.collective == CollectiveKind::exchange)
    return static_cast<double>(step.max_bytes > 0 ? step.max_bytes : step.bytes);
  const View& view = counted_operand(step);
  const auto* const rows = step.find<AllToAllSpec>();
  return (rows == nullptr ? 1 : rows->expected_fill) *
         static_cast<double>(view.elements() * size_of(view.dtype));
}

/// Linear between measured points; beyond the last, with the last slope; below the first, constant.
double interpolate(const std::vector<std::pair<double, double>>& points, double x) {
  if (x <= points.front().first || points.size() == 1) return points.front().second;
  size_t k = 1;
  while (k + 1 < points.size() && points[k].first < x) ++k;
  const std::pair<double, double>&a = points[k - 1], &b = points[k];
  const double y = a.second + (b.second - a.second) * (x - a.first) / (b.first - a.first);
  return std::max(y, points.front().second);
}

}  // namespace

int64_t bytes_touched(const Step& step) {
  int64_t total = 0;
  for (const View& view : step.in) {
    int64_t elements = elements_stored(view);
    // Of its table a gather reads what it takes.
    if (step.kernel == KernelKind::gather && &view == &step.in[0])
      elements = std::min(elements, step.out[0].elements());
    total += elements * size_of(view.dtype);
  }
  for (const View& view : step.out) total += elements_stored(view) * size_of(view.dtype);
  return total;
}

bool counts_instructions(const KernelRate& rate) {
  return std::find(kInstructionRates.begin(), kInstructionRates.end(), rate.kernel) !=
         kInstructionRates.end();
}

MatmulSizes matmul_sizes(const Step& step) {
  MatmulSizes sizes;
  const auto& kinds = step.as<MatmulSpec>().kinds;
  for (size_t d = 0; d < kinds.size(); ++d) {
    const int64_t size = std::max({step.in[0].sizes[d], step.in[1].sizes[d], step.out[0].sizes[d]});
    int64_t* const of_kind[] = {&sizes.batch, &sizes.m, &sizes.n, &sizes.k};
    *of_kind[kinds[d]] *= size;
  }
  return sizes;
}

namespace {
/// What strict numerics compute of 32 bits on a GPU, by chains of fused multiply-adds.
constexpr const char* kOrdered = "ordered";

const MatmulRate* find_ordered(const Machine& machine, const Step& step) {
  const auto rate = std::find_if(machine.matmuls.begin(), machine.matmuls.end(),
                                 [](const MatmulRate& r) { return r.dtype == kOrdered; });
  return step.order.is_strict() && rate != machine.matmuls.end() ? &*rate : nullptr;
}

/// 64 bits take twice as long as 32.
double slower_in_order(const Step& step) { return step.in[0].dtype == DType::float64 ? 2 : 1; }

/// Matmuls of a step.
double matmuls_seconds(const Machine& machine, const Step& step, const MatmulSizes& p) {
  if (find_ordered(machine, step) != nullptr)
    return slower_in_order(step) * machine.matmul_seconds(kOrdered, p.m, p.n, p.k, p.batch);
  return machine.matmul_seconds(to_string(step.in[0].dtype), p.m, p.n, p.k, p.batch);
}

/// A matmul for each group, of the mean number of rows.
double grouped_seconds(const Machine& machine, const Step& step) {
  int64_t sizes[] = {1, 1, 1, 1, 1};
  const auto& [kinds, fill] = step.as<GroupedSpec>();
  for (size_t d = 0; d < kinds.size(); ++d) {
    sizes[kinds[d]] *= std::max({step.in[0].sizes[d], step.in[1].sizes[d], step.out[0].sizes[d]});
  }
  const int64_t groups = std::max<int64_t>(1, sizes[kGroupIndexed]);
  const double used = fill * static_cast<double>(sizes[kGroupPosition]);
  const int64_t rows = std::max<int64_t>(1, std::llround(used / static_cast<double>(groups)));
  const int64_t inner = sizes[kGroupInner];  // summed over rows, or over these
  const bool is_dot = step.kernel == KernelKind::grouped_dot;
  return matmuls_seconds(machine, step,
                         {sizes[kGroupBatch] * groups, is_dot ? rows : inner, sizes[kGroupOuter],
                          is_dot ? inner : rows});
}
}  // namespace

Costs::Costs(const Machine& machine, const Mesh& mesh) : machine_(machine), mesh_(mesh) {
  const auto fail = [](const std::string& text) {
    throw Error(ErrorKind::usage, text, ErrorCode::unknown_machine);
  };
  if (mesh.size() > 1 && machine.links.empty())
    fail(fmt::format("machine '{}' has no [[link]]: it cannot price a mesh of {} ranks",
                     machine.name, mesh.size()));
  for (const MeshAxis& axis : mesh.axes()) {
    if (!axis.link.empty()) machine_.find_link(axis.link);
  }
  const LinkTier* last = machine.links.empty() ? nullptr : &machine.links.back();
  if (last != nullptr && last->devices != 0 && last->devices < mesh.size())
    fail(fmt::format("machine '{}' joins at most {} devices (link '{}'); mesh '{}' has {} ranks",
                     machine.name, last->devices, last->name, mesh.to_string(), mesh.size()));
}

double Costs::compute(const Step& step) const { return compute(step, 1); }

double Costs::compute(const Step& step, double share) const {
  const double bytes = share * static_cast<double>(bytes_touched(step));
  const std::string dtype = step.out.empty() ? "" : to_string(step.out[0].dtype);
  const std::string name = name_of(step);
  const KernelRate rate = machine_.kernel(name, dtype);
  const KernelCost cost = info_of(step.kernel).cost;
  double work = 0;
  if (cost == KernelCost::matmul && step.out[0].dtype != DType::int32) {
    work = matmuls_seconds(machine_, step, matmul_sizes(step));
  } else if (cost == KernelCost::pointwise) {
    work = pointwise_seconds(machine_, step, dtype);
  } else if (cost == KernelCost::grouped) {
    work = grouped_seconds(machine_, step);
  } else if (const MatmulRate* ordered = find_ordered(machine_, step)) {
    work = slower_in_order(step) * over(flops_done(step, mesh_), ordered->flops);
  } else {
    work = over(flops_done(step, mesh_), rate.flops);
  }
  return machine_.slower_in_context(name) *
         (machine_.launch + std::max(share * work, bytes_seconds(machine_, rate, bytes)));
}

std::vector<int64_t> Costs::members(const std::vector<int>& axes) const {
  const size_t tiers = machine_.links.size();
  std::vector<int64_t> upto(tiers, 1);  // ranks of the group inside one domain of each tier
  for (int axis : axes) {
    const MeshAxis& a = mesh_.axes()[axis];
    int64_t stride = 1;
    for (size_t after = axis + 1; after < mesh_.axes().size(); ++after)
      stride *= mesh_.axes()[after].size;
    const int bound = a.link.empty() ? -1 : machine_.find_link(a.link);
    for (size_t t = 0; t < tiers; ++t) {
      const int64_t devices = machine_.links[t].devices;
      int64_t inside = std::min<int64_t>(a.size, std::max<int64_t>(1, devices / stride));
      if (devices == 0 || t + 1 == tiers) inside = a.size;
      if (bound >= 0) inside = static_cast<int>(t) >= bound ? a.size : 1;
      upto[t] *= inside;
    }
  }
  for (size_t t = tiers; t-- > 1;) upto[t] = (upto[t] + upto[t - 1] - 1) / upto[t - 1];
  return upto;
}

std::vector<size_t> Costs::tiers(const std::vector<int>& axes) const {
  std::vector<size_t> tiers;
  const std::vector<int64_t> ranks = members(axes);
  for (size_t t = 0; t < ranks.size(); ++t) {
    if (ranks[t] > 1) tiers.push_back(t);
  }
  return tiers;
}

std::vector<LinkHop> Costs::hops(const std::vector<int>& axes) const {
  std::vector<LinkHop> hops;
  const std::vector<int64_t> ranks = members(axes);
  for (const size_t t : tiers(axes))
    hops.push_back({ranks[t], machine_.links[t].latency, machine_.links[t].bandwidth});
  return hops;
}

std::string Costs::link(const std::vector<int>& axes) const {
  const std::vector<int64_t> ranks = members(axes);
  for (size_t t = ranks.size(); t-- > 0;) {
    if (ranks[t] > 1) return machine_.links[t].name;
  }
  return machine_.links.empty() ? "" : machine_.links[0].name;
}

double Costs::start(const std::vector<int>& axes) const {
  const std::string name = link(axes);
  return name.empty() ? 0 : machine_.links[machine_.find_link(name)].start;
}

CollectiveChoice Costs::algorithm(CollectiveKind kind, double bytes,
                                  const std::vector<int>& axes) const {
  return fastest(kind, bytes, hops(axes));
}

double Costs::collective(CollectiveKind kind, double bytes, const std::vector<int>& axes) const {
  int64_t ranks = 1;
  for (int axis : axes) ranks *= mesh_.axes()[axis].size;
  if (ranks <= 1) return 0;
  const std::string outermost = link(axes);
  for (const CollectiveRate& rate : machine_.collectives) {
    if (rate.kind != to_string(kind) || rate.ranks != ranks || rate.link != outermost) continue;
    const int64_t sent = bytes_sent(kind, static_cast<int64_t>(bytes), static_cast<int>(ranks));
    return interpolate(rate.measured, static_cast<double>(sent));
  }
  return start(axes) + algorithm(kind, bytes, axes).seconds;
}

double Costs::collective(const Step& step) const {
  return collective(step.collective, operand_bytes(step), step.axes);
}

double Costs::start(const Step& step) const { return collective(step.collective, 0, step.axes); }

double Costs::bucket(std::span<const Step> steps) const {
  double seconds = 0;
  for (const Step& step : steps) {
    const double alone = collective(step), empty = start(step);
    seconds += &step == &steps.front() ? alone : std::max(0.0, alone - empty);
  }
  return seconds;
}

}  // namespace tessera
