#include <cmath>

#include "base/fail.h"
#include "tessera/nn.h"

namespace tessera::nn {

Initializer zeros() {
  return [](Graph& g, const Shape& shape, DType dtype) { return constant(g, 0, dtype, shape); };
}
Initializer ones() {
  return [](Graph& g, const Shape& shape, DType dtype) { return constant(g, 1, dtype, shape); };
}
Initializer normal(double stddev) {
  return [=](Graph& g, const Shape& shape, DType dtype) {
    return random_normal(g, shape, 0, stddev, dtype);
  };
}
Initializer scaled_normal(const std::vector<std::string>& fan_in_dims, double gain) {
  return [=](Graph& g, const Shape& shape, DType dtype) {
    double fan_in = 1;
    for (const std::string& d : fan_in_dims) fan_in *= static_cast<double>(shape.dim(d).size);
    return truncated_normal(g, shape, 0, gain / std::sqrt(fan_in), dtype);
  };
}

namespace {
/// Parameters are float32 (float64 under float64 activations) and are read in the activations'
/// dtype.
DType stored_dtype(DType activations) {
  return activations == DType::float64 ? DType::float64 : DType::float32;
}
Tensor read_as(Tensor parameter, DType dtype) {
  return parameter.dtype() == dtype ? parameter : cast(parameter, dtype);
}
}  // namespace

Tensor dense(Tensor x, const std::string& name, const std::vector<std::string>& in,
             const Shape& out, bool bias, double gain, Loc at) {
  Graph& g = x.graph();
  std::vector<Dim> dims, result;
  for (const std::string& d : in) dims.push_back(x.dim(d));
  for (const Dim& d : x.shape().without(in)) result.push_back(d);
  for (const Dim& d : out) dims.push_back(d), result.push_back(d);
  Tensor w =
      g.parameter(name + ".w", Shape(dims), scaled_normal(in, gain), stored_dtype(x.dtype()), at);
  Tensor y = einsum({x, read_as(w, x.dtype())}, Shape(result), at);
  if (!bias) return y;
  Tensor b = g.parameter(name + ".b", out, zeros(), stored_dtype(x.dtype()), at);
  return add(y, read_as(b, x.dtype()), at);
}

Tensor norm(Tensor x, const std::string& name, const std::string& dim, Loc at) {
  Graph& g = x.graph();
  Scope scope(g, name);
  Tensor scale = g.parameter("scale", Shape{x.dim(dim)}, ones(), stored_dtype(x.dtype()), at);
  Tensor bias = g.parameter("bias", Shape{x.dim(dim)}, zeros(), stored_dtype(x.dtype()), at);
  return layer_norm(x, dim, read_as(scale, x.dtype()), read_as(bias, x.dtype()), 1e-5, at);
}

}  // namespace tessera::nn
