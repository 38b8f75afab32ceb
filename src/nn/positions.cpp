// Masks and positions: comparisons and functions of indices, which need no communication.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/misspelt.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"
#include "tessera/nn_attention.h"

namespace tessera::nn {

namespace {

void require_two_dims(const char* op, const Dim& length, const Dim& memory_length, Loc at) {
  TESSERA_REQUIRE(
      length.name != memory_length.name,
      "[{}] queries and keys both lie along the dim '{}'; the positions of keys are a dim of "
      "another name ({})",
      op, length.name, where(at));
}

}  // namespace

Tensor causal_mask(Graph& g, const Dim& length, const Dim& memory_length, Loc at) {
  return on_behalf_of("causal_mask", at, [&] {
    require_two_dims("causal_mask", length, memory_length, at);
    return greater_equal(iota(g, length, DType::int32, at),
                         iota(g, memory_length, DType::int32, at), at);
  });
}

Tensor window_mask(Graph& g, const Dim& length, const Dim& memory_length, int64_t before,
                   int64_t after, Loc at) {
  return on_behalf_of("window_mask", at, [&] {
    TESSERA_REQUIRE(before >= 0 && after >= 0,
                    "[window_mask] before {} and after {}; neither is negative ({})", before, after,
                    where(at));
    require_two_dims("window_mask", length, memory_length, at);
    Tensor behind = iota(g, length, DType::int32, at) - iota(g, memory_length, DType::int32, at);
    constexpr int64_t kMost = int64_t{1} << 30;  // positions are int32: this hides no key
    return logical_and(behind <= static_cast<double>(std::min(before, kMost)),
                       behind >= static_cast<double>(-std::min(after, kMost)), at);
  });
}

Tensor prefix_mask(Tensor prefix, const Dim& length, const Dim& memory_length, Loc at) {
  return on_behalf_of("prefix_mask", at, [&] {
    Graph& g = prefix.graph();
    TESSERA_REQUIRE(prefix.dtype() == DType::int32,
                    "[prefix_mask] prefix is {}; it must be int32 ({})", to_string(prefix.dtype()),
                    where(at));
    Tensor inside = greater(prefix, iota(g, memory_length, DType::int32, at), at);
    return logical_or(inside, causal_mask(g, length, memory_length, at), at);
  });
}

Tensor segment_mask(Tensor segments, Tensor memory_segments, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("segment_mask", at, [&] {
    const Shape &own = segments.shape(), &theirs = memory_segments.shape();
    TESSERA_REQUIRE(
        own.without(theirs.names()).rank() > 0 && theirs.without(own.names()).rank() > 0,
        "[segment_mask] segments {} and memory_segments {}: queries and keys have a dim each "
        "that the others lack, use rename() ({})",
        own.to_string(), theirs.to_string(), where(at));
    // One dim each is that of the positions, whatever its name.
    if (is_users && own.without(theirs.names()).rank() > 1) require_no_misspelling(own, theirs);
    Tensor none = constant(segments.graph(), 0, memory_segments.dtype(), {}, at);
    return logical_and(equal(segments, memory_segments, at), not_equal(memory_segments, none, at),
                       at);
  });
}

// A segment begins where its number differs from that before. The begin of a token's segment is the
// maximum of all begins up to the token.
Tensor segment_positions(Tensor segments, const std::string& length, Loc at) {
  return on_behalf_of("segment_positions", at, [&] {
    Graph& g = segments.graph();
    Tensor index = iota(g, segments.dim(length), segments.dtype(), at);
    Tensor begins = logical_and(not_equal(segments, shift(segments, length, 1, false, at), at),
                                index > 0.0, at);
    Tensor here = where(begins, index, constant(g, 0, segments.dtype()), at);
    const std::string other = "_" + length;
    Tensor earlier = less_equal(rename(index, length, other, at), index, at);
    Tensor starts =
        where(earlier, rename(here, length, other, at), constant(g, 0, here.dtype()), at);
    Tensor positions = sub(index, reduce_max(starts, other, at), at);
    return positions.shape() == segments.shape() ? positions
                                                 : transpose(positions, segments.shape(), at);
  });
}

namespace {

void check_rotary(Tensor x, const std::string& dim, Tensor positions, double base) {
  const Dim& depth = x.dim(dim);
  TESSERA_REQUIRE(depth.size % 2 == 0, "dim '{}' has {} elements; pairs need an even number", dim,
                  depth.size);
  TESSERA_REQUIRE(is_floating(x.dtype()), "x is {}; it must be floating, use cast()",
                  to_string(x.dtype()));
  TESSERA_REQUIRE(base > 0 && std::isfinite(base), "base {}; it must be positive and finite", base);
  if (positions.empty()) return;
  TESSERA_REQUIRE(positions.dtype() == DType::int32 || positions.dtype() == DType::int64,
                  "the positions are {}; they must be int32 or int64, use cast()",
                  to_string(positions.dtype()));
  for (const Dim& d : positions.shape()) {
    TESSERA_REQUIRE(d.name != dim && x.shape().has(d.name),
                    "the positions {} have the dim '{}'; they have some dims of x {} besides '{}'",
                    positions.shape().to_string(), d.name, x.shape().to_string(), dim);
  }
}

}  // namespace

// A shift by n/2 with wrap-around exchanges the two halves; the first half then gets a minus sign.
Tensor rotary(Tensor x, const std::string& length, const std::string& dim, Tensor positions,
              double base, Loc at) {
  return on_behalf_of("rotary", at, [&] {
    Graph& g = x.graph();
    check_rotary(x, dim, positions, base);
    const Dim depth = x.dim(dim);
    const double half = static_cast<double>(depth.size) / 2;
    const DType exact = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
    Tensor index = iota(g, depth, exact, at);
    Tensor pair = index - where(index >= half, constant(g, half, exact), constant(g, 0, exact), at);
    Tensor rate = exp(pair * (-std::log(base) / half), at);
    Tensor position = positions.empty() ? iota(g, x.dim(length), DType::int32, at) : positions;
    Tensor angle = mul(cast(position, exact, at), rate, at);
    Tensor sign = where(index >= half, constant(g, 1, exact), constant(g, -1, exact), at);
    Tensor swapped = shift(x, dim, depth.size / 2, true, at);
    Tensor turned = add(mul(read_as(x, exact), cos(angle, at), at),
                        mul(read_as(swapped, exact), mul(sign, sin(angle, at), at), at), at);
    return read_as(turned, x.dtype());
  });
}

Tensor sinusoids(Graph& g, const Dim& length, const Dim& dim, DType dtype, Loc at) {
  return on_behalf_of("sinusoids", at, [&] {
    TESSERA_REQUIRE(dim.size % 2 == 0 && dim.size >= 4,
                    "[sinusoids] dim '{}' has {} elements; take an even number from 4 on ({})",
                    dim.name, dim.size, where(at));
    const DType exact = dtype == DType::float64 ? dtype : DType::float32;
    const double half = static_cast<double>(dim.size) / 2;
    Tensor index = iota(g, dim, exact, at);
    Tensor second = index >= half;
    Tensor pair = index - where(second, constant(g, half, exact), constant(g, 0, exact), at);
    Tensor angle =
        mul(iota(g, length, exact, at), exp(pair * (-std::log(1e4) / (half - 1)), at), at);
    return read_as(where(second, cos(angle, at), sin(angle, at), at), dtype);
  });
}

// Distances below half of the buckets have their own bucket. Computed in float64 with a small
// offset, so that a distance at which a bucket begins falls into it despite rounding of the
// logarithm.
Tensor bucket_of(Tensor behind, const RelativeOptions& o, Loc at) {
  const int64_t ways = o.bidirectional ? 2 : 1, buckets = o.buckets / ways, exact = buckets / 2;
  TESSERA_REQUIRE(
      exact >= 1 && o.max_distance > exact,
      "[relative_buckets] {} buckets and max_distance {}: there must be at least {} buckets, and "
      "a greater distance than {} ({})",
      o.buckets, o.max_distance, 2 * ways, exact, where(at));
  Graph& g = behind.graph();
  Tensor zero = constant(g, 0, DType::int32);
  Tensor distance = o.bidirectional ? abs(behind, at) : maximum(behind, zero, at);
  const double e = static_cast<double>(exact), top = static_cast<double>(buckets - 1);
  Tensor far = log(cast(maximum(distance, constant(g, e, DType::int32)), DType::float64) / e, at) *
               (static_cast<double>(buckets - exact) / std::log(o.max_distance / e));
  Tensor large = cast(floor(minimum(far + (e + 1e-9), constant(g, top, DType::float64)), at),
                      DType::int32, at);
  Tensor bucket = where(less(distance, constant(g, e, DType::int32)), distance, large, at);
  if (!o.bidirectional) return bucket;
  return add(bucket, where(behind < 0.0, constant(g, top + 1, DType::int32), zero, at), at);
}

Tensor relative_buckets(Graph& g, const Dim& length, const Dim& memory_length,
                        const RelativeOptions& o, Loc at) {
  return on_behalf_of("relative_buckets", at, [&] {
    require_two_dims("relative_buckets", length, memory_length, at);
    Tensor distance = iota(g, length, DType::int32, at) - iota(g, memory_length, DType::int32, at);
    // Where rules split both dims over one axis, a rank keeps its queries, as in
    // biased_attention().
    const PreferScope queries(g, distance.prefer(length.name, at));
    return bucket_of(distance, o, at);
  });
}

namespace {
Tensor relative_table(Graph& g, const std::string& name, const Shape& heads,
                      const RelativeOptions& o, DType dtype, Loc at) {
  return g.parameter(name + ".w", Shape{Dim("relative_buckets", o.buckets)}.united(heads),
                     normal(0.02), stored_dtype(dtype), at);
}
}  // namespace

Tensor relative_bias(Graph& g, const std::string& name, const Dim& length, const Dim& memory_length,
                     const Shape& heads, const RelativeOptions& o, DType dtype, Loc at) {
  return on_behalf_of("relative_bias", at, [&] {
    Tensor table = relative_table(g, name, heads, o, dtype, at);
    Tensor index = relative_buckets(g, length, memory_length, o, at);
    return read_as(gather(table, index, "relative_buckets", OutOfRange::error, at), dtype)
        .prefer(length.name, at);
  });
}

// From max_distance on all distances have one bucket.
Tensor relative_distances(Graph& g, const std::string& name, const Shape& heads,
                          const RelativeOptions& o, DType dtype, Loc at) {
  return on_behalf_of("relative_distances", at, [&] {
    Tensor table = relative_table(g, name, heads, o, dtype, at);
    Tensor entry = iota(g, Dim("relative_distances", 2 * o.max_distance + 1), DType::int32, at);
    Tensor index = bucket_of(entry - static_cast<double>(o.max_distance), o, at);
    return read_as(gather(table, index, "relative_buckets", OutOfRange::error, at), dtype);
  });
}

}  // namespace tessera::nn
