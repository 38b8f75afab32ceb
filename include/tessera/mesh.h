// The mesh of ranks and the layout rules that cut tensors over it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/dtype.h"

namespace tessera {

/// One axis of a mesh. `link` names the class of links it is bound to ("" for any).
struct MeshAxis {
  std::string name;
  int size = 1;
  std::string link = {};
  bool operator==(const MeshAxis&) const = default;
};

/// Named axes over ranks; the last axis varies fastest with the rank.
class Mesh {
 public:
  Mesh() = default;
  explicit Mesh(std::vector<MeshAxis> axes);
  /// "data:2;model:8@nvlink". Separators are ';', ',', '.' and white space, which may also stand
  /// around a colon. Throws usage errors for a bad pair, a size below 1 and an axis named twice.
  static Mesh parse(const std::string& text);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int rank() const { return static_cast<int>(axes_.size()); }
  /// Product of the sizes: the number of ranks.
  int size() const;
  /// Position of the axis called `name`, or -1.
  int find(const std::string& name) const;
  std::vector<std::string> names() const;
  /// Coordinates of a rank, one per axis.
  std::vector<int> coordinates(int rank) const;
  int rank_of(std::span<const int> coordinates) const;
  std::string to_string() const;

 private:
  std::vector<MeshAxis> axes_;
};

/// What a stored tensor is for. Rules for params are inherited by grads, those by state.
enum class Purpose : uint8_t { none, params, grads, state };
const char* to_string(Purpose purpose);

/// One rule of a layout: a dim name and the mesh axes it is split over.
struct LayoutRule {
  Purpose purpose = Purpose::none;  ///< none: a global rule, or a scoped one
  std::string scope;                ///< glob over tensor names; "" for a rule of all tensors
  std::string dim;                  ///< dim name; "*" with `automatic`
  std::vector<std::string> axes;    ///< major to minor; empty: replicate
  bool optional = false;            ///< written name?: may match nothing
  bool automatic = false;           ///< left to the planner
  bool replaces = false;            ///< purpose rules: `x=a` replaces the compute layout of x
  std::string text;                 ///< the rule as written, for messages
};

/// An ordered list of rules. Grammar (docs/reference/layout-grammar.md): clauses end at ';' or a
/// newline; a clause is "[@purpose | @/glob/ | @purpose/glob/] names:axes ..."; commas, dots or
/// white space separate names, names accumulate until a colon, '+' joins axes, '-' replicates,
/// 'auto' leaves it to the planner, 'name?' may match nothing, '#' starts a comment.
class Layout {
 public:
  Layout() = default;
  static Layout parse(const std::string& text);
  const std::vector<LayoutRule>& rules() const { return rules_; }
  std::string to_string() const;

 private:
  std::vector<LayoutRule> rules_;
};

/// What one tensor has on a mesh. A tensor is never both split and partial over one axis, and an
/// axis of size 1 never occurs.
struct TensorLayout {
  std::vector<std::vector<int>> dims;  ///< per dim its mesh axes, major to minor
  std::vector<int> partial;  ///< axes over which the slices still must be combined, ascending
  Combiner combiner = Combiner::sum;  ///< how
  uint64_t dirty = 0;                 ///< bit d: the padding of dim d may hold anything, not zeros

  bool uses(int axis) const;  ///< split or partial over it
  bool operator==(const TensorLayout&) const = default;
  /// "[batch@data, hidden] partial(sum) over model"
  std::string to_string(const std::vector<std::string>& dim_names, const Mesh& mesh) const;
};

/// True if `text` matches `glob` (`*` any run, `?` any character).
bool glob_match(const std::string& glob, const std::string& text);

}  // namespace tessera
