// Index spaces: by name, or from the body of a composite. And the views that follow from them.
#include <algorithm>

#include "base/fail.h"
#include "ir/body.h"
#include "ir/emit.h"
#include "ir/graph_internals.h"
#include "tessera/op.h"

namespace tessera {

namespace {

int factor_of(IndexSpace& space, const Dim& dim) {
  for (size_t f = 0; f < space.factors.size(); ++f) {
    if (space.factors[f].name == dim.name) return static_cast<int>(f);
  }
  space.factors.push_back({dim.name, dim.size, Role::map, Combiner::sum});
  return static_cast<int>(space.factors.size()) - 1;
}

bool mentions(const std::vector<std::vector<std::vector<int>>>& operands, int factor) {
  for (const auto& dims : operands) {
    for (const auto& factors : dims) {
      if (std::find(factors.begin(), factors.end(), factor) != factors.end()) return true;
    }
  }
  return false;
}

}  // namespace

IndexSpace index_space_by_name(const OpCall& call) {
  IndexSpace space;
  auto add = [&](const std::vector<ValueType>& types,
                 std::vector<std::vector<std::vector<int>>>& operands) {
    for (const ValueType& type : types) {
      std::vector<std::vector<int>> dims;
      for (const Dim& d : type.shape) dims.push_back({factor_of(space, d)});
      operands.push_back(std::move(dims));
    }
  };
  add(call.out, space.out);  // results first: the order of kernels' iteration
  add(call.in, space.in);
  for (size_t f = 0; f < space.factors.size(); ++f) {
    const bool in = mentions(space.in, static_cast<int>(f)),
               out = mentions(space.out, static_cast<int>(f));
    space.factors[f].role = in && out ? Role::map : in ? Role::reduce : Role::fresh;
    space.factors[f].combiner = call.op.combiner;
  }
  return space;
}

namespace {

/// A composite's factors by name, marked `inside` where any node of the body does more than map
/// over them.
IndexSpace of_composite(const OpCall& call) {
  IndexSpace space = index_space_by_name(call);
  const Body body = body_of(call);
  for (const Node& node : body.graph.nodes()) {
    if (node.in.empty()) continue;
    const IndexSpace inner = index_space(body.graph, node);
    for (const Factor& factor : inner.factors) {
      if (factor.role == Role::map) continue;
      for (Factor& outer : space.factors) {
        if (outer.name == factor.name && outer.role != Role::fresh) outer.role = Role::inside;
      }
    }
  }
  if (!call.op.routing) return space;
  const std::string groups = call.op.routing(call.attrs).groups;
  for (Factor& factor : space.factors) {
    if (factor.name == groups) factor.role = Role::routed;
  }
  return space;
}

}  // namespace

IndexSpace index_space(const OpCall& call) {
  if (call.op.factors) return call.op.factors(call);
  return call.op.body ? of_composite(call) : index_space_by_name(call);
}

IndexSpace index_space(const Graph& graph, const Node& node) {
  const CallTypes types = call_types(graph, node);
  return index_space(OpCall{*node.op, types.in, types.out, node.attrs});
}

CallTypes call_types(const Graph& graph, const Node& node) {
  CallTypes types;
  for (int v : node.in) types.in.push_back({graph.value(v).shape, graph.value(v).dtype});
  for (int v : node.out) types.out.push_back({graph.value(v).shape, graph.value(v).dtype});
  return types;
}

namespace {

std::string text_of(const std::vector<ValueType>& types) {
  std::string text;
  for (const ValueType& type : types)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", to_string(type.dtype),
                        type.shape.to_string());
  return text.empty() ? "nothing" : text;
}

}  // namespace

void require_same_results(const OpCall& call, const Body& body, const char* maker) {
  std::vector<ValueType> made;
  for (const Tensor& t : body.out) made.push_back({t.shape(), t.dtype()});
  TESSERA_REQUIRE(made == call.out,
                  "`infer` of '{}' says that its results are {}, and its `{}` makes {}; both give "
                  "each result the same dtype and the same dims in the same order",
                  call.op.name, text_of(call.out), maker, text_of(made));
}

