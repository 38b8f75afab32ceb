// The ops of random models that see more than one element of a dim.
#include "support/random_graphs.h"
#include "tessera/ops.h"

namespace tessera::test {

namespace {
Dim any_dim(Tensor x, const Draw& draw) {
  return x.shape()[static_cast<int>(draw(static_cast<size_t>(x.shape().rank())))];
}
/// For ops that take no bounded dims.
Shape fixed(const Shape& shape) {
  std::vector<Dim> dims = shape.dims();
  for (Dim& d : dims) d.is_bounded = false;
  return Shape(dims);
}
}  // namespace

Tensor ordered(Tensor x, const Draw& draw) {
  if (x.shape().rank() == 0) return tanh(x);
  const Dim dim = any_dim(x, draw);
  const int64_t part = 1 + static_cast<int64_t>(draw(static_cast<size_t>(dim.size)));
  switch (draw(8)) {
    case 0:
      return shift(x, dim.name, part, draw(2) == 1);
    case 1:
      return cumsum(x, dim.name, draw(2) == 1, draw(2) == 1) * 0.5;
    case 2:
      if (part == dim.size) return x;
      return concat({slice(x, dim.name, part, dim.size - part), slice(x, dim.name, 0, part)},
                    dim.name);
    case 3:
      return pad(slice(x, dim.name, dim.size - part, part), dim.name, dim.size - part, 0, 0.3);
    case 4:
      if (x.shape().has(dim.name + "k")) return x;
      return top_k(x, dim.name, Dim(dim.name + "k", dim.is_bounded ? 1 : (dim.size + 1) / 2))
          .values;
    case 5:
      return sort(x, dim.name, draw(2) == 1);
    case 6: {
      x = reshape(x, fixed(x.shape()));
      const Tensor at = constant(x.graph(), static_cast<double>(part), DType::int32);
      return dynamic_shift(x, at, dim.name, draw(2) == 1);
    }
    default:
      return x * one_hot(argmax(x, dim.name), dim, 1, 0.5, x.dtype());
  }
}

Tensor windowed(Tensor x, const Draw& draw, const std::function<Tensor(const Shape&)>& parameter) {
  if (x.shape().rank() == 0) return sin(x);
  const Dim dim = any_dim(x, draw);
  const int64_t size = 1 + draw(4);
  const Dim window("window", size);
  PoolOptions pool;
  pool.dims = {{dim.name, 1 + draw(3), 1, 1 + draw(2)}};
  pool.padding = Padding::same;
  ConvOptions options{{{dim.name, window.name, 1, 1 + draw(2)}}};
  const size_t kind = draw(5);
  if (kind < 4) x = reshape(x, fixed(x.shape()));
  switch (kind) {
    case 0:
      return max_pool(x, pool);
    case 1:
      return avg_pool(x, pool);
    case 2: {
      const int64_t before = draw(static_cast<size_t>(size));
      options = {{{dim.name, window.name, 1, 1, before, size - 1 - before}}, Padding::given};
      return conv(x, parameter({window}), options);
    }
    case 3: {  // fewer, and as many again
      options.dims[0].stride = 2;
      ConvOptions back = options;
      back.dims[0].size = dim.size;
      return conv_transpose(conv(x, parameter({window}), options), parameter({window}), back);
    }
    default: {
      const Dim other = any_dim(x, draw);
      if (other.name == dim.name || other.is_bounded) return conv(x, parameter({window}), options);
      if (draw(2)) options.groups = {other.name};
      return conv(x, parameter({other, window}), options);
    }
  }
}

}  // namespace tessera::test
