// Convolution as one op between three tensors x, filter and y, with an index relation for each
// spatial dim. Given any two of them it computes the third, so its gradients are the same op. It
// declares only its index space: if a spatial dim of the result is split, each rank gets the
// interval of the operand that it needs; if a summed dim is split, the result is partial.
#include <algorithm>

#include "base/misspelt.h"
#include "base/sizes.h"
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/bounded.h"
#include "ops/infer.h"
#include "ops/spatial.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kConv;

namespace {

using Names = std::vector<std::string>;
using Numbers = std::vector<int64_t>;

/// The tensor that the op computes. The operands are the other two, in this order.
enum Result : int64_t { kY = 0, kX = 1, kFilter = 2 };
enum class Side { x, filter, y };

/// The tensor that operand `i` is; i = 2: the result.
Side side_of(int64_t result, size_t i) {
  static constexpr Side kSides[3][3] = {{Side::x, Side::filter, Side::y},
                                        {Side::y, Side::filter, Side::x},
                                        {Side::x, Side::y, Side::filter}};
  return kSides[result][i];
}

std::vector<ValueType> infer_conv(const OpCall& call) {
  return {{shape_of(call.attrs), call.in[0].dtype}};
}

/// The relation that a factor is in, or -1.
int relation_of(const IndexSpace& space, int factor) {
  for (size_t s = 0; s < space.relations.size(); ++s) {
    const Relation& r = space.relations[s];
    if (factor == r.in || factor == r.out || factor == r.window) return static_cast<int>(s);
  }
  return -1;
}

class Space {
 public:
  explicit Space(const OpCall& call)
      : call_(call),
        result_(call.attrs.get<int64_t>("result")),
        spatial_(call.attrs.get<Names>("spatial")),
        filters_(call.attrs.get<Names>("filters")) {}

  IndexSpace build() {
    add_images();
    for (size_t s = 0; s < spatial_.size(); ++s) {
      auto get = [&](const char* name) { return call_.attrs.get<Numbers>(name)[s]; };
      const int in = add({spatial_[s], get("in_sizes")}),
                out = add({spatial_[s], get("out_sizes")}),
                window = add({filters_[s], get("window_sizes")});
      space_.relations.push_back(
          {in, out, window, get("strides"), get("dilations"), get("los"), false});
    }
    space_.out = {dims(call_.out[0].shape, side_of(result_, 2))};
    space_.in = {dims(call_.in[0].shape, side_of(result_, 0)),
                 dims(call_.in[1].shape, side_of(result_, 1))};
    for (size_t f = 0; f < space_.factors.size(); ++f)
      space_.factors[f].role = role(static_cast<int>(f));
    return std::move(space_);
  }

 private:
  int add(const Dim& d) {
    space_.factors.push_back({d.name, d.size, Role::map, Combiner::sum});
    return static_cast<int>(space_.factors.size()) - 1;
  }

  /// The dims that x and the result share stand in front: the batch is the outermost dim of a sum
  /// over images, so that a microbatch is a subtree of it (program/sum_order.h).
  void add_images() {
    const Shape* of_side[3] = {};
    for (size_t i = 0; i < 3; ++i)
      of_side[static_cast<size_t>(side_of(result_, i))] =
          i < 2 ? &call_.in[i].shape : &call_.out[0].shape;
    for (const Dim& d : *of_side[static_cast<size_t>(Side::x)]) {
      const bool is_image = of_side[static_cast<size_t>(Side::y)]->has(d.name) &&
                            !of_side[static_cast<size_t>(Side::filter)]->has(d.name) &&
                            std::find(spatial_.begin(), spatial_.end(), d.name) == spatial_.end();
      if (is_image) add(d);
    }
  }

