// The mesh of ranks, and the layout rules that split tensors over it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/dtype.h"

namespace tessera {

/// One axis of a mesh. `link` is the link class that it is bound to ("" for any).
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
  /// Parses "data:2;model:8@nvlink". Separators are ';', ',', '.' and white space; a colon may have
  /// white space around it. Throws usage errors for a bad pair, a size below 1 and a repeated axis.
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

/// What a stored tensor is used for. grads inherit the rules of params, state those of grads.
enum class Purpose : uint8_t { none, params, grads, state };
const char* to_string(Purpose purpose);

/// One rule of a layout: a dim name and the mesh axes it is split over.
struct LayoutRule {
  Purpose purpose = Purpose::none;  ///< none: a global or scoped rule
  std::string scope;                ///< glob over tensor names; "" for all tensors
  std::string dim;                  ///< dim name; may be "*" if `automatic`
  std::vector<std::string> axes;    ///< major to minor; empty: replicate
  bool optional = false;            ///< written `name?`: may match nothing
  bool automatic = false;           ///< `auto`: left to the planner
  bool replaces = false;            ///< `x=a` of purpose rules: replaces the compute layout of x
  /// `axes*N`: how many intervals of the dim a rank works on. Of the dim of repeated layers: the
  /// chunks of a stage. Else 2: ops whose work grows along the dim give each rank two intervals
  /// with the same work together.
  int64_t intervals = 1;
  std::string text;  ///< the rule as written
};

/// An ordered list of rules. Grammar (docs/reference/layout-grammar.md): clauses end at ';' or a
/// newline. A clause is "[@purpose | @/glob/ | @purpose/glob/] names:axes ...". Commas, dots or
/// white space separate names, names accumulate until a colon, '+' joins axes, '*2' behind them
/// asks for equal work ('*N', of layers: N chunks a stage), '-' replicates, 'auto' leaves the split
/// to the planner (alone: '*:auto'), 'name?' may match nothing, '#' starts a comment.
class Layout {
 public:
  Layout() = default;
  static Layout parse(const std::string& text);
  const std::vector<LayoutRule>& rules() const { return rules_; }
  std::string to_string() const;

 private:
  std::vector<LayoutRule> rules_;
};

/// How one tensor is laid out on a mesh. A tensor is never both split and partial over one axis.
/// Axes of size 1 never occur.
struct TensorLayout {
  std::vector<std::vector<int>> dims;  ///< per dim its mesh axes, major to minor
  std::vector<int> partial;            ///< axes over which it is a partial value, ascending
  Combiner combiner = Combiner::sum;   ///< of the partial value
  uint64_t dirty = 0;  ///< bit d: the padding of dim d may hold anything; else it is zero

  bool uses(int axis) const;  ///< split or partial over `axis`
  bool operator==(const TensorLayout&) const = default;
  /// "[batch@data, hidden] partial(sum) over model"
  std::string to_string(const std::vector<std::string>& dim_names, const Mesh& mesh) const;
};

/// True if `text` matches `glob` (`*`: any run of characters, `?`: any character).
bool glob_match(const std::string& glob, const std::string& text);

}  // namespace tessera
