// The index relation in = stride * out + dilation * k - lo along one dim, as an op and its
// transpose: window gathers along it, fold adds along it. Slice, pad, shift and pooling are
// windows; the gradient of a window is a fold.
#include "ops/window.h"

#include <algorithm>

#include "base/sizes.h"
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/bounded.h"
#include "ops/infer.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kWindow, kFold;

namespace {

/// The dims [out, window] that replace `dim` in the windowed tensor; without `window` if it has
/// none.
std::vector<Dim> window_dims(const Attrs& attrs) {
  std::vector<Dim> dims = {Dim(attrs.get<std::string>("out_name"), attrs.get<int64_t>("out_size"))};
  if (attrs.has("window_name"))
    dims.emplace_back(attrs.get<std::string>("window_name"), attrs.get<int64_t>("window_size"));
  return dims;
}

Shape replaced(const Shape& shape, const std::vector<std::string>& old,
               const std::vector<Dim>& with) {
  std::vector<Dim> dims;
  for (const Dim& d : shape) {
    if (d.name == old[0]) {
      dims.insert(dims.end(), with.begin(), with.end());
    } else if (std::find(old.begin(), old.end(), d.name) == old.end()) {
      dims.push_back(d);
    }
  }
  return Shape(std::move(dims));
}

std::vector<ValueType> infer_window(const OpCall& call) {
  const auto& dim = call.attrs.get<std::string>("dim");
  require_dims(call.in[0].shape, {dim}, "windowed");
  TESSERA_REQUIRE(
      !call.in[0].shape.dim(dim).is_bounded,
      "dim '{}' is bounded; reshape() it to a dim of fixed size, where zeros stand for what is "
      "not there",
      dim);
  return {{replaced(call.in[0].shape, {dim}, window_dims(call.attrs)), call.in[0].dtype}};
}

std::vector<ValueType> infer_fold(const OpCall& call) {
  std::vector<std::string> old;
  for (const Dim& d : window_dims(call.attrs)) old.push_back(d.name);
  require_dims(call.in[0].shape, old, "folded");
  const Dim dim(call.attrs.get<std::string>("dim"), call.attrs.get<int64_t>("size"));
  return {{replaced(call.in[0].shape, old, {dim}), call.in[0].dtype}};
}

/// By name, except that the windowed dim and the dims that replace it are separate factors tied by
/// the relation. The operand's side of the relation is `related`; a window index that fold sums
/// over is `reduce`.
IndexSpace window_factors(const OpCall& call) {
  const bool is_fold = &call.op == &kFold;
  const Attrs& a = call.attrs;
  const auto& dim = a.get<std::string>("dim");
  const std::vector<Dim> windowed = window_dims(a);
  IndexSpace space;
  Relation r{-1,
             -1,
             -1,
             a.get<int64_t>("stride"),
             a.get<int64_t>("dilation"),
             a.get<int64_t>("lo"),
             a.get<int64_t>("wrap") != 0};
  auto add = [&](const Dim& d, Role role) {
    space.factors.push_back({d.name, d.size, role, Combiner::sum});
    return static_cast<int>(space.factors.size()) - 1;
  };
  auto factors = [&](const Shape& shape, bool on_window_side, bool is_operand) {
    std::vector<std::vector<int>> dims;
    for (const Dim& d : shape) {
      int f = -1;
      if (on_window_side ? d.name == windowed[0].name : d.name == dim) {
        (on_window_side ? r.out : r.in) = f = add(d, is_operand ? Role::related : Role::fresh);
      } else if (on_window_side && windowed.size() > 1 && d.name == windowed[1].name) {
        r.window = f = add(d, is_operand ? Role::reduce : Role::fresh);
      }
      for (size_t g = 0; f < 0 && g < space.factors.size(); ++g) {
        if (space.factors[g].name == d.name && space.factors[g].role == Role::map)
          f = static_cast<int>(g);
      }
      dims.push_back({f < 0 ? add(d, Role::map) : f});
    }
    return dims;
  };
  space.out = {factors(call.out[0].shape, !is_fold, false)};
  space.in = {factors(call.in[0].shape, is_fold, true)};
  space.relations = {r};
  return space;
}

/// Emits the sizes of the dims before, at and after the related dims, and the start of this rank's
/// slices.
void emit_window(EmitCall& call) {
  const bool is_fold = &call.call.op == &kFold;
  const View& natural = is_fold ? call.out[0] : call.in[0];  // with `dim`
  const View& windowed = is_fold ? call.in[0] : call.out[0];
  const Shape& shape = is_fold ? call.call.out[0].shape : call.call.in[0].shape;
  const int d = shape.find(call.call.attrs.get<std::string>("dim"));
  int64_t pre = 1, post = 1;
  for (int i = 0; i < d; ++i) pre *= natural.sizes[i];
  for (int i = d + 1; i < shape.rank(); ++i) post *= natural.sizes[i];
  const Attrs& a = call.call.attrs;
  Step& step = call.step;
  step.in = {call.in[0]};
  step.out = {call.out[0]};
  const bool has_window = a.has("window_name");
  step.spec = WindowSpec{.pre = pre,
                         .post = post,
                         .size = a.get<int64_t>("size"),
                         .memory = natural.sizes[d],
                         .out_size = a.get<int64_t>("out_size"),
                         .out_memory = windowed.sizes[d],
                         .window_size = has_window ? a.get<int64_t>("window_size") : 1,
                         .window_memory = has_window ? windowed.sizes[d + 1] : 1,
                         .stride = a.get<int64_t>("stride"),
                         .dilation = a.get<int64_t>("dilation"),
                         .lo = a.get<int64_t>("lo"),
                         .wrap = a.get<int64_t>("wrap") != 0,
                         .fill = a.get<double>("fill")};
  const Relation& r = call.space.relations[0];
  for (int f : {r.in, r.out, r.window}) step.exprs.push_back(f < 0 ? AffineExpr{} : call.offset[f]);
  for (SumOrder::Along& a : step.order.along) a.dim = 2;  // of [pre, out, window, post]
}

/// Wrapping is a rotation, whose transpose is the inverse rotation. A reversal is its own.
std::vector<Tensor> window_gradient(const GradCall& c) {
  const bool reverses = c.attrs.get<int64_t>("stride") < 0;
  if (c.attrs.get<int64_t>("wrap") == 0 && !reverses)
    return c.graph.add(kFold, {c.grads[0]}, c.attrs, Loc::current());
  WindowOptions o;
  o.stride = c.attrs.get<int64_t>("stride");
  o.lo = o.stride * -c.attrs.get<int64_t>("lo");
  o.wrap = !reverses;
  return {window(c.grads[0], c.attrs.get<std::string>("out_name"),
                 Dim(c.attrs.get<std::string>("dim"), c.attrs.get<int64_t>("size")), o)};
}

}  // namespace