Body body_with_inputs(const OpCall& call) {
  Body body{std::make_unique<Graph>(), {}, {}};
  GraphInternals::of(*body.storage).is_body = true;
  for (size_t i = 0; i < call.in.size(); ++i) {
    body.in.push_back(
        body.storage->input(fmt::format("in{}", i), call.in[i].shape, call.in[i].dtype));
  }
  return body;
}

Body body_of(const OpCall& call) {
  const OnBehalf composite;
  Body body = body_with_inputs(call);
  body.out = call.op.body(body.in, call.attrs);
  if (call.op.infer) require_same_results(call, body, "body");
  return body;
}

Body sharded_body_of(const OpCall& call, const std::string& dim, const std::string& like,
                     int64_t slices) {
  const OnBehalf composite;
  Body body = body_with_inputs(call);
  body.out = call.op.sharded_body(call, body.in, dim, like, slices);
  if (!body.out.empty()) require_same_results(call, body, "sharded_body");
  return body;
}

Body ordered_body_of(const OpCall& call) {
  const OnBehalf composite;
  Body body = body_with_inputs(call);
  body.out = call.op.ordered_body(call, body.in);
  if (!body.out.empty()) require_same_results(call, body, "ordered_body");
  return body;
}

bool can_be_sharded(const OpCall& call, const std::string& dim, const std::string& like,
                    int64_t slices) {
  if (call.op.routing) return dim == call.op.routing(call.attrs).groups;
  return call.op.sharded_body && !sharded_body_of(call, dim, like, slices).out.empty();
}

int EmitCall::factor(const std::string& name) const {
  for (size_t f = 0; f < space.factors.size(); ++f) {
    if (space.factors[f].name == name) return static_cast<int>(f);
  }
  fail(ErrorKind::internal, "[{}] has no factor '{}'", call.op.name, name);
}

View align(const EmitCall& call, const View& natural, const std::vector<std::vector<int>>& dims,
           const std::vector<int>& factors, bool unit) {
  View view{natural.buffer, natural.dtype, {}, {}, natural.offset, natural.shift};
  for (int f : factors) {
    int64_t stride = 0;
    bool found = false;
    for (size_t d = 0; d < dims.size(); ++d) {
      int64_t inner = natural.strides[d];
      for (size_t k = dims[d].size(); k-- > 0; inner *= call.local[dims[d][k]]) {
        if (dims[d][k] == f) stride = inner, found = true;
      }
    }
    view.sizes.push_back(found || !unit ? call.local[f] : 1);
    view.strides.push_back(stride);
  }
  return view;
}

std::vector<int> all_factors(const EmitCall& call) {
  std::vector<int> factors(call.space.factors.size());
  for (size_t f = 0; f < factors.size(); ++f) factors[f] = static_cast<int>(f);
  return factors;
}

void emit_aligned(EmitCall& call) {
  const std::vector<int> factors = all_factors(call);
  for (size_t i = 0; i < call.in.size(); ++i) {
    call.step.in.push_back(align(call, call.in[i], call.space.in[i], factors));
  }
  for (size_t i = 0; i < call.out.size(); ++i) {
    call.step.out.push_back(align(call, call.out[i], call.space.out[i], factors));
  }
}

void emit_host(EmitCall& call) {
  const Op& op = call.call.op;
  Step& step = call.step;
  TESSERA_REQUIRE(call.space.factors.size() <= kMostHostDims,
                  "[{}] has {} factors; an op with a host function has at most {} ({})", op.name,
                  call.space.factors.size(), kMostHostDims, step.origin.source);
  emit_aligned(call);
  step.kernel = KernelKind::host;
  step.host.function = op.host;
  step.host.op = op.name;
  for (size_t f = 0; f < call.space.factors.size(); ++f) {
    step.host.dims.push_back({call.space.factors[f].name, call.local[f]});
    step.exprs.push_back(call.offset[f]);
    step.exprs.push_back(call.extent[f]);
  }
}

}  // namespace tessera