  std::vector<std::vector<int>> dims(const Shape& shape, Side side) {
    std::vector<std::vector<int>> result;
    for (const Dim& d : shape) {
      int f = -1;
      for (size_t s = 0; s < spatial_.size(); ++s) {
        const Relation& r = space_.relations[s];
        if (side == Side::filter ? d.name == filters_[s] : d.name == spatial_[s])
          f = side == Side::x ? r.in : side == Side::y ? r.out : r.window;
      }
      for (size_t g = 0; f < 0 && g < space_.factors.size(); ++g) {
        const bool is_plain = relation_of(space_, static_cast<int>(g)) < 0;
        if (is_plain && space_.factors[g].name == d.name) f = static_cast<int>(g);
      }
      result.push_back({f < 0 ? add(d) : f});
    }
    return result;
  }

  Role role(int factor) const {
    auto in = [&](const std::vector<std::vector<int>>& dims) {
      return std::find(dims.begin(), dims.end(), std::vector<int>{factor}) != dims.end();
    };
    const bool made = in(space_.out[0]), read = in(space_.in[0]) || in(space_.in[1]);
    for (const Relation& r : space_.relations) {
      if (factor == (result_ == kX ? r.out : r.in)) return Role::related;
    }
    return made && read ? Role::map : made ? Role::fresh : Role::reduce;
  }

