// Home layouts: what the rules of a Layout say about each tensor (docs/concepts.md, "who decides a
// layout", a and b), and the padded size of each dim.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// Two dims of one tensor claim one axis, whatever the sizes: such rules fit no mesh.
class Contradiction : public Error {
 public:
  explicit Contradiction(const std::string& message) : Error(ErrorKind::usage, message) {}
};

class HomeLayouts {
 public:
  /// Checks the rules against mesh and graph. Throws usage errors: an unknown axis, a dim or glob
  /// that matches nothing (with the nearest name), two rules for one dim, `auto`.
  HomeLayouts(const Graph& graph, const Mesh& mesh, const Layout& layout);

  /// The layout that the rules give a tensor of this shape, name, purpose and preference. Throws
  /// Contradiction where two dims claim one axis and no preference decides.
  TensorLayout home(const Shape& shape, const std::string& name, Purpose purpose,
                    const std::vector<std::string>& prefer) const;
  TensorLayout home(const Value& value) const {
    return home(value.shape, value.name, value.purpose, value.prefer);
  }
  /// Where a stored tensor rests.
  TensorLayout storage(const Graph& graph, const Stored& stored) const;

  /// The size that memory has for a dim: a multiple of every axis that a rule gives its name or a
  /// name tied to it.
  int64_t padded(const Dim& dim) const;
  /// Padded, or shorter at run time: there can be elements that are not part of the tensor.
  bool has_padding(const Dim& dim) const { return dim.is_bounded || padded(dim) != dim.size; }
  /// Elements of a dim on one rank.
  int64_t local(const Dim& dim, const std::vector<int>& axes) const;
  int64_t local_elements(const Shape& shape, const TensorLayout& layout) const;

  const Mesh& mesh() const { return mesh_; }
  /// Tensors of the same dims may have different homes: a rule has a scope.
  bool depends_on_names() const;
  /// The rule that puts `axis` on `dim` for a tensor: what `explain` quotes. "" if none.
  std::string rule_text(const std::string& dim, int axis) const;
  /// Position of the first rule that names the axis for the dim; large if none. Breaks ties.
  int rule_order(const std::string& dim, int axis) const;

 private:
  struct Rule {
    LayoutRule source;
    std::vector<int> axes;
  };
  using DimKey = std::pair<std::string, int64_t>;
  void resolve(const Graph& graph, const Layout& layout);
  void tie_sizes(const Graph& graph);
  void apply_purpose(Purpose purpose, const Shape& shape, const std::string& name,
                     const TensorLayout& compute, TensorLayout& layout) const;

  Mesh mesh_;
  std::vector<Rule> rules_;
  std::map<DimKey, int64_t> multiple_;
};

}  // namespace tessera
