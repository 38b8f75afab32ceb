// What an axis may split is read off the model. Tensor parallelism: of the sets of dims that cut a
// good share of the parameters but not the examples, the one with the least estimate of compute and
// blocking communication. Context parallelism: the same of the sets that cut no parameters.
// Experts: the dim with most parameters that an axis may split beside the examples.
#include "plan/known_layouts.h"

#include <algorithm>
#include <array>
#include <bit>

namespace tessera {

namespace {

constexpr double kMuch = 0.25, kLittle = 1.0 / 64;  ///< shares of the parameters
constexpr double kCuts = 0.9;  ///< of the compute of two ranks that do the same
constexpr int64_t kMostStages = 64;
constexpr size_t kAxes = 3;

std::vector<int64_t> divisors_of(int64_t n, int64_t most) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

}  // namespace

KnownLayouts::KnownLayouts(const Candidates& candidates)
    : candidates_(candidates), summary_(candidates.summary()) {
  if (const int e = summary_.find(candidates.model().microbatch_dim); e >= 0)
    examples_ = (DimSet{1} << e) & candidates.space().free_dims();
  experts_ = with_experts();
  tensor_ = cheapest(true);
  context_ = cheapest(false);
}

double KnownLayouts::share_of_params(DimSet dims) const {
  double cut = 0, all = 0;
  for (const Kept& kept : summary_.params) {
    all += kept.bytes;
    if ((kept.dims & dims) != 0) cut += kept.bytes;
  }
  return all > 0 ? cut / all : 0;
}

/// The examples, and the dim with most parameters that no tensor has beside them, unless it prefers
/// one of the two.
DimSet KnownLayouts::with_experts() const {
  DimSet best = 0;
  double most = kMuch;
  for (size_t d = 0; d < summary_.dims.size() && examples_ != 0; ++d) {
    const DimSet one = DimSet{1} << d;
    const bool conflicts = (summary_.conflicts[d] & examples_) != 0 ||
                           (summary_.conflicts[std::countr_zero(examples_)] & one) != 0;
    const bool is_free = (candidates_.space().free_dims() & one & ~summary_.stages) != 0;
    const double share = share_of_params(one);
    if (one == examples_ || conflicts || !is_free || share <= most) continue;
    best = examples_ | one;
    most = share;
  }
  return best;
}

/// An estimate of a step on two ranks.
double KnownLayouts::seconds(DimSet dims) const {
  const Assignment a{Mesh({{"axis", 2}}), {dims}};
  const Microbatching by{candidates_.microbatches(0)};
  return candidates_.estimates().least(a, by) +
         candidates_.estimates().communication(a, {}, by).blocking;
}

DimSet KnownLayouts::cheapest(bool of_params) const {
  if (candidates_.machine().links.empty()) return 0;
  DimSet best = 0;
  double least = kCuts * seconds(0);
  for (const DimSet option : candidates_.space().options()) {
    const double share = share_of_params(option);
    const bool fits = of_params ? share >= kMuch : share <= kLittle;
    if (option == 0 || !fits || (option & (examples_ | summary_.stages)) != 0) continue;
    const double takes = seconds(option);
    if (takes >= least) continue;
    best = option;
    least = takes;
  }
  return best;
}

bool KnownLayouts::divides(DimSet dims, int64_t size) const {
  for (; dims != 0; dims &= dims - 1) {
    if (summary_.sizes[std::countr_zero(dims)] % size != 0) return false;
  }
  return true;
}

/// Adds meshes whose outer axes split the examples over `ranks`, with the given axes inside.
void KnownLayouts::add_data(int64_t ranks, const std::vector<MeshAxis>& inner,
                            const std::vector<DimSet>& picks, std::vector<Assignment>& all) const {
  const auto add = [&](std::vector<MeshAxis> axes, std::vector<DimSet> outer) {
    axes.insert(axes.end(), inner.begin(), inner.end());
    outer.insert(outer.end(), picks.begin(), picks.end());
    if (axes.size() <= kAxes) all.push_back({Mesh(axes), outer});
  };
  if (ranks == 1) return add({}, {});
  if (examples_ == 0 || !divides(examples_, ranks)) return;
  for (const DimSet data : {examples_, experts_}) {
    if (data == 0) continue;
    if (divides(data, ranks)) add({{"data", static_cast<int>(ranks)}}, {data});
    for (const int64_t outer : divisors_of(ranks, ranks / 2)) {
      if (outer > 1 && divides(data, ranks / outer))
        add({{"pod", static_cast<int>(outer)}, {"data", static_cast<int>(ranks / outer)}},
            {examples_, data});
    }
  }
}

std::vector<Assignment> KnownLayouts::on_any_mesh(int64_t devices) const {
  const std::vector<LinkTier>& links = candidates_.machine().links;
  const int64_t node = links.empty() || links[0].devices == 0 ? devices : links[0].devices;
  std::vector<Assignment> all;
  for (const int64_t stages : divisors_of(devices, summary_.stages == 0 ? 1 : kMostStages)) {
    if (stages > 1 && summary_.elements(summary_.stages) < static_cast<double>(stages)) continue;
    for (const DimSet inside : {DimSet{0}, tensor_, context_}) {
      for (const int64_t size : divisors_of(devices / stages, inside == 0 ? 1 : node)) {
        if ((size == 1) != (inside == 0) || !divides(inside, size)) continue;
        std::vector<MeshAxis> axes;
        std::vector<DimSet> picks;
        if (stages > 1) {
          axes.push_back({"pipe", static_cast<int>(stages)});
          picks.push_back(summary_.stages);
        }
        if (inside != 0) {
          axes.push_back({"model", static_cast<int>(size)});
          picks.push_back(inside);
        }
        add_data(devices / stages / size, axes, picks, all);
      }
    }
  }
  return all;
}

std::vector<Assignment> KnownLayouts::among(const std::vector<Assignment>& all) const {
  const std::array known = {examples_, experts_, tensor_, context_, summary_.stages};
  std::vector<Assignment> result;
  for (const Assignment& a : all) {
    const bool is_known = std::all_of(a.picks.begin(), a.picks.end(), [&](DimSet pick) {
      return pick != 0 && std::find(known.begin(), known.end(), pick) != known.end();
    });
    if (is_known) result.push_back(a);
  }
  return result;
}

}  // namespace tessera
