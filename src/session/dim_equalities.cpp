#include "session/dim_equalities.h"

#include <map>
#include <set>
#include <utility>

#include "ir/body.h"
#include "ir/source_ops.h"

namespace tessera {

namespace {

/// Collects the ties of a graph's nodes.
class Ties {
 public:
  Ties(const Graph& graph, const std::vector<std::string>& scalars) : graph_(graph) {
    ties_.names = scalars;
    ties_.bounds.resize(scalars.size());
    for (size_t i = 2; i < scalars.size(); ++i) position_[scalars[i]] = i;
  }

  /// Notes the bounded dims of a shape.
  void see(const Shape& shape) {
    for (const Dim& d : shape) {
      if (d.is_bounded) ties_.bounds[at(d)] = d.size;
    }
  }

  void see(const Node& node) {
    if (ties_.names.size() < 4) return;  // the step, the seed and one size
    const IndexSpace space = index_space(graph_, node);
    std::map<int, size_t> alone;
    for (size_t i = 0; i < node.in.size(); ++i) equal(alone, shape(node.in[i]), space.in[i]);
    for (size_t i = 0; i < node.out.size(); ++i) equal(alone, shape(node.out[i]), space.out[i]);
    if (!node.op->keeps_elements) return;
    multiple(shape(node.in[0]), space.in[0], shape(node.out[0]), space.out[0]);
    multiple(shape(node.out[0]), space.out[0], shape(node.in[0]), space.in[0]);
  }

  DimEqualities result() && {
    ties_.ties.assign(known_.begin(), known_.end());
    return std::move(ties_);
  }

 private:
  using Factors = std::vector<std::vector<int>>;  ///< of each dim

  const Shape& shape(int value) const { return graph_.value(value).shape; }
  size_t at(const Dim& dim) {
    const auto [it, is_new] = position_.emplace(dim.name, ties_.names.size());
    if (is_new) {
      ties_.names.push_back(dim.name);
      ties_.bounds.push_back(0);
    }
    return it->second;
  }
  void tie(const Dim& part, const Dim& whole, int64_t times) {
    const size_t p = at(part), w = at(whole);
    if (p != w) known_.insert({p, w, times});
  }

  /// Bounded dims that are the same factor and no other.
  void equal(std::map<int, size_t>& alone, const Shape& shape, const Factors& dims) {
    for (int d = 0; d < shape.rank(); ++d) {
      const std::vector<int>& factors = dims[static_cast<size_t>(d)];
      if (!shape[d].is_bounded || factors.size() != 1) continue;
      const size_t own = at(shape[d]), first = alone.emplace(factors[0], own).first->second;
      if (first != own) known_.insert({first, own, 1});
    }
  }
  /// A bounded dim whose first factor is a bounded dim of the other shape.
  void multiple(const Shape& parts, const Factors& of_parts, const Shape& wholes,
                const Factors& of_wholes) {
    for (int w = 0; w < wholes.rank(); ++w) {
      const std::vector<int>& all = of_wholes[static_cast<size_t>(w)];
      for (int p = 0; p < parts.rank() && all.size() > 1 && wholes[w].is_bounded; ++p) {
        if (parts[p].is_bounded && of_parts[static_cast<size_t>(p)] == std::vector<int>{all[0]})
          tie(parts[p], wholes[w], wholes[w].size / parts[p].size);
      }
    }
  }

  const Graph& graph_;
  DimEqualities ties_;
  std::map<std::string, size_t> position_;
  std::set<SizeTie> known_;
};

}  // namespace

DimEqualities size_ties_of(const Graph& graph, const Program& program) {
  Ties ties(graph, program.scalars);
  for (const Value& value : graph.values()) ties.see(value.shape);
  for (const Node& node : graph.nodes()) {
    if (node.attrs.has("bounded")) ties.see(shape_of(node.attrs));  // of dim_size()
  }
  for (const Node& node : graph.nodes()) {
    if (node.op->factors != nullptr) ties.see(node);
  }
  return std::move(ties).result();
}

}  // namespace tessera
