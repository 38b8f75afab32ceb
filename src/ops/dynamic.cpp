// Slices, shifts and updates at a position computed by the graph: gathers along a dim at indices
// that are computed from it.
#include "ops/infer.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

void check_place(Tensor x, Tensor place, const std::string& dim) {
  const Dim& d = x.dim(dim);
  TESSERA_REQUIRE(!d.is_bounded,
                  "dim '{}' is bounded; reshape() it to a dim of fixed size, where zeros stand for "
                  "what is not there",
                  dim);
  TESSERA_REQUIRE(place.dtype() == DType::int32, "the position is {}; it is int32, use cast()",
                  to_string(place.dtype()));
  for (const Dim& other : place.shape()) {
    TESSERA_REQUIRE(other.name != dim && x.shape().has(other.name),
                    "dim '{}' of the position is not one of x's others", other.name);
  }
}

/// Positions along a dim of x for each element of the result, along a dim with a name of its own.
Tensor positions(Tensor x, const std::string& dim, int64_t size, Loc at) {
  return iota(x.graph(), Dim(dim + "_to", size), DType::int32, at);
}

Tensor look_up(Tensor x, Tensor index, const std::string& dim, OutOfRange out_of_range, Loc at) {
  Tensor result = rename(gather(x, index, dim, out_of_range, at), dim + "_to", dim, at);
  std::vector<Dim> order;
  for (const Dim& d : x.shape()) order.push_back(result.dim(d.name));
  const Shape shape(order);
  return result.shape() == shape ? result : transpose(result, shape, at);
}

/// `begin`, clamped so that [begin, begin + size) lies inside.
Tensor inside(Tensor x, Tensor begin, const std::string& dim, int64_t size, Loc at) {
  Graph& g = x.graph();
  const double last = static_cast<double>(x.dim(dim).size - size);
  return maximum(minimum(begin, constant(g, last, DType::int32, {}, at), at),
                 constant(g, 0, DType::int32, {}, at), at);
}

}  // namespace

Tensor dynamic_shift(Tensor x, Tensor offset, const std::string& dim, bool wrap, Loc at) {
  return on_behalf_of("dynamic_shift", at, [&] {
    check_place(x, offset, dim);
    const int64_t size = x.dim(dim).size;
    Tensor from = sub(positions(x, dim, size, at), offset, at);
    if (wrap) {
      const Tensor n = constant(x.graph(), static_cast<double>(size), DType::int32, {}, at);
      from = mod(from, n, at);
    }
    return look_up(x, from, dim, wrap ? OutOfRange::error : OutOfRange::zero, at);
  });
}

Tensor dynamic_slice(Tensor x, Tensor begin, const std::string& dim, int64_t size, Loc at) {
  return on_behalf_of("dynamic_slice", at, [&] {
    check_place(x, begin, dim);
    TESSERA_REQUIRE(size >= 1 && size <= x.dim(dim).size, "{} elements of dim '{}' of size {}",
                    size, dim, x.dim(dim).size);
    const Tensor first = inside(x, begin, dim, size, at);
    return look_up(x, add(positions(x, dim, size, at), first, at), dim, OutOfRange::error, at);
  });
}

Tensor dynamic_update(Tensor x, Tensor update, Tensor begin, const std::string& dim, Loc at) {
  return on_behalf_of("dynamic_update", at, [&] {
    check_place(x, begin, dim);
    TESSERA_REQUIRE(update.dtype() == x.dtype(),
                    "the update is {} and x is {}; they must agree, use cast()",
                    to_string(update.dtype()), to_string(x.dtype()));
    const int64_t size = update.dim(dim).size, all = x.dim(dim).size;
    TESSERA_REQUIRE(size <= all, "an update of {} elements along dim '{}' of size {}", size, dim,
                    all);
    const Tensor first = inside(x, begin, dim, size, at);
    Tensor from = sub(positions(x, dim, all, at), first, at);
    Tensor placed = look_up(update, from, dim, OutOfRange::zero, at);
    Tensor place = sub(iota(x.graph(), x.dim(dim), DType::int32, at), first, at);
    const Tensor zero = constant(x.graph(), 0, DType::int32, {}, at),
                 end = constant(x.graph(), static_cast<double>(size), DType::int32, {}, at);
    Tensor hit = logical_and(greater_equal(place, zero, at), less(place, end, at), at);
    Tensor result = where(hit, placed, x, at);
    return result.shape() == x.shape() ? result : transpose(result, x.shape(), at);
  });
}

}  // namespace tessera
