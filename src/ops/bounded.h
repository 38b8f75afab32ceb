// Bounded dims in ops that need a dim of fixed size: zeros stand for what is not there, and a
// result of the same length gets its bound back.
#pragma once

#include <string>

#include "tessera/ops.h"

namespace tessera {

/// bool [dim]: true for the elements that the run has.
Tensor present(Graph& g, const Dim& dim, Loc at);
/// x with `dim`, if it is bounded, as a dim of fixed size whose surplus elements are `fill`.
Tensor with_fixed(Tensor x, const std::string& dim, double fill, Loc at);
/// x with its fixed dim called like `bounded` as that dim again; elements beyond the size of the
/// run are dropped.
Tensor with_bound(Tensor x, const Dim& bounded, Loc at);

}  // namespace tessera
