// Helpers for the parameters of layers.
#pragma once

#include "tessera/nn_layers.h"

namespace tessera::nn {

/// The dtype in which a layer with these activations stores its parameters.
inline DType stored_dtype(DType activations) {
  return activations == DType::float64 ? DType::float64 : DType::float32;
}
inline Tensor read_as(Tensor tensor, DType dtype, Loc at = Loc::current()) {
  return tensor.dtype() == dtype ? tensor : cast(tensor, dtype, at);
}
/// A new parameter, read in the dtype of `like`.
inline Tensor parameter_for(Tensor like, const std::string& name, const Shape& shape,
                            const Initializer& init, Loc at) {
  Tensor p = like.graph().parameter(name, shape, init, stored_dtype(like.dtype()), at);
  return read_as(p, like.dtype(), at);
}

}  // namespace tessera::nn
