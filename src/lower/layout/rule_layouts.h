// Rule layouts: the layout that the rules of a Layout give each tensor, and the padded size of each
// dim (docs/explanation/who-decides-a-layout.md, a and b).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/error.h"
#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// Two dims of one tensor claim one axis. Such rules fit no mesh, whatever its sizes.
class Contradiction : public Error {
 public:
  explicit Contradiction(const std::string& message) : Error(ErrorKind::usage, message) {}
};

class RuleLayouts {
 public:
  /// Checks the rules against mesh and graph. Throws usage errors: an unknown axis, a dim or glob
  /// that matches nothing (with the nearest name), two rules for one dim, `auto`.
  /// strict_chunks: see CompileOptions; a slice then has whole chunks.
  RuleLayouts(const Graph& graph, const Mesh& mesh, const Layout& layout,
              int64_t strict_chunks = 0);

  /// The rule layout of a tensor with this shape, name, purpose and preference. Throws
  /// Contradiction if two dims claim one axis and no preference decides.
  TensorLayout of(const Shape& shape, const std::string& name, Purpose purpose,
                  const std::vector<std::string>& prefer) const;
  TensorLayout of(const Value& value) const {
    return of(value.shape, value.name, value.purpose, value.prefer);
  }
  /// The layout in which a stored tensor is kept.
  TensorLayout storage(const Graph& graph, const Stored& stored) const;

  /// The size of a dim in memory: a multiple of the product of all axes that rules give its name,
  /// or a name tied to it. Under strict numerics, of that and a chunk.
  int64_t padded(const Dim& dim) const;
  /// Elements of a chunk under strict numerics. Microbatches have the chunks of the batch, if each
  /// is one subtree of it.
  int64_t chunk(const Dim& dim) const;
  /// True for the dim of a microbatch; is_subtree(): which is one subtree of the batch.
  bool divides_batch(const Dim& dim) const { return batches_.contains({dim.name, dim.size}); }
  bool is_subtree(const Dim& dim) const;
  /// True if memory may hold elements that are not part of the tensor: the dim is padded, or
  /// bounded and shorter at run time.
  bool has_padding(const Dim& dim) const { return dim.is_bounded || padded(dim) != dim.size; }
  /// Elements of a dim on one rank, padding included.
  int64_t local(const Dim& dim, const std::vector<int>& axes) const;
  int64_t local_elements(const Shape& shape, const TensorLayout& layout) const;

  const Mesh& mesh() const { return mesh_; }
  /// The number of ranks along the axes.
  template <class Axes>
  int64_t slices_of(const Axes& axes) const {
    int64_t slices = 1;
    for (const int axis : axes) slices *= mesh_.axes()[axis].size;
    return slices;
  }
  /// False if further axes split the dim in other tensors.
  bool is_split_once(const std::string& dim, int64_t slices) const {
    return padded(Dim(dim, slices)) == slices;
  }
  /// The dim of the ranks that rows come from which are routed to `groups`: it has their rules.
  static std::string sources_of(const std::string& groups) { return groups + "/sources"; }
  /// True if a rule asks for equal work (`dim:axes*2`) where the dim is split over these axes.
  bool balances(const std::string& dim, const std::vector<int>& axes) const;
  /// The chunks of layers that a stage works on, where ranks along `axis` are stages of `layers`:
  /// V for a rule `layers:axis*V`, else 1.
  int64_t chunks(const std::string& layers, int axis) const;
  /// True if a rule has a scope: tensors of the same dims may have different layouts.
  bool depends_on_names() const;
  /// The rule that puts `axis` on `dim`, as `explain` quotes it; "" if there is none. Of several it
  /// is the first without a scope or with one that `name`, a tensor, is in.
  std::string rule_text(const std::string& dim, int axis, const std::string& name = "") const;
  /// The index of the first rule that gives the axis to the dim; large if there is none. Used to
  /// break ties.
  int rule_order(const std::string& dim, int axis) const;

 private:
  struct Rule {
    LayoutRule source;
    std::vector<int> axes;
  };
  using DimKey = std::pair<std::string, int64_t>;
  void resolve(const Graph& graph, const Layout& layout);
  void add_rules_of_sources(const Graph& graph);
  void require_growing_work(const Graph& graph, const Rule& rule) const;
  void check_intervals(const Graph& graph) const;
  void tie_sizes(const Graph& graph);
  void apply_purpose(Purpose purpose, const Shape& shape, const std::string& name,
                     const TensorLayout& compute, TensorLayout& layout) const;

  Mesh mesh_;
  int64_t strict_chunks_;
  std::vector<Rule> rules_;
  std::map<DimKey, int64_t> multiple_;
  std::map<DimKey, int64_t> batches_;  ///< by the dim of a microbatch: the size of the batch
};

}  // namespace tessera