extern const Op kWindow = {.name = "window",
                           .infer = infer_window,
                           .factors = window_factors,
                           .gradient = window_gradient,
                           .kernel = KernelKind::window,
                           .emit = emit_window,
                           .contiguous = true};
extern const Op kFold = {.name = "fold",
                         .infer = infer_fold,
                         .factors = window_factors,
                         .linear = {1u},
                         .gradient = [](const GradCall& c) -> std::vector<Tensor> {
                           return c.graph.add(kWindow, {c.grads[0]}, c.attrs, Loc::current());
                         },
                         .kernel = KernelKind::fold,
                         .emit = emit_window,
                         .contiguous = true};

Tensor window(Tensor x, const std::string& dim, const Dim& out, const WindowOptions& o, Loc at) {
  TESSERA_CHECK(!o.wrap || (o.stride == 1 && o.window.empty() && out.size == x.dim(dim).size),
                "a window of '{}' that wraps is a rotation", dim);
  TESSERA_CHECK(o.stride >= 1 || (o.stride == -1 && o.window.empty() &&
                                  out.size == x.dim(dim).size && o.lo == 1 - out.size),
                "a window of '{}' with stride {} is a reversal", dim, o.stride);
  Attrs attrs = {{"dim", dim},           {"size", x.dim(dim).size}, {"out_name", out.name},
                 {"out_size", out.size}, {"stride", o.stride},      {"dilation", o.dilation},
                 {"lo", o.lo},           {"wrap", int64_t{o.wrap}}, {"fill", o.fill}};
  if (!o.window.empty()) {
    attrs.set("window_name", o.window);
    attrs.set("window_size", o.window_size);
  }
  return one(kWindow, {x}, std::move(attrs), at);
}

Tensor slice(Tensor x, const std::string& dim, int64_t begin, int64_t size, Loc at) {
  return on_behalf_of("slice", at, [&] {
    const int64_t all = x.dim(dim).size;
    TESSERA_REQUIRE(begin >= 0 && size >= 1 && size <= all && begin <= all - size,
                    "elements [{}, {}) are not within dim '{}' of size {}", begin,
                    Wide{begin} + size, dim, all);
    WindowOptions o;
    o.lo = -begin;
    return window(with_fixed(x, dim, 0, at), dim, Dim(dim, size), o, at);
  });
}