  const OpCall& call_;
  int64_t result_;
  const Names &spatial_, &filters_;
  IndexSpace space_;
};

IndexSpace conv_factors(const OpCall& call) { return Space(call).build(); }

int64_t conv_flops(const OpCall& call) {
  const IndexSpace space = conv_factors(call);
  Wide n = 2;
  for (size_t f = 0; f < space.factors.size(); ++f) {
    const bool is_in = std::any_of(space.relations.begin(), space.relations.end(),
                                   [&](const Relation& r) { return r.in == static_cast<int>(f); });
    n = std::min<Wide>(n * (is_in ? 1 : space.factors[f].size), kMostElements);
  }
  return static_cast<int64_t>(n);
}

void emit_conv(EmitCall& call) {
  using namespace conv_kinds;
  const int64_t result = call.call.attrs.get<int64_t>("result");
  const std::vector<std::vector<int>>* dims[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    dims[static_cast<size_t>(side_of(result, i))] = i < 2 ? &call.space.in[i] : &call.space.out[0];
  }
  auto has = [&](Side side, int f) {
    const auto& list = *dims[static_cast<size_t>(side)];
    return std::find(list.begin(), list.end(), std::vector<int>{f}) != list.end();
  };
  std::vector<int> plain;
  const Attrs& attrs = call.call.attrs;
  const auto numbers = [&](const char* name) { return attrs.get<Numbers>(name); };
  ConvSpec spec{static_cast<conv_kinds::Result>(result),
                {},
                numbers("in_sizes"),
                numbers("out_sizes"),
                numbers("window_sizes"),
                numbers("strides"),
                numbers("dilations"),
                numbers("los")};
  for (int f = 0; f < std::ssize(call.space.factors); ++f) {
    if (relation_of(call.space, f) >= 0) continue;
    const bool x = has(Side::x, f), filter = has(Side::filter, f), y = has(Side::y, f);
    plain.push_back(f);
    spec.kinds.push_back(x && filter && y ? kGroup
                         : x && y         ? kImages
                         : x && filter    ? kInputs
                                          : kOutputs);
  }
  auto view = [&](const View& natural, Side side) {
    std::vector<int> factors = plain;
    for (const Relation& r : call.space.relations)
      factors.push_back(side == Side::x ? r.in : side == Side::y ? r.out : r.window);
    return align(call, natural, *dims[static_cast<size_t>(side)], factors, true);
  };
  Step& step = call.step;
  step.in = {view(call.in[0], side_of(result, 0)), view(call.in[1], side_of(result, 1))};
  step.out = {view(call.out[0], side_of(result, 2))};
  step.spec = std::move(spec);
  for (const Relation& r : call.space.relations) {
    for (int f : {r.in, r.out, r.window}) step.exprs.push_back(call.offset[f]);
  }
  for (SumOrder::Along& a : step.order.along) {
    const int relation = relation_of(call.space, static_cast<int>(a.dim));
    a.dim = relation < 0 ? std::ranges::find(plain, a.dim) - plain.begin()
                         : std::ssize(plain) + relation;
  }
}

Tensor conv_node(int64_t result, Tensor a, Tensor b, const Shape& out, Attrs attrs, Loc at) {
  const Attrs type = source_attrs(out, a.dtype());
  for (const auto& [name, value] : type.items()) attrs.set(name, value);
  attrs.set("result", result);
  return one(kConv, {a, b}, std::move(attrs), at);
}

/// The gradient of an operand is the same relation solved for that operand, with the gradient in
/// place of the result.
std::vector<Tensor> conv_gradient(const GradCall& c) {
  const int64_t result = c.attrs.get<int64_t>("result");
  std::vector<Tensor> grads;
  for (size_t i = 0; i < 2; ++i) {
    Tensor of_side[3];
    of_side[static_cast<size_t>(side_of(result, 1 - i))] = c.in[1 - i];
    of_side[static_cast<size_t>(side_of(result, 2))] = c.grads[0];
    const Side wanted = side_of(result, i);
    const int64_t makes = wanted == Side::x ? kX : wanted == Side::y ? kY : kFilter;
    const auto operand = [&](size_t k) { return of_side[static_cast<size_t>(side_of(makes, k))]; };
    grads.push_back(
        conv_node(makes, operand(0), operand(1), c.in[i].shape(), c.attrs, Loc::current()));
  }
  return grads;
}

void check_conv(Tensor x, Tensor filter, const ConvOptions& o) {
  TESSERA_REQUIRE(!o.dims.empty(), "there is no spatial dim");
  TESSERA_REQUIRE(is_floating(x.dtype()) && x.dtype() == filter.dtype(),
                  "x is {} and the filter {}; both are of one floating type, use cast()",
                  to_string(x.dtype()), to_string(filter.dtype()));
  for (const std::string& group : o.groups) {
    TESSERA_REQUIRE(x.shape().has(group) && filter.shape().has(group),
                    "group dim '{}' is not in both x {} and filter {}", group,
                    x.shape().to_string(), filter.shape().to_string());
  }
  for (const Dim& d : filter.shape()) {
    const bool spatial = std::any_of(o.dims.begin(), o.dims.end(),
                                     [&](const ConvDim& c) { return c.dim == d.name; });
    TESSERA_REQUIRE(spatial || !x.shape().has(d.name) || x.dim(d.name) == d,
                    "dim '{}' is {} in x but {} in the filter; dims of one name must agree", d.name,
                    x.shape().has(d.name) ? x.dim(d.name).size : 0, d.size);
  }
}

/// A channel of the filter that x lacks is one of the result, unless it is misspelt.
void require_spelt_channels(Tensor x, Tensor filter, const ConvOptions& o) {
  Names spatial, windows;
  for (const ConvDim& c : o.dims) {
    spatial.push_back(c.dim);
    windows.push_back(c.filter.empty() ? "filter_" + c.dim : c.filter);
  }
  require_no_misspelling(x.shape().without(spatial), filter.shape().without(windows));
}

/// The node that computes y from x, or if transposed x from y. Its spatial sizes are those of the
/// side that it computes.
Tensor convolve(Tensor x, Tensor filter, const ConvOptions& o, bool transposed, Loc at) {
  check_conv(x, filter, o);
  Names spatial, filters;
  Numbers in_sizes, out_sizes, windows, strides, dilations, los;
  std::vector<Dim> out;
  for (const ConvDim& c : o.dims) {
    const Dim& window = filter.dim(c.filter.empty() ? "filter_" + c.dim : c.filter);
    TESSERA_REQUIRE(std::find(spatial.begin(), spatial.end(), c.dim) == spatial.end() &&
                        std::find(filters.begin(), filters.end(), window.name) == filters.end(),
                    "spatial dim '{}' with filter dim '{}' is given twice", c.dim, window.name);
    TESSERA_REQUIRE(!x.shape().has(window.name), "x has the filter dim '{}'", window.name);
    TESSERA_REQUIRE(!filter.shape().has(c.dim), "the filter has the spatial dim '{}' of x", c.dim);
    TESSERA_REQUIRE(
        transposed || c.size == 0,
        "size {} of dim '{}' is given, but only conv_transpose() makes a dim of a given size",
        c.size, c.dim);
    const SpatialDim d{c.dim, window.size, c.stride, c.dilation, o.padding, c.before, c.after};
    const Spatial place =
        transposed ? transposed_spatial(x.dim(c.dim), d, c.size) : spatial_of(x.dim(c.dim), d);
    spatial.push_back(c.dim), filters.push_back(window.name);
    in_sizes.push_back(place.in), out_sizes.push_back(place.out), los.push_back(place.lo);
    windows.push_back(window.size);
    strides.push_back(c.stride), dilations.push_back(c.dilation);
  }
  for (const Dim& d : x.shape()) {
    const auto s = std::find(spatial.begin(), spatial.end(), d.name);
    const bool is_group = std::find(o.groups.begin(), o.groups.end(), d.name) != o.groups.end();
    if (s != spatial.end()) {
      out.emplace_back(d.name, (transposed ? in_sizes : out_sizes)[s - spatial.begin()]);
    } else if (is_group || !filter.shape().has(d.name)) {
      out.push_back(d);
    }
  }
  for (const Dim& d : filter.shape()) {
    const bool is_window = std::find(filters.begin(), filters.end(), d.name) != filters.end();
    if (!is_window && !x.shape().has(d.name)) out.push_back(d);
  }
  Attrs attrs = {{"spatial", spatial},     {"filters", filters},     {"in_sizes", in_sizes},
                 {"strides", strides},     {"dilations", dilations}, {"los", los},
                 {"out_sizes", out_sizes}, {"window_sizes", windows}};
  return conv_node(transposed ? kX : kY, x, filter, Shape(out), std::move(attrs), at);
}

}  // namespace

