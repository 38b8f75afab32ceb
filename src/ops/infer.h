// Shape and dtype rules that several op families share.
#pragma once

#include <string>
#include <vector>

#include "base/fail.h"
#include "tessera/op.h"

namespace tessera {

/// All operands have one dtype, and dims of one name agree in size. Throws usage errors otherwise.
void require_same_dtype(const OpCall& call);
/// The size of `d` where it differs from `other`'s of the same name: "8", or, where one is bounded
/// and the other not, "n<=8" and "n=8".
std::string size_text(const Dim& d, const Dim& other);
void require_same_sizes(const OpCall& call);
/// Indices are int32 or int64.
void require_index(const ValueType& type);
/// The broadcast shape of the operands by name (the rule in ops.h).
Shape broadcast_shape(const OpCall& call);
/// The dims of `axes`, which must all be in x; the attribute list that reductions carry.
void require_dims(const Shape& shape, const std::vector<std::string>& names, const char* what);

/// For arithmetic: bool has none. Throws a usage error that names cast().
void require_number(DType dtype);
/// `value` is a number of this dtype, for integers and bool a whole one in range.
void require_holds(DType dtype, double value);
/// The same for what fills places around a tensor; infinities are the least and the greatest.
void require_fill(DType dtype, double value);

/// Records a value's name for "the shape of operand i" in messages.
inline std::string describe(const ValueType& type) {
  return std::string(to_string(type.dtype)) + type.shape.to_string();
}

/// Adds a node with one result to the graph of its first operand.
inline Tensor one(const Op& op, const std::vector<Tensor>& in, Attrs attrs, Loc at) {
  Graph& g = on_behalf_of(op.name, at, [&]() -> Graph& { return in[0].graph(); });
  return g.add(op, in, std::move(attrs), at)[0];
}
inline Tensor one(Graph& g, const Op& op, const std::vector<Tensor>& in, Attrs attrs, Loc at) {
  return g.add(op, in, std::move(attrs), at)[0];
}

}  // namespace tessera
