// Ops without operands: inputs, stored tensors, constants, indices, random bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/hash.h"
#include "ir/emit.h"
#include "ir/scopes.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/random.h"
#include "tessera/ops.h"

namespace tessera {

Attrs source_attrs(const Shape& shape, DType dtype) {
  std::vector<int64_t> sizes, bounded;
  for (const Dim& d : shape) {
    sizes.push_back(d.size);
    bounded.push_back(d.is_bounded);
  }
  return {{"dims", shape.names()},
          {"sizes", sizes},
          {"bounded", bounded},
          {"dtype", static_cast<int64_t>(dtype)}};
}

Shape shape_of(const Attrs& attrs) {
  std::vector<Dim> dims;
  const auto& names = attrs.get<std::vector<std::string>>("dims");
  const auto& sizes = attrs.get<std::vector<int64_t>>("sizes");
  const auto& bounded = attrs.get<std::vector<int64_t>>("bounded");
  for (size_t i = 0; i < names.size(); ++i) {
    dims.push_back(bounded[i] ? Dim::bounded(names[i], sizes[i]) : Dim(names[i], sizes[i]));
  }
  return Shape(std::move(dims));
}

DType dtype_of(const Attrs& attrs) { return static_cast<DType>(attrs.get<int64_t>("dtype")); }

namespace {

std::vector<ValueType> infer_source(const OpCall& call) {
  return {{shape_of(call.attrs), dtype_of(call.attrs)}};
}

Instr& only_instr(EmitCall& call) { return call.step.pointwise.code.back(); }

void emit_constant(EmitCall& call) { only_instr(call).imm = call.call.attrs.get<double>("value"); }

void emit_index(EmitCall& call) {
  only_instr(call).slot = 0;
  only_instr(call).expr = static_cast<int>(call.step.exprs.size());
  call.step.exprs.push_back(call.offset[0]);
}

void emit_random(EmitCall& call) {
  only_instr(call).expr = static_cast<int>(call.step.exprs.size());
  add_drawn_keys(call);
  const auto offset = [&](int d) { return call.offset[call.space.out[0][d][0]]; };
  for (const DrawnDim& dim : drawn_dims(call, call.call.out[0].shape, offset)) {
    AffineExpr step_of_dim;
    step_of_dim.constant = dim.stride;
    call.step.exprs.push_back(dim.offset);
    call.step.exprs.push_back(step_of_dim);
  }
}

/// dim_size: the run-time size as an expression.
void emit_dim_size(EmitCall& call) {
  only_instr(call).expr = static_cast<int>(call.step.exprs.size());
  call.step.exprs.push_back(call.extent[0]);
}

IndexSpace dim_size_factors(const OpCall& call) {
  const Shape dim = shape_of(call.attrs);
  return {{{dim[0].name, dim[0].size, Role::whole, Combiner::sum}}, {}, {{}}};
}

}  // namespace

extern const Op kInput = {.name = "input", .infer = infer_source};
extern const Op kStored = {.name = "stored", .infer = infer_source};
extern const Op kConstant = {.name = "constant",
                             .infer = infer_source,
                             .pointwise = true,
                             .code = PointwiseOp::constant,
                             .emit = emit_constant};
extern const Op kIota = {.name = "iota",
                         .infer = infer_source,
                         .pointwise = true,
                         .code = PointwiseOp::index,
                         .emit = emit_index};
extern const Op kRandomBits = {.name = "random_bits",
                               .infer = infer_source,
                               .pointwise = true,
                               .code = PointwiseOp::random,
                               .emit = emit_random};
extern const Op kDimSize = {.name = "dim_size",
                            .infer =
                                [](const OpCall& call) {
                                  return std::vector<ValueType>{{Shape{}, dtype_of(call.attrs)}};
                                },
                            .factors = dim_size_factors,
                            .pointwise = true,
                            .code = PointwiseOp::value,
                            .emit = emit_dim_size};

void add_drawn_keys(EmitCall& call) {
  AffineExpr seed, stream;
  seed.scalar = call.seed_scalar;
  stream.constant = call.call.attrs.get<int64_t>("stream");
  stream.scalar = call.step_scalar;
  stream.scalar_factor = 0x9E3779B97F4A7C15 >> 2;  // spreads the steps of one stream
  call.step.exprs.push_back(seed);
  call.step.exprs.push_back(stream);
}

std::vector<DrawnDim> drawn_dims(const EmitCall& call, const Shape& bits,
                                 const std::function<AffineExpr(int)>& offset_of) {
  const Attrs& attrs = call.call.attrs;
  const auto& names = attrs.get<std::vector<std::string>>("repeat_dims");
  const auto& counts = attrs.get<std::vector<int64_t>>("repeat_counts");
  const auto& at = attrs.get<std::vector<int64_t>>("repeat_at");
  const auto& loops = attrs.get<std::vector<int64_t>>("repeat_loops");
  std::vector<DrawnDim> dims;
  int64_t stride = bits.elements();
  for (const int64_t count : counts) stride *= count;
  for (int d = 0; d < bits.rank(); ++d) {
    const auto repeat = std::find(names.begin(), names.end(), bits[d].name) - names.begin();
    const bool is_repeat = repeat < std::ssize(names);
    AffineExpr offset = offset_of(d);
    stride /= is_repeat ? counts[repeat] : bits[d].size;
    if (is_repeat && loops[repeat] >= 0) {
      offset.scalar = call.counters.at(static_cast<size_t>(loops[repeat]));
    } else if (is_repeat) {
      offset.constant += at[repeat];
    }
    if (d == 0)
      offset.constant += attrs.get<int64_t>("copy") * (is_repeat ? counts[repeat] : bits[d].size);
    dims.push_back({offset, stride});
  }
  return dims;
}

int64_t new_stream(Graph& g) {
  return once_for_all(g, "random", [&] {
    return static_cast<int64_t>(hash_of(name_in_copies(g, g.unique_name("random"))) >> 2);
  });
}

Tensor constant(Graph& g, double value, DType dtype, const Shape& shape, Loc at) {
  on_behalf_of("constant", at, [&] { require_holds(dtype, value); });
  Attrs attrs = source_attrs(shape, dtype);
  attrs.set("value", value);
  return one(g, kConstant, {}, std::move(attrs), at);
}

Tensor constant(Graph& g, const Array& values, Loc at) {
  return on_behalf_of("constant", at, [&] {
    std::vector<Dim> dims;
    for (size_t i = 0; i < values.dims.size() && i < values.sizes.size(); ++i)
      dims.emplace_back(values.dims[i], values.sizes[i]);
    const Shape shape(dims);
    TESSERA_REQUIRE(
        values.dims.size() == values.sizes.size() &&
            static_cast<int64_t>(values.bytes.size()) == shape.elements() * size_of(values.dtype),
        "the array has {} names of dims, {} sizes and {} bytes; {} {} has {} bytes",
        values.dims.size(), values.sizes.size(), values.bytes.size(), to_string(values.dtype),
        shape.to_string(), shape.elements() * size_of(values.dtype));
    const OutsideScope outside(g);
    GraphInternals& internals = GraphInternals::of(g);
    const Tensor made = internals.named_freely(
        one(g, kInput, {}, source_attrs(shape, values.dtype), at), "constant");
    internals.constants[made.name()] = values;
    if (internals.eager) internals.eager->feed(made.name(), values);
    return made;
  });
}

Tensor zeros_like(Tensor x, Loc at) {
  return on_behalf_of("zeros_like", at,
                      [&] { return constant(x.graph(), 0, x.dtype(), x.shape(), at); });
}

Tensor ones_like(Tensor x, Loc at) {
  return on_behalf_of("ones_like", at,
                      [&] { return constant(x.graph(), 1, x.dtype(), x.shape(), at); });
}

namespace {
/// How many consecutive integers from 0 on a dtype can represent.
int64_t counted_by(DType dtype) {
  switch (dtype) {
    case DType::bool_:
      return 2;
    case DType::uint8:
      return 1 << 8;
    case DType::bfloat16:
      return (1 << 8) + 1;
    case DType::float16:
      return (1 << 11) + 1;
    case DType::float32:
      return (1 << 24) + 1;
    case DType::float64:
      return (int64_t{1} << 53) + 1;
    case DType::int32:
      return int64_t{1} << 31;
    case DType::int64:
      break;
  }
  return std::numeric_limits<int64_t>::max();
}
}  // namespace

Tensor iota(Graph& g, const Dim& dim, DType dtype, Loc at) {
  return on_behalf_of("iota", at, [&] {
    Attrs attrs = source_attrs(Shape{dim}, dtype);
    TESSERA_REQUIRE(dtype != DType::bool_,
                    "an index along dim '{}' of bool; take int32 and compare it with a number",
                    dim.name);
    TESSERA_REQUIRE(
        dim.size <= counted_by(dtype),
        "the indices along dim '{}' go to {}, and {} holds whole numbers to {} without a gap; "
        "take int32 or int64, and cast() what is made of it",
        dim.name, dim.size - 1, to_string(dtype), counted_by(dtype) - 1);
    return one(g, kIota, {}, std::move(attrs), at);
  });
}

Tensor dim_size(Graph& g, const Dim& dim, DType dtype, Loc at) {
  return on_behalf_of("dim_size", at,
                      [&] { return one(g, kDimSize, {}, source_attrs(Shape{dim}, dtype), at); });
}

/// Repetitions count as dims of the whole tensor, so that random numbers do not depend on them: a
/// layer is a dim in front, a microbatch a dim behind the one that it divides (in front of it if
/// microbatches are contiguous). Here such a dim has
/// size 1, and its offset tells which repetition it is. Copies are in front of all, as an offset in
/// elements.
Attrs drawn_attrs(Graph& g, const Shape& shape, int64_t stream) {
  std::vector<Dim> dims;
  std::vector<std::string> names;
  std::vector<int64_t> counts, index, loops;
  auto add = [&](const Repeat& r) {
    names.push_back(fmt::format("_{}{}", r.dim, names.empty() ? "" : std::to_string(names.size())));
    dims.emplace_back(names.back(), 1);
    counts.push_back(r.count);
    index.push_back(r.index);
    loops.push_back(r.loop);
  };
  int64_t copy = 0;
  for (const Repeat& r : copies_of_scopes(g)) {
    copy = copy * r.count + r.index;
    if (shape.rank() == 0) add(r);
  }
  for (const Repeat& r : open_repeats(g)) {
    if (r.of != Repeat::Of::microbatch) add(r);
  }
  for (const Dim& d : shape) {
    const Repeat* microbatch = open_microbatch(g);
    if (microbatch != nullptr && microbatch->dim != d.name) microbatch = nullptr;
    if (microbatch != nullptr && microbatch->contiguous) add(*microbatch);
    dims.push_back(d);
    if (microbatch != nullptr && !microbatch->contiguous) add(*microbatch);
  }
  const Attrs source = source_attrs(Shape(dims), DType::int64);
  Attrs attrs;
  for (const char* of_dims : {"dims", "sizes", "bounded"})
    attrs.set(std::string("drawn_") + of_dims, source.items().at(of_dims));
  attrs.set("stream", stream);
  attrs.set("copy", shape.rank() == 0 ? 0 : copy);
  attrs.set("repeat_dims", std::move(names));
  attrs.set("repeat_counts", std::move(counts));
  attrs.set("repeat_at", std::move(index));
  attrs.set("repeat_loops", std::move(loops));
  return attrs;
}

Shape drawn_shape(const Attrs& attrs) {
  Attrs source;
  for (const char* of_dims : {"dims", "sizes", "bounded"})
    source.set(of_dims, attrs.items().at(std::string("drawn_") + of_dims));
  return shape_of(source);
}

namespace {
/// Uniform in the open interval (0, 1), from the upper 23 bits.
Tensor open_uniform(Graph& g, const Shape& shape, const Attrs& drawn, Loc at) {
  const Shape dims = drawn_shape(drawn);
  Attrs attrs = source_attrs(dims, DType::int64);
  for (const char* name :
       {"stream", "copy", "repeat_dims", "repeat_counts", "repeat_at", "repeat_loops"})
    attrs.set(name, drawn.items().at(name));
  Tensor bits = one(g, kRandomBits, {}, std::move(attrs), at);
  if (dims != shape) bits = reshape(bits, shape, at);
  Tensor high =
      cast(floor_div(bits, constant(g, 512, DType::int64, {}, at), at), DType::float32, at);
  return mul(add(high, constant(g, 0.5, DType::float32, {}, at), at),
             constant(g, 1.0 / (1 << 23), DType::float32, {}, at), at);
}
Tensor new_uniform(Graph& g, const Shape& shape, Loc at) {
  return open_uniform(g, shape, drawn_attrs(g, shape, new_stream(g)), at);
}
Tensor affine(Tensor x, double factor, double offset, Loc at) {
  Graph& g = x.graph();
  return add(mul(x, constant(g, factor, DType::float32, {}, at), at),
             constant(g, offset, DType::float32, {}, at), at);
}
void require_drawn_as(DType dtype) {
  TESSERA_REQUIRE(is_floating(dtype),
                  "{} numbers; they are drawn as a floating type, use cast() or floor()",
                  to_string(dtype));
}
void require_normal(double stddev, DType dtype) {
  TESSERA_REQUIRE(stddev >= 0, "stddev {} is negative", stddev);
  require_drawn_as(dtype);
}
Tensor as(Tensor x, DType dtype, Loc at) { return x.dtype() == dtype ? x : cast(x, dtype, at); }
}  // namespace

Tensor random_uniform(Graph& g, const Shape& shape, double lo, double hi, DType dtype, Loc at) {
  return on_behalf_of("random_uniform", at, [&] {
    TESSERA_REQUIRE(hi >= lo, "hi {} is below lo {}", hi, lo);
    require_drawn_as(dtype);
    Tensor u = new_uniform(g, shape, at);
    Tensor x = as(affine(u, hi - lo, lo, at), dtype, at);
    if (!is_narrow(dtype) || hi == lo || hi == 0) return x;
    // Rounding to 16 bits may give hi; then take the number below it.
    const double spacing = dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;
    const double below = hi > 0 ? hi * (1 - spacing) : hi * (1 + 2 * spacing);
    return minimum(x, constant(g, below, dtype, {}, at), at);
  });
}

// x = sqrt(2) erfinv(2u - 1) is standard normal for u uniform.
Tensor random_normal(Graph& g, const Shape& shape, double mean, double stddev, DType dtype,
                     Loc at) {
  return on_behalf_of("random_normal", at, [&] {
    require_normal(stddev, dtype);
    Tensor u = affine(new_uniform(g, shape, at), 2, -1, at);
    return as(affine(erf_inv(u, at), 1.4142135623730951 * stddev, mean, at), dtype, at);
  });
}

// Two standard deviations are at erf(2 / sqrt(2)) = 0.9545, so u is drawn from that part of (-1,
// 1).
Tensor truncated_normal(Graph& g, const Shape& shape, double mean, double stddev, DType dtype,
                        Loc at) {
  return on_behalf_of("truncated_normal", at, [&] {
    require_normal(stddev, dtype);
    const double mass = 0.95449973610364158;
    Tensor u = affine(new_uniform(g, shape, at), 2 * mass, -mass, at);
    return as(affine(erf_inv(u, at), 1.4142135623730951 * stddev, mean, at), dtype, at);
  });
}

Tensor kept_by(Graph& g, const Shape& shape, double rate, const Attrs& drawn, Loc at) {
  return less(open_uniform(g, shape, drawn, at), constant(g, 1 - rate, DType::float32, {}, at), at);
}

Tensor dropout_where(Tensor keep, Tensor x, double rate, Loc at) {
  Graph& g = x.graph();
  Tensor kept =
      is_floating(x.dtype()) ? mul(x, constant(g, 1 / (1 - rate), x.dtype(), {}, at), at) : x;
  return where(keep, kept, constant(g, 0, x.dtype(), {}, at), at);
}

Tensor dropout(Tensor x, double rate, Loc at) {
  return on_behalf_of("dropout", at, [&] {
    TESSERA_REQUIRE(x.dtype() != DType::bool_, "x is bool; it must be a number, use cast()");
    Graph& g = x.graph();
    const int64_t stream = new_stream(g);
    TESSERA_REQUIRE(rate >= 0 && rate < 1, "[dropout] rate {} is not in [0, 1) ({})", rate,
                    where(at));
    if (rate == 0) return identity(x, at);
    return dropout_where(kept_by(g, x.shape(), rate, drawn_attrs(g, x.shape(), stream), at), x,
                         rate, at);
  });
}

}  // namespace tessera
