#include "cli/choices.h"

#include <algorithm>
#include <cmath>

#include "tessera/op.h"

namespace tessera::cli {

namespace {

/// The scores of one row of `scores`, that of element `i` of the indices.
class Rows {
 public:
  Rows(const Chosen& chosen) : chosen_(chosen) {
    const Array &scores = chosen.scores, &indices = chosen.indices;
    int64_t stride = 1;
    strides_.assign(indices.dims.size(), 0);
    for (size_t d = scores.dims.size(); d-- > 0; stride *= scores.sizes[d]) {
      if (scores.dims[d] == chosen.dim) {
        along_ = stride;
        size_ = scores.sizes[d];
        continue;
      }
      const auto at = std::find(indices.dims.begin(), indices.dims.end(), scores.dims[d]);
      if (at != indices.dims.end())
        strides_[static_cast<size_t>(at - indices.dims.begin())] = stride;
    }
  }
  /// The score that element `i` of the indices would have with the index `index`.
  double score(int64_t i, int64_t index) const {
    int64_t from = std::clamp<int64_t>(index, 0, size_ - 1) * along_;
    for (size_t d = strides_.size(); d-- > 0; i /= chosen_.indices.sizes[d])
      from += i % chosen_.indices.sizes[d] * strides_[d];
    return chosen_.scores.at(from);
  }

 private:
  const Chosen& chosen_;
  std::vector<int64_t> strides_;  ///< of the scores, by dim of the indices
  int64_t along_ = 0, size_ = 1;
};

bool is_choice(Graph& graph, const Node& node) {
  return (node.op->name == "argmax" || node.op->name == "top_k") &&
         is_floating(Tensor(&graph, node.in[0]).dtype());
}

}  // namespace

std::vector<ChoiceNode> choices_in(Graph& graph) {
  std::vector<ChoiceNode> found;
  for (const Node& node : graph.nodes()) {
    if (is_choice(graph, node) && node.loop < 0)
      found.push_back({Tensor(&graph, node.in[0]), Tensor(&graph, node.out[1]),
                       node.attrs.get<std::string>("dim")});
  }
  return found;
}

bool has_choices_in_loops(Graph& graph) {
  const auto& nodes = graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const Node& node) { return node.loop >= 0 && is_choice(graph, node); });
}

Flips flips_of(const std::vector<Chosen>& reference, const std::vector<Chosen>& other) {
  for (size_t n = 0; n < reference.size(); ++n) {
    const Rows rows(reference[n]);
    const Array &want = reference[n].indices, &got = other[n].indices;
    Flips flips{reference[n].name, 0, want.elements(), 0};
    for (int64_t i = 0; i < want.elements(); ++i) {
      if (want.at(i) == got.at(i)) continue;
      const double a = rows.score(i, static_cast<int64_t>(want.at(i))),
                   b = rows.score(i, static_cast<int64_t>(got.at(i))),
                   size = std::max(std::abs(a), std::abs(b));
      const double margin = size > 0 ? std::abs(a - b) / size : 0;
      flips.margin = std::max(flips.margin, std::isnan(margin) ? INFINITY : margin);
      ++flips.count;
    }
    if (flips.count > 0) return flips;
  }
  return {};
}

}  // namespace tessera::cli
