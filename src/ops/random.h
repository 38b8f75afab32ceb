// Random streams: a number for each random node, derived from its name. And random numbers that a
// composite draws, whose attributes its body and its kernel read.
#pragma once

#include <functional>
#include <vector>

#include "ir/emit.h"
#include "ir/repeat.h"
#include "tessera/ops.h"

namespace tessera {

/// A stream number unique in the graph, a function of the current scope.
int64_t new_stream(Graph& g);

/// Attributes of random bits for a tensor of this shape: the stream, the dims, and where the open
/// repetition and the scope's copy lie among all. A body that is built again draws the same bits.
Attrs drawn_attrs(Graph& g, const Shape& shape, int64_t stream);
/// Of attributes that have those of drawn_attrs(): the dims of the bits, which have one more of
/// size 1 for each repetition.
Shape drawn_shape(const Attrs& attrs);
/// Where the bits of these attributes are so that an element is kept: bool, of shape `shape`.
Tensor kept_by(Graph& g, const Shape& shape, double rate, const Attrs& drawn, Loc at);
/// x with dropout: x / (1 - rate) where `keep`, else 0.
Tensor dropout_where(Tensor keep, Tensor x, double rate, Loc at = Loc::current());

/// How far a rank's random bits are from the first of all, and from one another, along a dim.
struct DrawnDim {
  AffineExpr offset;
  int64_t stride;
};
/// By dim of the bits. `offset`: that of the rank's slice.
std::vector<DrawnDim> drawn_dims(const EmitCall& call, const Shape& bits,
                                 const std::function<AffineExpr(int)>& offset);
/// Adds the seed, and the number of the stream in this step, to the step's expressions.
void add_drawn_keys(EmitCall& call);

}  // namespace tessera
