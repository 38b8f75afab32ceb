// Shape and dtype rules that several op families share.
#pragma once

#include <string>
#include <vector>

#include "base/fail.h"
#include "tessera/op.h"

namespace tessera {

/// Throws a usage error unless all operands have one dtype.
void require_same_dtype(const OpCall& call);
/// The size of `d` as text, for a dim that differs from `other` of the same name: "8"; or "n<=8"
/// and "n=8" if only one of them is bounded.
std::string size_text(const Dim& d, const Dim& other);
void require_same_sizes(const OpCall& call);
/// Throws a usage error unless indices are int32 or int64.
void require_index(const ValueType& type);
/// The broadcast shape of the operands (rule in ops.h). Throws a usage error for dims one letter
/// apart in what a user wrote.
Shape broadcast_shape(const OpCall& call);
/// Throws a usage error unless `names` is not empty and its names are distinct dims of `shape`.
/// `what` describes them.
void require_dims(const Shape& shape, const std::vector<std::string>& names, const char* what);

/// Throws a usage error for bool, which has no arithmetic; suggests cast().
void require_number(DType dtype);
/// Throws a usage error unless `dtype` can hold `value`: for integers and bool an integer in range;
/// for floating types any number that is not rounded to infinity, and infinity and NaN themselves.
void require_holds(DType dtype, double value);
/// The same for fill values, which may also be infinite: the minimum or maximum of the dtype.
void require_fill(DType dtype, double value);

/// Throws a usage error with the caller's line for a name that activate() does not know.
void require_activation(const std::string& function, Loc at);

/// The attribute `dim`.
inline const std::string& dim_of(const Attrs& attrs) { return attrs.get<std::string>("dim"); }

/// Dtype and shape as text, for messages.
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
