// The bodies of composites and the types of nodes.
#pragma once

#include <memory>
#include <vector>

#include "tessera/op.h"

namespace tessera {

/// A composite's body in a graph of its own: inputs `in`, results `out`.
struct Body {
  std::unique_ptr<Graph> storage;
  std::vector<Tensor> in, out;
  const Graph& graph = *storage;
};
Body body_of(const OpCall& call);
/// What Op::by_slices makes, in a graph of its own. It has no results where that makes nothing.
Body body_by_slices(const OpCall& call, const std::string& dim, const std::string& like,
                    int64_t slices);

struct CallTypes {
  std::vector<ValueType> in, out;
};
CallTypes call_types(const Graph& graph, const Node& node);
IndexSpace index_space(const Graph& graph, const Node& node);

}  // namespace tessera
