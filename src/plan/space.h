// The space of the planner: which dims an axis of a mesh can be given to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/estimate.h"
#include "plan/step_summary.h"
#include "tessera/mesh.h"

namespace tessera {

class Space {
 public:
  /// Keeps a reference. Fixed rules of `rules` hold for all layouts. Rules with `auto` say which
  /// dims are free; with "*:auto", or without such a rule, all others are. `whole`: dims that stay
  /// whole. Throws usage errors for dims that the model lacks.
  Space(const StepSummary& summary, const Layout& rules,
        const std::vector<std::string>& whole = {});

  /// All ways to give each axis of a mesh to a set of dims of which no tensor has two, or to none.
  /// Pairs of dims by which an op is computed by slices only get axes of at most 16 ranks.
  std::vector<Assignment> assignments(const Mesh& mesh) const;
  /// The same on all meshes of one to `most_axes` axes with so many devices, in any order of axes
  /// and with any names. A set of dims gets one axis, or two where these leave copies of
  /// parameters. On up to 64 devices one axis may be idle. No op is computed by slices, because
  /// that would take longer to price than all else. Axes that fixed rules name are in all meshes,
  /// perhaps with size 1.
  std::vector<Assignment> assignments(int64_t devices, size_t most_axes = 3) const;
  /// The same with names for the axes: "data", and "pod" outside of it, where parameters are
  /// copies; else "model".
  Assignment named(const Assignment& a) const;
  /// The fixed rules and those of the assignment, as a layout string.
  std::string layout_text(const Assignment& a) const;
  /// The axes of a dim: "pod+data", or "-" for none.
  std::string axes_of(const Assignment& a, const std::string& dim) const;
  /// The assignment without the dim.
  Assignment without(const Assignment& a, const std::string& dim) const;
  /// The assignment with what the fixed rules give to its axes.
  Assignment with_fixed(const Assignment& a) const;
  /// The dims that the planner may split.
  DimSet free_dims() const { return free_; }

 private:
  void find_options();
  bool leaves_copies(DimSet dims) const;
  class Meshes;
  bool by_slices(DimSet dims) const;
  DimSet fixed_on(const std::string& axis) const;
  std::vector<DimSet> fixed_on(const Mesh& mesh) const;
  bool goes_with(DimSet option, DimSet fixed) const;
  bool holds(DimSet dims, int64_t size) const;
  const StepSummary& summary_;
  std::vector<DimSet> options_;  // sets of dims for an axis, the empty one first
  DimSet free_ = 0, ruled_ = 0;
  std::vector<LayoutRule> fixed_;
  std::vector<std::string> names_;  // axes that fixed rules name
};

}  // namespace tessera
