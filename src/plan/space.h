// The search space of the planner: which dims an axis of a mesh may split.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/estimate.h"
#include "plan/step_summary.h"
#include "tessera/mesh.h"

namespace tessera {

/// Storage rules over an axis are tried if it replicates this share of the parameters.
inline constexpr double kCopies = 1.0 / 16;

class Space {
 public:
  /// Keeps a reference. `rules`: fixed rules hold for all layouts; rules with `auto` name the free
  /// dims. With "*:auto", or without any `auto`, all other dims are free. `whole`: dims that stay
  /// whole, unless they count layers that a rule may deal to stages. Throws usage errors for dims
  /// that the model lacks.
  Space(const StepSummary& summary, const Layout& rules,
        const std::vector<std::string>& whole = {});

  /// All ways to give each axis of a mesh a set of dims, no two of which are in one tensor, or
  /// none. A pair of dims for which an op is computed blockwise only gets axes of at most 16 ranks.
  std::vector<Assignment> assignments(const Mesh& mesh) const;
  /// The same on all meshes of one to `most_axes` axes with this many devices. Axes have any order
  /// and any names. A set of dims gets one axis, or two if these leave parameters replicated. On up
  /// to 64 devices one axis may be idle. No op is computed blockwise: pricing that would take
  /// longer than everything else. Axes named in fixed rules are in all meshes, perhaps with size 1.
  std::vector<Assignment> assignments(int64_t devices, size_t most_axes = 3) const;
  /// The same with names for the axes: "data" (and "pod" outside of it) if parameters are
  /// replicated, "pipe" if it makes stages, else "model".
  Assignment named(const Assignment& a) const;
  /// The fixed rules and those of the assignment as a layout string.
  /// chunks: of layers that each stage has ("layers:pipe*2").
  std::string layout_text(const Assignment& a, int64_t chunks = 1) const;
  /// The axes of a dim: "pod+data", or "-" for none.
  std::string axes_of(const Assignment& a, const std::string& dim) const;
  /// The assignment without the dim.
  Assignment without(const Assignment& a, const std::string& dim) const;
  /// The assignment plus the dims that fixed rules give to its axes.
  Assignment with_fixed(const Assignment& a) const;
  /// True if an axis of the mesh makes stages of layers.
  bool has_stages(const Assignment& a) const;
  /// True if a fixed rule makes stages, and the chunks that it gives each.
  bool fixes_stages() const { return makes_stages(ruled_); }
  int64_t fixed_chunks() const { return fixed_chunks_; }
  /// The dims that the planner may split.
  DimSet free_dims() const { return free_; }
  /// The sets of dims that an axis may split, the empty one first. If there are very many: single
  /// dims and the largest sets.
  const std::vector<DimSet>& options() const { return options_; }
  /// True if fixed rules name axes, which are in all meshes then.
  bool names_axes() const { return !names_.empty(); }

 private:
  void find_options();
  bool leaves_copies(DimSet dims) const;
  class Meshes;
  bool by_slices(DimSet dims) const;
  bool makes_stages(DimSet dims) const { return (dims & summary_.stages) != 0; }
  DimSet fixed_on(const std::string& axis) const;
  std::vector<DimSet> fixed_on(const Mesh& mesh) const;
  bool goes_with(DimSet option, DimSet fixed) const;
  bool holds(DimSet dims, int64_t size) const;
  const StepSummary& summary_;
  std::vector<DimSet> options_;  // sets of dims for an axis, the empty one first
  DimSet free_ = 0, ruled_ = 0;
  std::vector<LayoutRule> fixed_;
  int64_t fixed_chunks_ = 1;
  std::vector<std::string> names_;  // axes that fixed rules name
};

}  // namespace tessera