Tensor pad(Tensor x, const std::string& dim, int64_t before, int64_t after, double value, Loc at) {
  return on_behalf_of("pad", at, [&] {
    TESSERA_REQUIRE(before >= 0 && after >= 0,
                    "{} before and {} after dim '{}'; neither is negative", before, after, dim);
    require_fill(x.dtype(), value);
    WindowOptions o;
    o.lo = before;
    o.fill = value;
    const Wide size = Wide{x.dim(dim).size} + before + after;
    return window(with_fixed(x, dim, value, at), dim,
                  Dim(dim, checked_size(size, "dim '" + dim + "' with its padding")), o, at);
  });
}

Tensor reversed(Tensor x, const std::string& dim, Loc at) {
  WindowOptions o;
  o.stride = -1;
  o.lo = 1 - x.dim(dim).size;
  return window(x, dim, Dim(dim, x.dim(dim).size), o, at);
}

namespace {
/// shift() that wraps around at the size of the run.
Tensor rotated(Tensor x, const Dim& dim, int64_t offset, Loc at) {
  Graph& g = x.graph();
  const Tensor to = iota(g, dim, DType::int64, at), size = dim_size(g, dim, DType::int64, at);
  const Tensor from =
      mod(sub(to, constant(g, static_cast<double>(offset), DType::int64, {}, at), at), size, at);
  return transpose(take_along(x, from, dim, OutOfRange::zero, at), x.shape(), at);
}
}  // namespace

Tensor shift(Tensor x, const std::string& dim, int64_t offset, bool wrap, Loc at) {
  return on_behalf_of("shift", at, [&] {
    const Dim whole = x.dim(dim);
    const int64_t size = whole.size;
    if (whole.is_bounded && wrap) return rotated(x, whole, offset, at);
    if (whole.is_bounded)
      return with_bound(shift(with_fixed(x, dim, 0, at), dim, offset, false, at), whole, at);
    if (wrap && offset % size == 0) return identity(x, at);
    WindowOptions o;
    o.lo = wrap ? ((offset % size) + size) % size : std::clamp(offset, -size, size);
    o.wrap = wrap;
    return window(x, dim, Dim(dim, size), o, at);
  });
}

std::vector<Tensor> split(Tensor x, const std::string& dim, const std::vector<int64_t>& sizes,
                          Loc at) {
  return on_behalf_of("split", at, [&] {
    Wide total = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      TESSERA_REQUIRE(sizes[i] >= 1,
                      "part {} of dim '{}' would have {} elements; it has at least 1", i, dim,
                      sizes[i]);
      total += sizes[i];
    }
    TESSERA_REQUIRE(total == x.dim(dim).size, "the sizes add up to {} but dim '{}' has {}", total,
                    dim, x.dim(dim).size);
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (int64_t s : sizes) parts.push_back(slice(x, dim, begin, s, at)), begin += s;
    return parts;
  });
}

std::vector<Tensor> unstack(Tensor x, const std::string& dim, Loc at) {
  return on_behalf_of("unstack", at, [&] {
    std::vector<Tensor> parts;
    const Shape rest = x.shape().without({dim});
    for (int64_t i = 0; i < x.dim(dim).size; ++i)
      parts.push_back(reshape(slice(x, dim, i, 1, at), rest, at));
    return parts;
  });
}

namespace {
/// Each neighbour block of a halo adds a node.
constexpr int64_t kMostHalos = 4096;
}  // namespace

Tensor halo_exchange(Tensor x, const std::string& blocks, const std::string& block, int64_t before,
                     int64_t after, bool wrap, Loc at) {
  return on_behalf_of("halo_exchange", at, [&] {
    x.dim(blocks);  // must exist
    TESSERA_REQUIRE(before >= 0 && after >= 0,
                    "{} before and {} after dim '{}'; neither is negative", before, after, block);
    TESSERA_REQUIRE(blocks != block, "dim '{}' is both the blocks and what is in one", blocks);
    const int64_t size = x.dim(block).size;
    TESSERA_REQUIRE(
        before / size < kMostHalos && after / size < kMostHalos,
        "{} before and {} after dim '{}' reach across {} blocks of {} or more; blocks are "
        "larger, or halos smaller",
        before, after, block, kMostHalos, size);
    std::vector<Tensor> parts;
    auto add_from = [&](int64_t distance, int64_t halo) {
      const int64_t n = std::min(size, halo - (std::abs(distance) - 1) * size);
      parts.push_back(
          shift(slice(x, block, distance > 0 ? size - n : 0, n, at), blocks, distance, wrap, at));
    };
    for (int64_t t = (before + size - 1) / size; t > 0; --t) add_from(t, before);
    parts.push_back(x);
    for (int64_t t = 1; (t - 1) * size < after; ++t) add_from(-t, after);
    return concat(parts, block, at);
  });
}

