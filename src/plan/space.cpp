#include "plan/space.h"

#include <algorithm>
#include <bit>

#include "base/fail.h"
#include "plan/tensor_layouts/op_splits.h"

namespace tessera {

namespace {

constexpr std::string_view kUnnamed = "axis";  ///< of Meshes; named() gives better names

constexpr size_t kMostOptions = 160, kMostAssignments = 2'000'000;

/// All divisors but 1, in ascending order.
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

Space::Space(const StepSummary& summary, const Layout& rules, const std::vector<std::string>& whole)
    : summary_(summary) {
  bool all = true;
  DimSet asked = 0;
  for (const LayoutRule& rule : rules.rules()) {
    const int d = summary.find(rule.dim);
    if (!rule.automatic) {
      fixed_.push_back(rule);
      for (const std::string& axis : rule.axes) {
        if (std::find(names_.begin(), names_.end(), axis) == names_.end()) names_.push_back(axis);
      }
      if (is_of_all(rule) && d >= 0) ruled_ |= DimSet{1} << d;
      if (is_of_all(rule) && d >= 0 && makes_stages(DimSet{1} << d)) fixed_chunks_ = rule.intervals;
    } else if (rule.dim != "*") {
      all = false;
      TESSERA_REQUIRE(d >= 0, "[plan] no tensor has a dim '{}'{}", rule.dim,
                      suggestion(rule.dim, summary.dims));
      asked |= DimSet{1} << d;
    }
  }
  for (const LayoutRule& rule : rules.rules()) all = all || (rule.automatic && rule.dim == "*");
  for (size_t d = 0; d < summary.dims.size(); ++d) {
    const DimSet bit = DimSet{1} << d;
    const bool stays = std::find(whole.begin(), whole.end(), summary.dims[d]) != whole.end();
    if (stays && !(summary.stages & bit)) continue;
    if (summary.sizes[d] > 1 && !(ruled_ & bit) && (all || (asked & bit))) free_ |= bit;
  }
  find_options();
}

/// Finds all sets of free dims without a conflict. If there are too many, only single dims and the
/// largest sets.
void Space::find_options() {
  std::vector<DimSet> sets = {0};
  for (size_t d = 0; d < summary_.dims.size() && sets.size() < (size_t{1} << 14); ++d) {
    const DimSet bit = DimSet{1} << d;
    if (!(free_ & bit)) continue;
    const size_t before = sets.size();
    for (size_t i = 0; i < before; ++i) {
      bool fine = true;
      for (DimSet rest = sets[i]; rest != 0; rest &= rest - 1) {
        fine = fine && !(summary_.conflicts[std::countr_zero(rest)] & bit) &&
               !(summary_.conflicts[d] & (rest & -rest));
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

DimSet Space::fixed_on(const std::string& axis) const {
  DimSet fixed = 0;
  for (const LayoutRule& rule : fixed_) {
    const int d = summary_.find(rule.dim);
    const bool names = std::find(rule.axes.begin(), rule.axes.end(), axis) != rule.axes.end();
    if (is_of_all(rule) && d >= 0 && names) fixed |= DimSet{1} << d;
  }
  return fixed;
}

std::vector<DimSet> Space::fixed_on(const Mesh& mesh) const {
  std::vector<DimSet> fixed;
  for (const MeshAxis& axis : mesh.axes()) fixed.push_back(fixed_on(axis.name));
  return fixed;
}

/// True if no tensor has dims of both sets.
bool Space::goes_with(DimSet option, DimSet fixed) const {
  for (; fixed != 0; fixed &= fixed - 1) {
    if (summary_.conflicts[std::countr_zero(fixed)] & option) return false;
  }
  return true;
}

bool Space::holds(DimSet dims, int64_t size) const {
  for (; dims != 0; dims &= dims - 1) {
    if (summary_.sizes[std::countr_zero(dims)] < size) return false;
  }
  return true;
}

std::vector<Assignment> Space::assignments(const Mesh& mesh) const {
  const std::vector<DimSet> fixed = fixed_on(mesh);
  const auto fits = [&](size_t axis, DimSet option) {
    if (!goes_with(option, fixed[axis])) return false;
    const int size = mesh.axes()[axis].size;
    return option == 0 || (size > 1 && (size <= OpSplits::kMostSlices || !by_slices(option)));
  };
  std::vector<Assignment> result = {{mesh, {}}};
  for (size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    std::vector<Assignment> next;
    for (const Assignment& a : result) {
      for (const DimSet option : options_) {
        if (!fits(axis, option) || (makes_stages(option) && has_stages(a))) continue;
        next.push_back(a);
        next.back().picks.push_back(option);
      }
    }
    result = std::move(next);
    TESSERA_REQUIRE(result.size() < kMostAssignments,
                    "[plan] mesh '{}' has too many layouts; give rules for some dims",
                    mesh.to_string());
  }
  return result;
}

/// Builds the meshes of a number of devices axis by axis, each axis with its dims.
class Space::Meshes {
 public:
  Meshes(const Space& space, int64_t devices, size_t most_axes)
      : space_(space),
        devices_(devices),
        most_axes_(std::max(most_axes, space.names_.size())),
        divisors_(divisors_of(devices)),
        may_idle_(devices <= kFewDevices) {}

  std::vector<Assignment> run() {
    add_named(devices_);
    return std::move(result_);
  }

 private:
  static constexpr int64_t kFewDevices =
      64;  // with more devices, plans with an idle axis are not searched

  void add_mesh() {
    std::vector<MeshAxis> axes;
    for (size_t a = 0; a < sizes_.size(); ++a) {
      const std::string name =
          a < space_.names_.size() ? space_.names_[a] : fmt::format("{}{}", kUnnamed, a);
      axes.push_back({name, static_cast<int>(sizes_[a])});
    }
    result_.push_back({Mesh(axes), picks_});
    TESSERA_REQUIRE(
        result_.size() < kMostAssignments,
        "[plan] {} devices have too many meshes and layouts; give --mesh, or rules for some "
        "dims",
        devices_);
  }

  /// Axes named in fixed rules come first. They may have size 1, and further dims.
  void add_named(int64_t left) {
    const size_t axis = sizes_.size();
    if (axis == space_.names_.size()) return add(left, 0);
    const DimSet fixed = space_.fixed_on(space_.names_[axis]);
    for (const DimSet option : space_.options_) {
      if (!space_.goes_with(option, fixed) || !is_apart(option)) continue;
      if (option == 0) push(left, 1, option, 0);
      for (const int64_t size : divisors_) {
        if (left % size == 0 && space_.holds(option | fixed, size)) push(left, size, option, 0);
      }
    }
  }

  void add(int64_t left, size_t first) {
    if (left == 1) return add_mesh();
    if (sizes_.size() == most_axes_) return;
    const int64_t least = sizes_.size() + 1 == most_axes_ ? left : 2;
    for (size_t o = first; o < space_.options_.size(); ++o) {
      const DimSet option = space_.options_[o];
      if ((option == 0 && !may_idle_) || !is_apart(option)) continue;
      const bool repeats = sizes_.size() > space_.names_.size() && picks_.back() == option;
      for (const int64_t size : divisors_) {
        const bool fits = size >= least && size <= left && left % size == 0;
        if (fits && !(repeats && size > sizes_.back()) && space_.holds(option, size))
          push(left, size, option, o);
      }
    }
  }

  /// True if no dim gets two axes, except if these leave parameters replicated.
  bool is_apart(DimSet option) const {
    bool apart = !space_.by_slices(option) && !(space_.makes_stages(option) && has_stages());
    for (size_t i = 0; i < picks_.size(); ++i) {
      const DimSet other = picks_[i];
      const bool named = i < space_.names_.size();
      const bool differ = (other & option) == 0 && (named || option != 0 || other != 0);
      apart = apart && (differ || (other == option && option != 0 && space_.leaves_copies(option)));
    }
    return apart;
  }

  bool has_stages() const {
    return std::any_of(picks_.begin(), picks_.end(),
                       [&](DimSet pick) { return space_.makes_stages(pick); });
  }

  void push(int64_t left, int64_t size, DimSet option, size_t first) {
    sizes_.push_back(size);
    picks_.push_back(option);
    sizes_.size() <= space_.names_.size() ? add_named(left / size) : add(left / size, first);
    sizes_.pop_back();
    picks_.pop_back();
  }

  const Space& space_;
  int64_t devices_;
  size_t most_axes_;
  std::vector<int64_t> divisors_;
  bool may_idle_;
  std::vector<int64_t> sizes_;
  std::vector<DimSet> picks_;
  std::vector<Assignment> result_;
};

std::vector<Assignment> Space::assignments(int64_t devices, size_t most_axes) const {
  return Meshes(*this, devices, most_axes).run();
}

Assignment Space::named(const Assignment& a) const {
  std::vector<MeshAxis> axes = a.mesh.axes();
  const auto is_taken = [&](const std::string& name) {
    return std::any_of(axes.begin(), axes.end(), [&](const MeshAxis& x) { return x.name == name; });
  };
  for (size_t i = axes.size(); i-- > 0;) {
    if (!axes[i].name.starts_with(kUnnamed)) continue;
    std::string name = leaves_copies(a.picks[i]) ? "data" : "model";
    if (makes_stages(a.picks[i])) name = "pipe";
    if (is_taken(name)) name = name == "data" ? "pod" : name + "_";
    if (a.picks[i] == 0 && is_taken(name)) name = "idle";
    if (is_taken(name) || name.ends_with('_')) name += summary_.dims[std::countr_zero(a.picks[i])];
    axes[i].name = name;
  }
  return {Mesh(axes), a.picks};
}

bool Space::has_stages(const Assignment& a) const {
  return std::any_of(a.picks.begin(), a.picks.end(),
                     [&](DimSet pick) { return makes_stages(pick); });
}

/// True if an axis with these dims makes an op run blockwise (Op::sharded_body).
bool Space::by_slices(DimSet dims) const {
  return std::any_of(summary_.together.begin(), summary_.together.end(),
                     [&](DimSet pair) { return (dims & pair) == pair; });
}

/// True if an axis with these dims leaves a good share of the parameters replicated.
bool Space::leaves_copies(DimSet dims) const {
  double whole = 0, all = 0;
  for (const Kept& kept : summary_.params) {
    all += kept.bytes;
    if ((kept.dims & dims) == 0) whole += kept.bytes;
  }
  return whole > all * kCopies;
}

std::string Space::axes_of(const Assignment& a, const std::string& dim) const {
  const int d = summary_.find(dim);
  std::string text;
  for (size_t axis = 0; d >= 0 && axis < a.picks.size(); ++axis) {
    if (a.picks[axis] >> d & 1) text += (text.empty() ? "" : "+") + a.mesh.axes()[axis].name;
  }
  return text.empty() ? "-" : text;
}

std::string Space::layout_text(const Assignment& a, int64_t chunks) const {
  std::string text;
  for (const LayoutRule& rule : fixed_) text += (text.empty() ? "" : ";") + rule.text;
  std::vector<std::pair<std::string, std::string>> groups;  // axes, dims
  for (const std::string& dim : summary_.dims) {
    const DimSet bit = DimSet{1} << summary_.find(dim);
    std::string axes = axes_of(a, dim);
    if (axes == "-" || (ruled_ & bit)) continue;
    if (makes_stages(bit) && chunks > 1) axes += fmt::format("*{}", chunks);
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
  for (DimSet& pick : result.picks) pick &= ~(DimSet{1} << summary_.find(dim));
  return result;
}

Assignment Space::with_fixed(const Assignment& a) const {
  Assignment result = a;
  const std::vector<DimSet> fixed = fixed_on(a.mesh);
  for (size_t i = 0; i < fixed.size(); ++i) result.picks[i] |= fixed[i];
  return result;
}

}  // namespace tessera
