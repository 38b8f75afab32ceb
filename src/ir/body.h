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
/// Throws a usage error unless its results are those of the op's `infer`.
Body body_of(const OpCall& call);
/// Throws a usage error unless the results of `body`, which `maker` of the op made, have the types
/// of the call's: memory is planned for these, and written as those say.
void require_same_results(const OpCall& call, const Body& body, const char* maker);
/// A graph with the operands of a call as inputs, and no results yet.
Body body_with_inputs(const OpCall& call);
/// What Op::sharded_body makes, in a graph of its own. It has no results where that makes nothing.
Body sharded_body_of(const OpCall& call, const std::string& dim, const std::string& like,
                     int64_t slices);
/// What Op::ordered_body makes, as sharded_body_of().
Body ordered_body_of(const OpCall& call);
/// True if an op may have a form of its own for dims that it needs whole.
inline bool may_be_sharded(const Op& op) { return op.sharded_body || op.routing; }
/// True if the call has such a form for ranks with `slices` slices of `dim`, and of `like`.
bool can_be_sharded(const OpCall& call, const std::string& dim, const std::string& like,
                    int64_t slices);

struct CallTypes {
  std::vector<ValueType> in, out;
};
CallTypes call_types(const Graph& graph, const Node& node);
IndexSpace index_space(const Graph& graph, const Node& node);

}  // namespace tessera
