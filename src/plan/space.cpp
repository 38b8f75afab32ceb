#include "plan/space.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "base/fail.h"

namespace tessera {

namespace {

constexpr size_t kMostOptions = 160, kMostAssignments = 2'000'000;
constexpr int kMostSlices = 16;       // of an op by slices, which is repeated for each
constexpr double kCopies = 1.0 / 16;  ///< of the parameters, for an axis of copies

/// All of them but 1, the least first.
std::vector<int64_t> divisors_of(int64_t n) {
  std::vector<int64_t> low, high;
  for (int64_t i = 1; i * i <= n; ++i) {
    if (n % i != 0) continue;
    if (i > 1) low.push_back(i);
    if (i * i < n) high.push_back(n / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

bool is_of_all(const LayoutRule& rule) {
  return rule.purpose == Purpose::none && rule.scope.empty();
}

}  // namespace

Space::Space(const Outline& outline, const Layout& rules, const std::vector<std::string>& whole)
    : outline_(outline) {
  bool all = true;
  DimSet asked = 0;
  for (const LayoutRule& rule : rules.rules()) {
    const int d = outline.find(rule.dim);
    if (!rule.automatic) {
      fixed_.push_back(rule);
      if (is_of_all(rule) && d >= 0) ruled_ |= DimSet{1} << d;
    } else if (rule.dim != "*") {
      all = false;
      require(d >= 0, "[plan] no tensor has a dim '{}'{}", rule.dim,
              suggestion(rule.dim, outline.dims));
      asked |= DimSet{1} << d;
    }
  }
  for (const LayoutRule& rule : rules.rules()) all = all || (rule.automatic && rule.dim == "*");
  for (size_t d = 0; d < outline.dims.size(); ++d) {
    const DimSet bit = DimSet{1} << d;
    if (std::find(whole.begin(), whole.end(), outline.dims[d]) != whole.end()) continue;
    if (outline.sizes[d] > 1 && !(ruled_ & bit) && (all || (asked & bit))) free_ |= bit;
  }
  find_options();
}

/// All sets of free dims without a conflict; where there are too many, single dims and the largest
/// sets only.
void Space::find_options() {
  std::vector<DimSet> sets = {0};
  for (size_t d = 0; d < outline_.dims.size() && sets.size() < (size_t{1} << 14); ++d) {
    const DimSet bit = DimSet{1} << d;
    if (!(free_ & bit)) continue;
    const size_t before = sets.size();
    for (size_t i = 0; i < before; ++i) {
      bool fine = true;
      for (DimSet rest = sets[i]; rest != 0; rest &= rest - 1) {
        fine = fine && !(outline_.conflicts[std::countr_zero(rest)] & bit) &&
               !(outline_.conflicts[d] & (rest & -rest));
      }
      if (fine) sets.push_back(sets[i] | bit);
    }
  }
  if (sets.size() > kMostOptions) {
    std::erase_if(sets, [&](DimSet s) {
      return std::popcount(s) > 1 && std::any_of(sets.begin(), sets.end(),
                                                 [&](DimSet t) { return t != s && (t & s) == s; });
    });
  }
  options_ = std::move(sets);
}

std::vector<DimSet> Space::fixed_on(const Mesh& mesh) const {
  std::vector<DimSet> fixed(mesh.axes().size());
  for (const LayoutRule& rule : fixed_) {
    const int d = outline_.find(rule.dim);
    if (!is_of_all(rule) || d < 0) continue;
    for (const std::string& axis : rule.axes) {
      if (mesh.find(axis) >= 0) fixed[mesh.find(axis)] |= DimSet{1} << d;
    }
  }
  return fixed;
}

std::vector<Assignment> Space::assignments(const Mesh& mesh) const {
  const std::vector<DimSet> fixed = fixed_on(mesh);
  const auto fits = [&](size_t axis, DimSet option) {
    for (DimSet rest = fixed[axis]; rest != 0; rest &= rest - 1) {
      if (outline_.conflicts[std::countr_zero(rest)] & option) return false;
    }
    const int size = mesh.axes()[axis].size;
    return option == 0 || (size > 1 && (size <= kMostSlices || !by_slices(option)));
  };
  std::vector<Assignment> result = {{mesh, {}}};
  for (size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    std::vector<Assignment> next;
    for (const Assignment& a : result) {
      for (const DimSet option : options_) {
        if (!fits(axis, option)) continue;
        next.push_back(a);
        next.back().picks.push_back(option);
      }
    }
    result = std::move(next);
    require(result.size() < kMostAssignments,
            "[plan] mesh '{}' has too many layouts; give rules for some dims", mesh.to_string());
  }
  return result;
}

std::vector<Assignment> Space::assignments(int64_t devices, size_t most_axes) const {
  std::vector<Assignment> result;
  std::vector<int64_t> sizes;
  std::vector<DimSet> picks;
  const auto add_mesh = [&] {
    std::vector<MeshAxis> axes;
    for (size_t a = 0; a < sizes.size(); ++a)
      axes.push_back({fmt::format("axis{}", a), static_cast<int>(sizes[a])});
    result.push_back({Mesh(axes), picks});
  };
  const std::vector<int64_t> divisors = divisors_of(devices);
  constexpr int64_t kFewDevices = 64;  // with more, what leaves some idle is not worth a look
  const bool may_idle = devices <= kFewDevices || !fixed_.empty();
  const std::function<void(int64_t, size_t)> add = [&](int64_t left, size_t first) {
    if (left == 1) return add_mesh();
    if (sizes.size() == most_axes) return;
    require(result.size() < kMostAssignments,
            "[plan] {} devices have too many meshes and layouts; give --mesh, or rules for some "
            "dims",
            devices);
    const int64_t least = sizes.size() + 1 == most_axes ? left : 2;
    for (size_t o = first; o < options_.size(); ++o) {
      const DimSet option = options_[o];
      const bool is_idle = option == 0;
      bool fits = (!is_idle || may_idle) && !by_slices(option);
      for (const DimSet other : picks) {
        const bool is_apart = (other & option) == 0 && !(is_idle && other == 0);
        fits = fits && (is_apart || (other == option && !is_idle && leaves_copies(option)));
      }
      if (!fits) continue;
      for (const int64_t size : divisors) {
        if (size < least || size > left) continue;
        const bool again = !picks.empty() && picks.back() == option;
        bool divides = left % size == 0 && !(again && size > sizes.back());
        for (DimSet rest = option; rest != 0; rest &= rest - 1)
          divides = divides && outline_.sizes[std::countr_zero(rest)] >= size;
        if (!divides) continue;
        sizes.push_back(size);
        picks.push_back(option);
        add(left / size, o);
        sizes.pop_back();
        picks.pop_back();
      }
    }
  };
  add(devices, 0);
  return result;
}

Assignment Space::named(const Assignment& a) const {
  std::vector<MeshAxis> axes = a.mesh.axes();
  const auto is_taken = [&](const std::string& name) {
    return std::any_of(axes.begin(), axes.end(), [&](const MeshAxis& x) { return x.name == name; });
  };
  std::vector<size_t> order(axes.size());  // an axis that fixed rules may name comes first
  std::iota(order.rbegin(), order.rend(), size_t{0});
  if (!fixed_.empty())
    std::stable_partition(order.begin(), order.end(), [&](size_t i) { return a.picks[i] == 0; });
  for (const size_t i : order) {
    std::string name = leaves_copies(a.picks[i]) ? "data" : "model";
    if (is_taken(name)) name = name == "data" ? "pod" : "model_";
    if (a.picks[i] == 0 && is_taken(name)) name = "idle";
    if (is_taken(name) || name == "model_") name += outline_.dims[std::countr_zero(a.picks[i])];
    axes[i].name = name;
  }
  return {Mesh(axes), a.picks};
}

/// An axis with these dims makes an op work by slices.
bool Space::by_slices(DimSet dims) const {
  return std::any_of(outline_.together.begin(), outline_.together.end(),
                     [&](DimSet pair) { return (dims & pair) == pair; });
}

/// An axis with these dims leaves a good part of the parameters whole.
bool Space::leaves_copies(DimSet dims) const {
  double whole = 0, all = 0;
  for (const Kept& kept : outline_.params) {
    all += kept.bytes;
    if ((kept.dims & dims) == 0) whole += kept.bytes;
  }
  return whole > all * kCopies;
}

std::string Space::axes_of(const Assignment& a, const std::string& dim) const {
  const int d = outline_.find(dim);
  std::string text;
  for (size_t axis = 0; d >= 0 && axis < a.picks.size(); ++axis) {
    if (a.picks[axis] >> d & 1) text += (text.empty() ? "" : "+") + a.mesh.axes()[axis].name;
  }
  return text.empty() ? "-" : text;
}

std::string Space::layout_text(const Assignment& a) const {
  std::string text;
  for (const LayoutRule& rule : fixed_) text += (text.empty() ? "" : ";") + rule.text;
  std::vector<std::pair<std::string, std::string>> groups;  // axes, dims
  for (const std::string& dim : outline_.dims) {
    const std::string axes = axes_of(a, dim);
    if (axes == "-" || (ruled_ >> outline_.find(dim) & 1)) continue;
    const auto at = std::find_if(groups.begin(), groups.end(),
                                 [&](const auto& group) { return group.first == axes; });
    if (at == groups.end()) {
      groups.emplace_back(axes, dim);
    } else {
      at->second += "," + dim;
    }
  }
  for (const auto& [axes, dims] : groups) text += (text.empty() ? "" : ";") + dims + ":" + axes;
  return text;
}

Assignment Space::without(const Assignment& a, const std::string& dim) const {
  Assignment result = a;
  for (DimSet& pick : result.picks) pick &= ~(DimSet{1} << outline_.find(dim));
  return result;
}

Assignment Space::with_fixed(const Assignment& a) const {
  Assignment result = a;
  const std::vector<DimSet> fixed = fixed_on(a.mesh);
  for (size_t i = 0; i < fixed.size(); ++i) result.picks[i] |= fixed[i];
  return result;
}

}  // namespace tessera
