#include <cmath>

#include "base/fail.h"
#include "tessera/nn_layers.h"

namespace tessera::nn {

Initializer filled_with(double value) {
  return
      [=](Graph& g, const Shape& shape, DType dtype) { return constant(g, value, dtype, shape); };
}
Initializer zeros() { return filled_with(0); }
Initializer ones() { return filled_with(1); }

Initializer normal(double stddev, Loc at) {
  TESSERA_REQUIRE(stddev >= 0, "[normal] stddev {} is negative ({})", stddev, where(at));
  return [=](Graph& g, const Shape& shape, DType dtype) {
    return random_normal(g, shape, 0, stddev, dtype);
  };
}
Initializer truncated(double stddev, Loc at) {
  TESSERA_REQUIRE(stddev >= 0, "[truncated] stddev {} is negative ({})", stddev, where(at));
  return [=](Graph& g, const Shape& shape, DType dtype) {
    return truncated_normal(g, shape, 0, stddev, dtype);
  };
}
Initializer uniform(double lo, double hi, Loc at) {
  TESSERA_REQUIRE(hi >= lo, "[uniform] hi {} is below lo {} ({})", hi, lo, where(at));
  return [=](Graph& g, const Shape& shape, DType dtype) {
    return random_uniform(g, shape, lo, hi, dtype);
  };
}

namespace {

double fan_of(const Shape& shape, const std::vector<std::string>& dims) {
  double fan = 1;
  for (const std::string& d : dims) {
    TESSERA_REQUIRE(shape.has(d), "[variance_scaling] the weights {} have no dim '{}'{}",
                    shape.to_string(), d, suggestion(d, shape.names()));
    fan *= static_cast<double>(shape.dim(d).size);
  }
  return fan;
}

VarianceScaling scaling(const std::vector<std::string>& in, const std::vector<std::string>& out,
                        VarianceScaling::Distribution distribution) {
  VarianceScaling options;
  options.in = in;
  options.out = out;
  options.scale = out.empty() ? 2 : 1;
  options.fan = out.empty() ? VarianceScaling::Fan::in : VarianceScaling::Fan::average;
  options.distribution = distribution;
  return options;
}

}  // namespace

Initializer variance_scaling(const VarianceScaling& o) {
  TESSERA_REQUIRE(o.scale > 0, "[variance_scaling] scale {}; it must be positive", o.scale);
  return [=](Graph& g, const Shape& shape, DType dtype) {
    using Fan = VarianceScaling::Fan;
    using Distribution = VarianceScaling::Distribution;
    const double in = fan_of(shape, o.in), out = fan_of(shape, o.out);
    const double fan = o.fan == Fan::in ? in : o.fan == Fan::out ? out : (in + out) / 2;
    const double stddev = std::sqrt(o.scale / fan);
    switch (o.distribution) {
      case Distribution::truncated:
        return truncated_normal(g, shape, 0, stddev, dtype);
      case Distribution::normal:
        return random_normal(g, shape, 0, stddev, dtype);
      default:
        return random_uniform(g, shape, -std::sqrt(3.0) * stddev, std::sqrt(3.0) * stddev, dtype);
    }
  };
}

Initializer scaled_normal(const std::vector<std::string>& in, double gain) {
  return [=](Graph& g, const Shape& shape, DType dtype) {
    return truncated_normal(g, shape, 0, gain / std::sqrt(fan_of(shape, in)), dtype);
  };
}

Initializer glorot_normal(const std::vector<std::string>& in, const std::vector<std::string>& out) {
  return variance_scaling(scaling(in, out, VarianceScaling::Distribution::normal));
}
Initializer glorot_uniform(const std::vector<std::string>& in,
                           const std::vector<std::string>& out) {
  return variance_scaling(scaling(in, out, VarianceScaling::Distribution::uniform));
}
Initializer he_normal(const std::vector<std::string>& in) {
  return variance_scaling(scaling(in, {}, VarianceScaling::Distribution::normal));
}
Initializer he_uniform(const std::vector<std::string>& in) {
  return variance_scaling(scaling(in, {}, VarianceScaling::Distribution::uniform));
}

}  // namespace tessera::nn
