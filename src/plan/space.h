// The space of the planner: which dims an axis of a mesh can be given to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/estimate.h"
#include "plan/outline.h"
#include "tessera/mesh.h"

namespace tessera {

class Space {
 public:
  /// Keeps a reference. Fixed rules of `rules` hold for all layouts; those with `auto` say which
  /// dims are free ("*:auto", or no such rule: all others). `whole` are dims that stay whole.
  /// Throws usage errors for dims that the model lacks.
  Space(const Outline& outline, const Layout& rules, const std::vector<std::string>& whole = {});

  /// All ways to give each axis of a mesh to dims of which no tensor has two, or to none; pairs by
  /// which an op is taken by slices to axes of at most 16 ranks.
  std::vector<Assignment> assignments(const Mesh& mesh) const;
  /// On all meshes of one to `most_axes` axes with so many devices, without regard to their order
  /// and names. A set of dims gets one axis, or two where these leave copies of parameters; one
  /// axis may be idle on up to 64 devices; no op is taken by slices, which would take longer to
  /// price than all else. Axes that fixed rules name are in all meshes, perhaps with size 1.
  std::vector<Assignment> assignments(int64_t devices, size_t most_axes = 3) const;
  /// With names for the axes: "data" and, outside it, "pod" where parameters are copies, else
  /// "model".
  Assignment named(const Assignment& a) const;
  /// Fixed rules and those of the picks, ready to paste.
  std::string layout_text(const Assignment& a) const;
  /// "model", or "-": the axes of a dim.
  std::string axes_of(const Assignment& a, const std::string& dim) const;
  /// The same without the dim.
  Assignment without(const Assignment& a, const std::string& dim) const;
  /// The assignment with what the fixed rules give to its axes.
  Assignment with_fixed(const Assignment& a) const;
  /// The dims that are the planner's to split.
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
  const Outline& outline_;
  std::vector<DimSet> options_;  // the empty one first
  DimSet free_ = 0, ruled_ = 0;
  std::vector<LayoutRule> fixed_;
  std::vector<std::string> names_;  // of the axes that fixed rules give
};

}  // namespace tessera
