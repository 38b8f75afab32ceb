// Layers that PyTorch's training graph keeps whole: embeddings, norms, attention, convolutions,
// pooling, dropout and losses. They become composites, which have kernels.
#include <algorithm>
#include <cmath>

#include "pytorch/aten.h"
#include "tessera/nn_attention.h"
#include "tessera/nn_layers.h"

namespace tessera::pytorch {

namespace {

std::vector<Value> embedding(Call& c) {
  const Value table = c.value("weight"), index = c.value("indices");
  const int64_t padding = c.whole("padding_idx", -1);
  if (c.flag("scale_grad_by_freq", false))
    c.refuse("scales gradients by frequency, which Tessera does not know");
  if (!index.is_constant) {
    c.role(table.axes[0], "vocab", 60);
    c.role(table.axes[1], "d_model", 60);
  }
  return {c.joined("ve,...->...e", {table, index}, [&](const Joined& j) {
    const Dim rows = merged(j.of('v'));
    const Tensor w = merge(Call::having(j.x[0], j.of('v')), j.of('v'), rows);
    const Tensor y = gather(w, j.x[1], rows.name);
    // The row of padding has no gradient.
    return padding < 0
               ? y
               : where(not_equal(j.x[1], static_cast<double>(padding)), y, stop_gradient(y));
  })};
}

/// f(x, dim, scale, bias) over the last `rank` axes as one.
Value normed(Call& c, const Value& x, size_t rank, const std::optional<Value>& weight,
             const std::optional<Value>& bias, const std::string& role,
             const std::function<Tensor(Tensor, const std::string&, Tensor, Tensor)>& f) {
  const std::string axes = std::string("nopqrs").substr(0, rank);
  if (rank == 1) c.role(x.axes.back(), role, 30);
  return c.joined(
      "..." + axes + "," + axes + "," + axes + "->..." + axes, {x, weight, bias},
      [&](const Joined& j) {
        std::vector<Dim> over;
        for (const char label : axes)
          for (const Dim& d : j.of(label)) over.push_back(d);
        const Dim all = merged(over);
        const auto as_one = [&](const Tensor& t) {
          return merge(Call::having(t, over), over, all);
        };
        const auto number = [&](double n) {
          return tessera::constant(c.graph(), n, c.dtype(), Shape({all}));
        };
        const Tensor scale = j.x[1].empty() ? number(1) : as_one(tessera::cast(j.x[1], c.dtype()));
        const Tensor shift = j.x[2].empty() ? number(0) : as_one(tessera::cast(j.x[2], c.dtype()));
        return unmerge(f(as_one(tessera::cast(j.x[0], c.dtype())), all.name, scale, shift), all,
                       over);
      });
}

std::vector<Value> layer_norm_rule(Call& c) {
  return {normed(c, c.value("input"), c.list("normalized_shape").size(), c.find("weight"),
                 c.find("bias"), "d_model",
                 [&](Tensor x, const std::string& dim, Tensor scale, Tensor bias) {
                   return layer_norm(x, dim, scale, bias, c.number("eps", 1e-5));
                 })};
}

std::vector<Value> rms_norm_rule(Call& c) {
  return {normed(c, c.value("input"), c.list("normalized_shape").size(), c.find("weight"), {},
                 "d_model", [&](Tensor x, const std::string& dim, Tensor scale, Tensor) {
                   return rms_norm(x, dim, scale, c.number("eps", 1.1920928955078125e-07));
                 })};
}

/// Axis 1 has channels: x with it at the end.
Value channels_last(Call& c, const Value& x) {
  AxisList axes = x.axes;
  std::rotate(axes.begin() + 1, axes.begin() + 2, axes.end());
  return c.moved(x, axes);
}
Value channels_first(Call& c, const Value& x) {
  AxisList axes = x.axes;
  std::rotate(axes.begin() + 1, axes.end() - 1, axes.end());
  return c.moved(x, axes);
}

std::vector<Value> batch_norm_rule(Call& c) {
  const std::optional<Value> mean = c.find("running_mean"), variance = c.find("running_var");
  const bool trains = (c.flag("training", false) && c.trains()) || !mean || !variance;
  const double momentum = c.number("momentum", 0.1), eps = c.number("eps", 1e-5);
  const Value x = channels_last(c, c.value("input"));
  c.role(x.axes.back(), "channels", 10);
  std::optional<Value> new_mean, new_variance;
  const Value y =
      c.joined("...c,c,c,c,c->...c", {x, c.find("weight"), c.find("bias"), mean, variance},
               [&](const Joined& j) {
                 const auto number = [&](double n) {
                   return tessera::constant(c.graph(), n, c.dtype(), shape_of(j.of('c')));
                 };
                 const Tensor scale = j.x[1].empty() ? number(1) : Call::having(j.x[1], j.of('c'));
                 const Tensor bias = j.x[2].empty() ? number(0) : Call::having(j.x[2], j.of('c'));
                 if (!trains) return (j.x[0] - j.x[3]) * (rsqrt(j.x[4] + eps) * scale) + bias;
                 std::vector<Dim> over;
                 double count = 1;
                 for (const auto& [label, dims] : j.dims) {
                   if (label == 'c') continue;
                   for (const Dim& d : dims)
                     over.push_back(d), count *= static_cast<double>(d.size);
                 }
                 const BatchNormed n = batch_normed(Call::having(j.x[0], j.out), scale, bias,
                                                    Axes(names_of(over)), eps);
                 if (mean && variance) {
                   new_mean = mean, new_variance = variance;
                   new_mean->tensor = j.x[3] * (1 - momentum) + n.mean * momentum;
                   new_variance->tensor =
                       j.x[4] * (1 - momentum) + n.variance * (momentum * count / (count - 1));
                 }
                 return n.y;
               });
  if (new_mean) c.overwrite("running_mean", *new_mean), c.overwrite("running_var", *new_variance);
  return {channels_first(c, y)};
}

std::vector<Value> group_norm_rule(Call& c) {
  const Value x = channels_last(c, c.value(c.is_given("input") ? "input" : "self"));
  const int64_t groups = std::max<int64_t>(1, c.whole("num_groups"));
  if (!c.cut(x.axes.back(), c.size(x.axes.back()) / groups))
    c.refuse("has groups of channels that the program views in other parts");
  c.role(x.axes.back(), "channels", 10);
  const Value y =
      c.joined("...c,c,c->...c", {x, c.find("weight"), c.find("bias")}, [&](const Joined& j) {
        std::vector<Dim> over;
        int64_t inner = 1;
        const int64_t per_group = c.size(x.axes.back()) / groups;
        for (size_t i = j.of('c').size(); i-- > 0 && inner < per_group; inner *= j.of('c')[i].size)
          over.push_back(j.of('c')[i]);
        for (int label = -1; j.dims.count(label) != 0 && j.dims.count(label - 1) != 0;
             --label)  // all but the batch
          over.insert(over.end(), j.dims.at(label).begin(), j.dims.at(label).end());
        const Axes axes(names_of(over));
        const Tensor all = Call::having(j.x[0], j.out);
        const Tensor centred = all - reduce_mean(all, axes);
        Tensor y = centred * rsqrt(reduce_mean(square(centred), axes) + c.number("eps", 1e-5));
        if (!j.x[1].empty()) y = y * j.x[1];
        return j.x[2].empty() ? y : y + j.x[2];
      });
  return {channels_first(c, y)};
}

std::vector<Value> dropout_rule(Call& c) {
  const double rate = c.number("p", 0.5);
  const bool drops = rate > 0 && c.flag("train", true) && c.trains();
  const Value x = c.value(c.is_given("input") ? "input" : "self");
  return {c.made(x.axes, [&] { return drops ? dropout(c.full(x), rate) : x.tensor; })};
}

// ----------------------------------------------------------------------------------------
// attention

/// What a constant mask of queries by keys says by its values: causal, a window, or nothing.
struct MaskStructure {
  bool hides_nothing = false, causal = false;
  std::optional<int64_t> window;
};

/// Whether element (i, j) of a constant mask is seen: true, or 0 as an addend. Nothing if addends
/// are biases.
std::optional<std::vector<bool>> seen(const Array& mask) {
  constexpr double kHidden = -1e30;
  std::vector<bool> result;
  for (int64_t i = 0; i < mask.elements(); ++i) {
    const double x = mask.at(i);
    if (is_floating(mask.dtype) && x != 0 && x > (mask.dtype == DType::float16 ? -6e4 : kHidden))
      return {};
    result.push_back(is_floating(mask.dtype) ? x == 0 : x != 0);
  }
  return result;
}

std::optional<MaskStructure> structure_of(const Array& mask, const std::string& queries,
                                          const std::string& keys, int64_t n, int64_t m) {
  const std::optional<std::vector<bool>> visible = seen(mask);
  if (!visible) return {};
  MaskStructure s;
  s.hides_nothing = std::all_of(visible->begin(), visible->end(), [](bool v) { return v; });
  if (s.hides_nothing) return s;
  if (mask.dims.size() != 2 || n != m) return {};
  const bool turned = mask.dims[0] == keys && mask.dims[1] == queries;
  if (!turned && (mask.dims[0] != queries || mask.dims[1] != keys)) return {};
  const auto sees = [&](int64_t i, int64_t j) {
    return (*visible)[static_cast<size_t>(turned ? j * n + i : i * n + j)];
  };
  int64_t window = 0;
  while (window < n && sees(n - 1, n - 1 - window)) ++window;
  for (const bool causal : {true, false}) {
    bool fits = true;
    for (int64_t i = 0; i < n && fits; ++i)
      for (int64_t j = 0; j < n && fits; ++j)
        fits = sees(i, j) == ((j <= i || !causal) && i - j < window && j - i < window);
    if (!fits) continue;
    s.causal = causal;
    if (window < n) s.window = window;
    return s;
  }
  return {};
}

std::vector<Value> attention_rule(Call& c) {
  const Value q = c.value("query");
  Value k = c.value("key"), v = c.value("value");
  std::optional<Value> mask = c.find("attn_mask");
  const size_t rank = q.axes.size();
  if (rank < 2) c.refuse("has queries without positions");
  if (rank > 2) {
    Value* const both[] = {&k, &v};
    for (Value* x : both) {  // grouped keys: heads of queries are those of keys times some per key
      const int64_t heads = c.size(q.axes[rank - 3]), keys = c.size(x->axes[x->axes.size() - 3]);
      if (!c.flag("enable_gqa", false) || heads == keys || keys < 1) continue;
      for (const Use& use : c.fresh(heads / keys, x->axes))
        x->axes[x->axes.size() - 3].push_back(use);
    }
    c.role(q.axes[rank - 3], "heads", 80);
  }
  c.role(q.axes[rank - 1], "d_head", 70);
  c.role(v.axes[v.axes.size() - 1], "d_head", 75);
  const auto atoms_of = [&](const Axis& axis) {
    std::vector<int> atoms;
    for (const Use& use : c.expand(axis)) atoms.push_back(use.atom);
    return atoms;
  };
  const bool same = atoms_of(q.axes.back()) == atoms_of(v.axes.back());
  const std::string spec =
      same ? "...le,...me,...me,...lm->...le" : "...le,...me,...mf,...lm->...lf";
  const char out_label = same ? 'e' : 'f';
  return {c.joined(spec, {q, k, v, mask}, [&](const Joined& j) {
    const Dim l = merged(j.of('l'), "unit_query"), m = merged(j.of('m'), "unit_key"),
              f = merged(j.of(out_label));
    // Rotary positions view d_head of queries and keys as two: together it is that of values.
    const Dim all = merged(j.of('e')), e = all.size == f.size ? f : all;
    const auto as_one = [](Tensor t, const std::vector<Dim>& dims, const Dim& to) {
      return merge(Call::having(t, dims), dims, to);
    };
    const Tensor query = as_one(as_one(j.x[0], j.of('e'), e), j.of('l'), l);
    const Tensor key = as_one(as_one(j.x[1], j.of('e'), e), j.of('m'), m);
    const Tensor value = as_one(as_one(j.x[2], j.of(out_label), f), j.of('m'), m);
    nn::BiasedOptions o;
    o.length = l.name, o.memory_length = m.name, o.key_dim = e.name;
    o.causal = c.flag("is_causal", false);
    o.scale = c.number("scale", 0);
    o.dropout = c.trains() ? c.number("dropout_p", 0) : 0;
    Tensor visible;
    if (mask && mask->array && mask->axes.size() >= 2) {
      const std::vector<Dim> rows = c.dims(mask->axes[mask->axes.size() - 2]),
                             columns = c.dims(mask->axes.back());
      if (rows.size() == 1 && columns.size() == 1) {
        const auto s = structure_of(*mask->array, rows[0].name, columns[0].name, l.size, m.size);
        if (s) o.causal = o.causal || s->causal, o.window = s->window, mask.reset();
      } else if (mask->array->dims.empty()) {
        const auto s = structure_of(*mask->array, l.name, m.name, l.size, m.size);
        if (s && s->hides_nothing) mask.reset();
      }
    }
    if (mask) {
      Tensor given = j.x[3];
      if (j.of('l').size() > 1 && !present(given, j.of('l')).empty())
        given = as_one(given, j.of('l'), l);
      if (j.of('m').size() > 1 && !present(given, j.of('m')).empty())
        given = as_one(given, j.of('m'), m);
      if (mask->dtype == DType::bool_) {
        visible = given;
      } else if (mask->array && seen(*mask->array)) {
        visible = equal(given, 0.0);
      } else {
        o.bias = tessera::cast(given, c.dtype());
      }
    }
    if (!visible.empty() && visible.shape().rank() == 0) visible = Call::having(visible, {m});
    const Tensor y = o.bias.empty() ? attention(query, key, value, visible, o)
                                    : nn::biased_attention(query, key, value, visible, o);
    return unmerge(unmerge(y, f, j.of(out_label)), l, j.of('l'));
  })};
}

// --------------------------------------------------------------------- convolutions and pooling

/// Numbers for `count` spatial axes, of which one stands for all.
std::vector<int64_t> for_each_axis(const Call& c, const std::string& arg, size_t count,
                                   int64_t fallback) {
  std::vector<int64_t> all = c.list(arg, std::vector<int64_t>(count, fallback));
  if (all.empty()) all.push_back(fallback);
  if (all.size() == 1) all.resize(count, all[0]);
  if (all.size() != count)
    c.refuse(fmt::format("has {} numbers as its argument '{}'", all.size(), arg));
  return all;
}

/// Axis d of x has one dim: that of the axis, or one for several.
Tensor one_dim(const Call& c, Tensor x, const Axis& axis, const Dim& to) {
  const std::vector<Dim> dims = c.dims(axis);
  return merge(Call::having(x, dims), dims, to);
}

const char* const kSpatialNames[] = {"depth", "height", "width"};

void spatial_roles(Call& c, const AxisList& axes, size_t count) {
  for (size_t i = 0; i < count; ++i)
    c.role(axes[axes.size() - count + i], count == 1 ? "length" : kSpatialNames[3 - count + i], 15);
}

template <int spatial>
std::vector<Value> convolution(Call& c) {
  constexpr auto count = static_cast<size_t>(spatial);
  Value x = c.value("input"), w = c.value("weight");
  if (x.axes.size() == count + 1) x.axes.insert(x.axes.begin(), Axis());
  const int64_t groups = std::max<int64_t>(1, c.whole("groups", 1));
  const std::vector<int64_t> stride = for_each_axis(c, "stride", count, 1),
                             dilation = for_each_axis(c, "dilation", count, 1);
  std::vector<int64_t> before(count, 0), after(count, 0);
  if (c.is_given("padding") && std::holds_alternative<std::string>(*c.node().find("padding"))) {
    for (size_t i = 0; i < count && c.text("padding", "") == "same"; ++i) {
      const int64_t all = dilation[i] * (c.size(w.axes[2 + i]) - 1);
      before[i] = all / 2, after[i] = all - all / 2;
    }
  } else {
    before = after = for_each_axis(c, "padding", count, 0);
  }
  spatial_roles(c, x.axes, count);
  // Channels of groups have an axis of their own.
  const Axis in = x.axes[1], out = w.axes[0];
  AxisList xs = {x.axes[0], {}, in}, ws = {{}, out, w.axes[1]};
  if (groups > 1) {
    if (!c.cut(in, c.size(in) / groups) || !c.cut(out, c.size(out) / groups))
      c.refuse("has groups of channels that the program views in other parts");
    std::tie(xs[2], xs[1]) = halves(c.atoms(), c.expand(in), c.size(in) / groups);
    std::tie(ws[1], ws[0]) = halves(c.atoms(), c.expand(out), c.size(out) / groups);
  }
  c.role(groups > 1 ? ws[1] : out, "channels", 5);
  for (size_t i = 0; i < count; ++i) {
    xs.push_back(x.axes[2 + i]), ws.push_back(w.axes[2 + i]);
    c.role(ws.back(), count == 1 ? "filter" : std::string("filter_") + kSpatialNames[3 - count + i],
           30);
  }
  const std::string s = std::string("xyz").substr(0, count),
                    k = std::string("uvw").substr(0, count);
  std::optional<Value> bias = c.find("bias");
  if (bias && groups > 1) {
    c.unify(bias->axes[0], out);
    AxisList split(2);
    std::tie(split[1], split[0]) = halves(c.atoms(), c.expand(bias->axes[0]), c.size(out) / groups);
    bias = c.moved(*bias, split);
  } else if (bias) {
    bias = c.moved(*bias, {{}, bias->axes[0]});
  }
  const Value y = c.joined(
      "ngi" + s + ",goi" + k + ",go->ngo" + s, {c.moved(x, xs), c.moved(w, ws), bias},
      [&](const Joined& j) {
        ConvOptions o;
        o.padding = Padding::given;
        Tensor a = j.x[0], b = j.x[1];
        for (size_t i = 0; i < count; ++i) {
          const Dim dim = merged(j.of(s[i])).renamed(fmt::format("spatial{}", i)),
                    filter = merged(j.of(k[i])).renamed(fmt::format("filter{}", i));
          a = merge(Call::having(a, j.of(s[i])), j.of(s[i]), dim);
          b = merge(Call::having(b, j.of(k[i])), j.of(k[i]), filter);
          ConvDim d;
          d.dim = dim.name, d.filter = filter.name;
          d.stride = stride[i], d.dilation = dilation[i], d.before = before[i], d.after = after[i];
          o.dims.push_back(d);
        }
        a = Call::having(a, j.of('i')), b = Call::having(b, j.of('i'));
        for (const Dim& d : j.of('g')) o.groups.push_back(d.name);
        a = Call::having(a, j.of('g')), b = Call::having(b, j.of('g'));
        const Tensor r = conv(tessera::cast(a, c.dtype()), tessera::cast(b, c.dtype()), o);
        return bias ? r + j.x[2] : r;
      });
  AxisList axes = {y.axes[0], y.axes[1]};
  axes[1].insert(axes[1].end(), y.axes[2].begin(), y.axes[2].end());
  axes.insert(axes.end(), y.axes.begin() + 3, y.axes.end());
  std::vector<int64_t> sizes = c.meta().sizes;
  if (sizes.size() == count + 1) sizes.insert(sizes.begin(), 1);
  for (size_t i = 0; i < count; ++i) {
    if (c.size(axes[2 + i]) == sizes[2 + i] && stride[i] == 1) continue;
    axes[2 + i] = {};
    axes[2 + i] = c.fresh(sizes[2 + i], axes);
  }
  Value named = c.made(axes, [&] {
    Tensor t = y.tensor;
    for (size_t i = 0; i < count; ++i) {
      const Dim from(fmt::format("spatial{}", i), sizes[2 + i]);
      t = c.dims(axes[2 + i]).empty() ? pick(t, from.name, 0)
                                      : unmerge(t, from, c.dims(axes[2 + i]));
    }
    return t;
  });
  if (c.meta().sizes.size() == count + 1) named.axes.erase(named.axes.begin());
  return {named};
}

template <int spatial, bool takes_maximum>
std::vector<Value> pooled(Call& c) {
  constexpr auto count = static_cast<size_t>(spatial);
  const Value x = c.value("self");
  const std::vector<int64_t> window = for_each_axis(c, "kernel_size", count, 1);
  std::vector<int64_t> stride = c.list("stride", std::vector<int64_t>());
  if (stride.empty()) stride = window;
  if (stride.size() == 1) stride.resize(count, stride[0]);
  const std::vector<int64_t> padding = for_each_axis(c, "padding", count, 0),
                             dilation = for_each_axis(c, "dilation", count, 1);
  if (c.is_given("divisor_override"))
    c.refuse("overrides its divisor, which Tessera does not know");
  spatial_roles(c, x.axes, count);
  AxisList axes = x.axes;
  const size_t first = axes.size() - count;
  for (size_t i = 0; i < count; ++i) {
    axes[first + i] = {};
    axes[first + i] = c.fresh(c.meta().sizes[first + i], axes);
  }
  return {c.made(axes, [&] {
    PoolOptions o;
    o.dims.clear();
    o.padding = Padding::given;
    o.count_padding = c.flag("count_include_pad", true);
    Tensor y = x.tensor;
    for (size_t i = 0; i < count; ++i) {
      const Axis& axis = x.axes[first + i];
      const Dim dim(fmt::format("spatial{}", i), c.size(axis));
      y = one_dim(c, y, axis, dim);
      const int64_t out = c.meta().sizes[first + i], span = dilation[i] * (window[i] - 1) + 1;
      const int64_t after =
          std::max<int64_t>(0, (out - 1) * stride[i] + span - dim.size - padding[i]);
      if (c.flag("ceil_mode", false) &&
          after > padding[i]) {  // what lies beyond the padding does not count
        if (!takes_maximum && padding[i] > 0)
          c.refuse("averages windows that leave padding, which Tessera does not know");
        o.count_padding = false;
      }
      o.dims.push_back({dim.name, window[i], stride[i], dilation[i], padding[i],
                        std::max(after, c.flag("ceil_mode", false) ? after : padding[i])});
    }
    y = takes_maximum ? max_pool(y, o) : avg_pool(y, o);
    for (size_t i = 0; i < count; ++i) {
      const Dim from(fmt::format("spatial{}", i), c.meta().sizes[first + i]);
      y = c.dims(axes[first + i]).empty() ? pick(y, from.name, 0)
                                          : unmerge(y, from, c.dims(axes[first + i]));
    }
    return y;
  })};
}

/// Means over equal blocks: of an axis that is cut into as many as the result has.
template <int spatial>
std::vector<Value> adaptive_mean(Call& c) {
  constexpr auto count = static_cast<size_t>(spatial);
  const Value x = c.value("self");
  AxisList axes = x.axes;
  AxisList gone;
  spatial_roles(c, x.axes, count);
  for (size_t d = axes.size() - count; d < axes.size(); ++d) {
    const int64_t n = c.size(axes[d]), parts = c.meta().sizes[d];
    if (parts < 1 || n % parts != 0 || !c.cut(axes[d], n / parts))
      c.refuse(fmt::format("averages {} elements to {}, which are no equal parts", n, parts));
    const auto [low, high] = halves(c.atoms(), c.expand(axes[d]), n / parts);
    gone.push_back(low);
    axes[d] = high;
  }
  return {c.made(axes, [&] {
    std::vector<Dim> over = present(x.tensor, c.dims(gone));
    return over.empty() ? x.tensor : reduce_mean(x.tensor, Axes(names_of(over)));
  })};
}

/// Row o of [out, in]: the weights of the elements of which element o is made.
Array interpolation(int64_t in, int64_t out, bool linear, bool align_corners, double scale,
                    const Dim& to, const Dim& from) {
  Array weights(DType::float32, {to.name, from.name}, {out, in});
  const double step =
      align_corners ? (out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0)
                    : (scale > 0 ? 1 / scale : static_cast<double>(in) / static_cast<double>(out));
  for (int64_t o = 0; o < out; ++o) {
    float* const row = weights.data<float>() + o * in;
    const auto at = static_cast<double>(o);
    if (!linear) {
      row[std::min(in - 1, static_cast<int64_t>(std::floor(at * step)))] = 1;
      continue;
    }
    const double place = align_corners ? at * step : std::max(0.0, (at + 0.5) * step - 0.5);
    const int64_t low = std::min(in - 1, static_cast<int64_t>(std::floor(place)));
    const auto part = static_cast<float>(place - static_cast<double>(low));
    row[low] += 1 - part;
    row[std::min(in - 1, low + 1)] += part;
  }
  return weights;
}

/// Each spatial axis by its matrix of weights.
template <bool linear>
std::vector<Value> interpolated(Call& c) {
  Value x = c.value(c.is_given("input") ? "input" : "self");
  const std::vector<int64_t> sizes = c.meta().sizes;
  std::vector<double> scales;
  if (const Argument* given = c.node().find("scale_factors"))
    if (const auto* all = std::get_if<std::vector<double>>(given)) scales = *all;
  for (size_t d = 2; d < sizes.size(); ++d) {
    const int64_t n = c.size(x.axes[d]);
    const double scale = d - 2 < scales.size() ? scales[d - 2] : 0;
    if (n == sizes[d]) continue;
    AxisList axes = x.axes;
    axes[d] = {};
    axes[d] = c.fresh(sizes[d], axes);
    x = c.made(axes, [&] {
      const Dim from("interpolated__from", n), to("interpolated__to", sizes[d]);
      const Tensor w = tessera::constant(
          c.graph(),
          interpolation(n, sizes[d], linear, c.flag("align_corners", false), scale, to, from));
      const Tensor t = one_dim(c, tessera::cast(x.tensor, DType::float32), x.axes[d], from);
      const Tensor y = einsum({t, w}, t.shape().without({from.name}).united(Shape({to})));
      return unmerge(tessera::cast(y, c.dtype()), to, c.dims(axes[d]));
    });
  }
  return {x};
}

// --------------------------------------------------------------------------------------------
// losses

enum class Reduction { none, mean, sum };

Tensor reduced(const Tensor& x, int64_t reduction) {
  if (static_cast<Reduction>(reduction) == Reduction::none) return x;
  return static_cast<Reduction>(reduction) == Reduction::mean ? mean_all(x) : sum_all(x);
}

std::vector<Value> cross_entropy_rule(Call& c) {
  Value logits = c.value("self");
  const Value labels = c.value("target");
  if (c.is_given("weight")) c.refuse("weighs classes, which Tessera does not know");
  if (is_floating(labels.dtype)) c.refuse("has soft labels, which Tessera does not know");
  if (logits.axes.size() > 2) logits = channels_last(c, logits);
  const int64_t ignored = c.whole("ignore_index", -100), reduction = c.whole("reduction", 1);
  const double smoothing = c.number("label_smoothing", 0);
  const bool keeps = static_cast<Reduction>(reduction) == Reduction::none;
  return {c.joined(keeps ? "...c,...->..." : "...c,...->", {logits, labels}, [&](const Joined& j) {
    const Dim classes = merged(j.of('c'));
    std::vector<Dim> rows;
    for (const auto& [label, dims] : j.dims)
      if (label != 'c') rows.insert(rows.end(), dims.begin(), dims.end());
    const Tensor x = merge(Call::having(j.x[0], j.of('c')), j.of('c'), classes);
    const Tensor all = Call::having(j.x[1], rows);
    const Tensor counts = not_equal(all, static_cast<double>(ignored));
    const Tensor safe = where(counts, all, 0.0);
    Tensor loss =
        smoothing == 0
            ? cross_entropy(x, safe, classes.name)
            : cross_entropy(x,
                            nn::smoothed(safe, classes,
                                         smoothing * static_cast<double>(classes.size - 1) /
                                             static_cast<double>(classes.size),
                                         x.dtype()),
                            classes.name);
    loss = where(counts, loss, 0.0);
    if (keeps) return tessera::cast(loss, c.dtype());
    const Tensor total = sum_all(loss);
    if (static_cast<Reduction>(reduction) == Reduction::sum) return tessera::cast(total, c.dtype());
    return tessera::cast(total / sum_all(tessera::cast(counts, loss.dtype())), c.dtype());
  })};
}

/// Of classes that are the last axis; with a shift, label i + shift belongs to logits i along
/// axis 1.
std::vector<Value> next_token_loss(Call& c) {
  const Value logits = c.value("self"), labels = c.value("target");
  const int64_t shifted = c.whole("shift", 0);
  c.role(logits.axes.back(), "vocab", 46);
  return {c.joined("...c,...->", {logits, labels}, [&](const Joined& j) {
    const Dim classes = merged(j.of('c'));
    const Tensor x = merge(Call::having(j.x[0], j.of('c')), j.of('c'), classes);
    if (shifted == 0)
      return tessera::cast(mean_all(cross_entropy(x, j.x[1], classes.name)), c.dtype());
    if (labels.axes.size() < 2 || c.dims(labels.axes[1]).size() != 1)
      c.refuse("shifts labels that have no positions");
    const std::vector<Dim> along = j.dims.at(1 - static_cast<int>(labels.axes.size()) + 0);
    const Dim length = along.at(0);
    const Tensor next = shift(j.x[1], length.name, -shifted);
    const Tensor counts = less(iota(c.graph(), length), static_cast<double>(length.size - shifted));
    const Tensor losses = where(counts, cross_entropy(x, next, classes.name), 0.0);
    return tessera::cast(mean_all(losses) * (static_cast<double>(length.size) /
                                             static_cast<double>(length.size - shifted)),
                         c.dtype());
  })};
}

std::vector<Value> squared_error(Call& c) {
  const Value y = c.pointwise({c.value("self"), c.value("target")}, c.dtype(),
                              [](const auto& x) { return square(x[0] - x[1]); });
  const int64_t reduction = c.whole("reduction", 1);
  if (static_cast<Reduction>(reduction) == Reduction::none) return {y};
  return {c.made({}, [&] { return reduced(c.full(y), reduction); })};
}

const Row kLayers[] = {
    {"embedding.default", embedding},
    {"layer_norm.default", layer_norm_rule},
    {"rms_norm.default", rms_norm_rule},
    {"batch_norm.default", batch_norm_rule},
    {"group_norm.default", group_norm_rule},
    {"dropout.default", dropout_rule},
    {"scaled_dot_product_attention.default", attention_rule},
    {"conv1d.default conv1d.padding", convolution<1>},
    {"conv2d.default conv2d.padding", convolution<2>},
    {"conv3d.default conv3d.padding", convolution<3>},
    {"max_pool1d.default", pooled<1, true>},
    {"max_pool2d.default", pooled<2, true>},
    {"avg_pool1d.default", pooled<1, false>},
    {"avg_pool2d.default", pooled<2, false>},
    {"adaptive_avg_pool1d.default", adaptive_mean<1>},
    {"adaptive_avg_pool2d.default", adaptive_mean<2>},
    {"upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest2d.default",
     interpolated<false>},
    {"upsample_linear1d.vec upsample_bilinear2d.vec upsample_bilinear2d.default",
     interpolated<true>},
    {"cross_entropy_loss.default", cross_entropy_rule},
    {"tessera.cross_entropy", next_token_loss},
    {"mse_loss.default", squared_error},
};

}  // namespace

std::span<const Row> layer_rows() { return kLayers; }

}  // namespace tessera::pytorch