namespace {

/// Sorted, so that the order of dims does not matter.
std::vector<std::string> sorted_dims(const Shape& shape, const std::string& without) {
  std::vector<std::string> dims;
  for (const Dim& d : shape.without({without})) dims.push_back(Shape({d}).to_string());
  std::sort(dims.begin(), dims.end());
  return dims;
}

/// `dim` is "" if they must agree in all dims.
void require_equal_but(const std::vector<Tensor>& xs, const std::string& dim) {
  TESSERA_REQUIRE(!xs.empty(), "there are no operands");
  for (const Tensor& x : xs) {
    TESSERA_REQUIRE(
        sorted_dims(x.shape(), dim) == sorted_dims(xs[0].shape(), dim),
        "operands {} and {} differ{}", xs[0].shape().to_string(), x.shape().to_string(),
        dim.empty() ? "; they must have the same dims" : " in more than dim '" + dim + "'");
    TESSERA_REQUIRE(x.dtype() == xs[0].dtype(), "operands are {} and {}; use cast()",
                    to_string(xs[0].dtype()), to_string(x.dtype()));
  }
}

// Each part is padded to the whole size and the results are added. This is linear, so it works for
// partial values and has a gradient.
Tensor join(const std::vector<Tensor>& xs, const std::string& dim, Loc at) {
  require_equal_but(xs, dim);
  Wide sizes = 0;
  for (const Tensor& x : xs) sizes += x.dim(dim).size;
  const int64_t total = checked_size(sizes, "dim '" + dim + "' of all operands");
  int64_t before = 0;
  Tensor result;
  for (const Tensor& x : xs) {
    const int64_t size = x.dim(dim).size;
    Tensor part = pad(x, dim, before, total - before - size, 0, at);
    before += size;
    if (result.empty()) {
      result = part;
      continue;
    }
    if (!(part.shape() == result.shape())) part = transpose(part, result.shape(), at);
    result = x.dtype() == DType::bool_ ? logical_or(result, part, at) : add(result, part, at);
  }
  return result;
}

}  // namespace

namespace {
/// concat() where the run says how long operands are: each lies where those before it end.
Tensor join_bounded(const std::vector<Tensor>& xs, const std::string& dim, Loc at) {
  Graph& g = xs[0].graph();
  require_equal_but(xs, dim);
  Wide bound = 0;
  for (const Tensor& x : xs) bound += x.dim(dim).size;
  const Dim whole(dim, checked_size(bound, "dim '" + dim + "' of all operands"));
  const Tensor place = iota(g, whole, DType::int32, at);
  Tensor begin = constant(g, 0, DType::int32, {}, at), result;
  for (const Tensor& x : xs) {
    const Dim own = x.dim(dim);
    const Tensor part =
        take_along(with_fixed(x, dim, 0, at), sub(place, begin, at), dim, OutOfRange::zero, at);
    result = result.empty()              ? part
             : x.dtype() == DType::bool_ ? logical_or(result, part, at)
                                         : add(result, part, at);
    begin = add(begin, dim_size(g, own, DType::int32, at), at);
  }
  return transpose(result, replaced(xs[0].shape(), {dim}, {whole}), at);
}
}  // namespace

Tensor concat(const std::vector<Tensor>& xs, const std::string& dim, Loc at) {
  return on_behalf_of("concat", at, [&] {
    const bool bounded = std::any_of(xs.begin(), xs.end(), [&](const Tensor& x) {
      return x.shape().has(dim) && x.dim(dim).is_bounded;
    });
    return bounded ? join_bounded(xs, dim, at) : join(xs, dim, at);
  });
}

Tensor stack(const std::vector<Tensor>& xs, const std::string& dim, Loc at) {
  return on_behalf_of("stack", at, [&] {
    require_equal_but(xs, "");
    std::vector<Tensor> parts;
    for (const Tensor& x : xs) {
      std::vector<Dim> dims = {Dim(dim, 1)};
      dims.insert(dims.end(), xs[0].shape().begin(), xs[0].shape().end());
      Tensor same = x.shape() == xs[0].shape() ? x : transpose(x, xs[0].shape(), at);
      parts.push_back(reshape(same, Shape(dims), at));
    }
    return join(parts, dim, at);
  });
}

}  // namespace tessera