extern const Op kConv = {.name = "conv",
                         .infer = infer_conv,
                         .factors = conv_factors,
                         .linear = {1u, 2u},
                         .gradient = conv_gradient,
                         .flops = conv_flops,
                         .kernel = KernelKind::conv,
                         .emit = emit_conv};

Tensor conv(Tensor x, Tensor filter, const ConvOptions& options, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("conv", at, [&] {
    if (is_users) require_spelt_channels(x, filter, options);
    std::vector<Dim> bounded;
    for (const ConvDim& d : options.dims) {
      if (!x.shape().has(d.dim) || !x.dim(d.dim).is_bounded) continue;
      TESSERA_REQUIRE(
          options.padding == Padding::same && d.stride == 1,
          "dim '{}' is bounded: how many windows there are is only known with Padding::same and "
          "stride 1; reshape() it to a dim of fixed size, where zeros stand for what is not "
          "there",
          d.dim);
      bounded.push_back(x.dim(d.dim));
      x = with_fixed(x, d.dim, 0, at);
    }
    Tensor y = convolve(x, filter, options, false, at);
    for (const Dim& d : bounded) y = with_bound(y, d, at);
    return y;
  });
}

Tensor conv_transpose(Tensor x, Tensor filter, const ConvOptions& options, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("conv_transpose", at, [&] {
    if (is_users) require_spelt_channels(x, filter, options);
    for (const ConvDim& d : options.dims) {
      TESSERA_REQUIRE(
          !x.dim(d.dim).is_bounded,
          "dim '{}' is bounded, and the size of a transposed convolution is fixed; reshape() "
          "it to a dim of fixed size, where zeros stand for what is not there",
          d.dim);
    }
    return convolve(x, filter, options, true, at);
  });
}

Tensor conv2d(Tensor x, Tensor filter, const Conv2dOptions& o, Loc at) {
  const ConvOptions options{
      {{o.height, o.filter_height, o.stride}, {o.width, o.filter_width, o.stride}},
      o.same ? Padding::same : Padding::valid,
      {}};
  const bool is_users = is_users_call(at);
  return on_behalf_of("conv2d", at, [&] {
    if (is_users) require_spelt_channels(x, filter, options);
    return conv(x, filter, options, at);
  });
}

}  // namespace tessera
