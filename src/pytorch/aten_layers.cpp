// Layers that PyTorch's training graph keeps whole: embeddings, norms, attention, convolutions,
// pooling, dropout and losses. They become composites, which have kernels.
#include <algorithm>
#include <cmath>

#include "pytorch/aten.h"
#include "tessera/nn_attention.h"
#include "tessera/nn_layers.h"

namespace tessera::pytorch {

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

namespace {

/// The first of constant numbers n, n + 1, ... along one dim; nothing for others.
std::optional<int64_t> first_of_consecutive(const Value& x) {
  if (!x.array || x.array->dims.size() != 1 || x.array->at(0) < 0) return {};
  for (int64_t i = 1; i < x.array->elements(); ++i)
    if (x.array->at(i) != x.array->at(0) + static_cast<double>(i)) return {};
  return static_cast<int64_t>(x.array->at(0));
}

std::vector<Value> embedding(Call& c) {
  const Value table = c.value("weight"), index = c.value("indices");
  const int64_t padding = c.whole("padding_idx", -1);
  if (c.flag("scale_grad_by_freq", false))
    c.refuse("scales gradients by frequency, which Tessera does not know");
  if (!index.is_constant) {
    c.role(table.axes[0], "vocab", 60);
    c.role(table.axes[1], "d_model", 60);
  } else if (c.counts_up("indices")) {
    c.role(table.axes[0], "positions", 60);
  }
  return {c.joined("ve,...->...e", {table, index}, [&](const Joined& j) {
    const Dim rows = merged(j.of('v'));
    const Tensor w = merge(Call::having(j.x[0], j.of('v')), j.of('v'), rows);
    if (const std::optional<int64_t> first = first_of_consecutive(index); first && padding < 0) {
      const Dim along = j.x[1].shape()[0];
      return rename(slice(w, rows.name, *first, along.size), rows.name, along.name);
    }
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

std::vector<Value> batch_norm_rule(Call& c) {
  const std::optional<Value> mean = c.find("running_mean"), variance = c.find("running_var");
  // One that core ATen has returns moments instead of writing them.
  const bool is_functional = c.node().target.find("_functional.") != std::string::npos;
  const bool trains = (c.flag("training", false) && c.trains()) || !mean || !variance;
  const double momentum = c.number("momentum", 0.1), eps = c.number("eps", 1e-5);
  const Value x = channels_last(c, c.value("input"));
  c.role(x.axes.back(), "channels", 10);
  std::optional<Value> new_mean = mean, new_variance = variance;
  Tensor of_batch, root;
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
                 of_batch = n.mean, root = rsqrt(n.variance + eps);
                 if (mean && variance) {
                   new_mean->tensor = j.x[3] * (1 - momentum) + n.mean * momentum;
                   new_variance->tensor =
                       j.x[4] * (1 - momentum) + n.variance * (momentum * count / (count - 1));
                 }
                 return n.y;
               });
  std::vector<Value> results = {channels_first(c, y)};
  if (is_functional && mean && variance) {
    if (c.builds() && of_batch.empty())
      of_batch = mean->tensor, root = rsqrt(variance->tensor + eps);
    const AxisList channels = {y.axes.back()};
    for (const Tensor& t : {of_batch, root}) results.push_back(c.result(channels, t));
    results.push_back(*new_mean), results.push_back(*new_variance);
  } else if (trains && mean && variance) {
    c.overwrite("running_mean", *new_mean), c.overwrite("running_var", *new_variance);
  }
  return results;
}

std::vector<Value> group_norm_rule(Call& c) {
  const Value x = channels_last(c, c.value(c.is_given("input") ? "input" : "self"));
  const int64_t groups =
      std::max<int64_t>(1, c.whole(c.is_given("group") ? "group" : "num_groups"));
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
    if (rank > 3) c.role(q.axes[rank - 3], "heads", 80);
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
    o.scale = c.number("scale", 0), o.soft_cap = c.number("soft_cap", 0);
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

const char* const kSpatialNames[] = {"depth", "height", "width"};

void spatial_roles(Call& c, const AxisList& axes, size_t count) {
  for (size_t i = 0; i < count; ++i)
    c.role(axes[axes.size() - count + i], count == 1 ? "length" : kSpatialNames[3 - count + i], 15);
}

/// Transposed: weights are [in, out of a group, ...].
template <int spatial, bool transposed>
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
  const Axis in = x.axes[1], both = transposed ? in : w.axes[0];
  AxisList xs = {x.axes[0], {}, in}, ws = {{}, w.axes[0], w.axes[1]};
  if (groups > 1) {
    for (const Axis& axis : {in, w.axes[0]})
      if (!c.cut(axis, c.size(axis) / groups))
        c.refuse("has groups of channels that the program views in other parts");
    std::tie(xs[2], xs[1]) = halves(c.atoms(), c.expand(in), c.size(in) / groups);
    std::tie(ws[1], ws[0]) = halves(c.atoms(), c.expand(w.axes[0]), c.size(w.axes[0]) / groups);
  }
  if (transposed) std::swap(ws[1], ws[2]);
  const int64_t outputs = c.size(ws[1]);
  c.role(ws[1], "channels", 5);
  for (size_t i = 0; i < count; ++i) {
    xs.push_back(x.axes[2 + i]), ws.push_back(w.axes[2 + i]);
    c.role(ws.back(), count == 1 ? "filter" : std::string("filter_") + kSpatialNames[3 - count + i],
           30);
  }
  const std::string s = std::string("xyz").substr(0, count),
                    k = std::string("uvw").substr(0, count);
  std::optional<Value> bias = c.find("bias");
  if (bias && groups > 1) {
    if (!transposed) c.unify(bias->axes[0], both);
    if (!c.cut(bias->axes[0], outputs))
      c.refuse("has groups of channels that the program views in other parts");
    AxisList split(2);
    std::tie(split[1], split[0]) = halves(c.atoms(), c.expand(bias->axes[0]), outputs);
    bias = c.moved(*bias, split);
  } else if (bias) {
    bias = c.moved(*bias, {{}, bias->axes[0]});
  }
  std::vector<int64_t> sizes = c.meta().sizes;
  if (sizes.size() == count + 1) sizes.insert(sizes.begin(), 1);
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
          if (transposed) {  // the size counts output_padding
            d.size = sizes[2 + i];
            d.after =
                std::max<int64_t>(0, (dim.size - 1) * stride[i] + dilation[i] * (filter.size - 1) +
                                         1 - before[i] - d.size);
          }
          o.dims.push_back(d);
        }
        a = Call::having(a, j.of('i')), b = Call::having(b, j.of('i'));
        for (const Dim& d : j.of('g')) o.groups.push_back(d.name);
        a = Call::having(a, j.of('g')), b = Call::having(b, j.of('g'));
        a = tessera::cast(a, c.dtype()), b = tessera::cast(b, c.dtype());
        const Tensor r = transposed ? conv_transpose(a, b, o) : conv(a, b, o);
        return bias ? r + j.x[2] : r;
      });
  AxisList axes = {y.axes[0], y.axes[1]};
  axes[1].insert(axes[1].end(), y.axes[2].begin(), y.axes[2].end());
  axes.insert(axes.end(), y.axes.begin() + 3, y.axes.end());
  for (size_t i = 0; i < count; ++i) {
    if (c.size(axes[2 + i]) == sizes[2 + i] && stride[i] == 1) continue;
    axes[2 + i] = {};
    axes[2 + i] = c.fresh(sizes[2 + i], axes);
  }
  Value named = c.made(axes, [&] {
    Tensor t = y.tensor;
    for (size_t i = 0; i < count; ++i) {
      t = dims_again(c, t, Dim(fmt::format("spatial{}", i), sizes[2 + i]), axes[2 + i]);
    }
    return t;
  });
  if (c.meta().sizes.size() == count + 1) named.axes.erase(named.axes.begin());
  return {named};
}

/// Of any number of axes, as core ATen has it.
std::vector<Value> any_convolution(Call& c) {
  const bool transposed = c.flag("transposed", false);
  switch (c.value("weight").axes.size()) {
    case 3:
      return transposed ? convolution<1, true>(c) : convolution<1, false>(c);
    case 4:
      return transposed ? convolution<2, true>(c) : convolution<2, false>(c);
    case 5:
      return transposed ? convolution<3, true>(c) : convolution<3, false>(c);
    default:
      c.refuse("has a filter of other than 1 to 3 axes");
  }
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
      y = dims_again(c, y, Dim(fmt::format("spatial{}", i), c.meta().sizes[first + i]),
                     axes[first + i]);
    }
    return y;
  })};
}

/// Axis d by a matrix of weights, [to, from].
Value by_weights(Call& c, const Value& x, size_t d, int64_t size,
                 const std::function<std::vector<std::vector<double>>()>& rows) {
  AxisList axes = x.axes;
  axes[d] = {};
  axes[d] = c.fresh(size, axes);
  return c.made(axes, [&] {
    const Dim from("weighted__from", c.size(x.axes[d])), to("weighted__to", size);
    Array weights(DType::float32, {to.name, from.name}, {to.size, from.size});
    float* at = weights.data<float>();
    for (const std::vector<double>& row : rows())
      for (const double w : row) *at++ = static_cast<float>(w);
    const Tensor t = one_dim(c, tessera::cast(x.tensor, DType::float32), x.axes[d], from);
    const Tensor y = einsum({t, tessera::constant(c.graph(), weights)},
                            t.shape().without({from.name}).united(Shape({to})));
    return dims_again(c, tessera::cast(y, c.dtype()), to, axes[d]);
  });
}

/// Means or maxima over equal blocks: of an axis that is cut into as many as the result has. Means
/// of blocks that overlap are products with weights.
template <int spatial, bool takes_maximum>
std::vector<Value> adaptive_pool(Call& c) {
  constexpr auto count = static_cast<size_t>(spatial);
  Value x = c.value("self");
  spatial_roles(c, x.axes, count);
  for (size_t d = x.axes.size() - count; d < x.axes.size(); ++d) {
    const int64_t n = c.size(x.axes[d]), parts = c.meta().sizes[d];
    if (parts < 1) c.refuse("makes no elements");
    if (!c.once(n % parts == 0 && c.cut(x.axes[d], n / parts))) {
      if (takes_maximum)
        c.refuse(
            fmt::format("has maxima of {} elements for {}, which are no equal parts", n, parts));
      x = by_weights(c, x, d, parts, [&] {
        std::vector<std::vector<double>> rows(static_cast<size_t>(parts));
        for (int64_t o = 0; o < parts; ++o) {
          const int64_t begin = o * n / parts, end = ((o + 1) * n + parts - 1) / parts;
          for (int64_t i = 0; i < n; ++i)
            rows[static_cast<size_t>(o)].push_back(
                i >= begin && i < end ? 1 / static_cast<double>(end - begin) : 0);
        }
        return rows;
      });
      continue;
    }
    AxisList axes = x.axes;
    const auto [low, high] = halves(c.atoms(), c.expand(axes[d]), n / parts);
    axes[d] = high;
    x = c.made(axes, [&] {
      const std::vector<Dim> over = present(x.tensor, c.dims(low));
      if (over.empty()) return x.tensor;
      return takes_maximum ? reduce_max(x.tensor, Axes(names_of(over)))
                           : reduce_mean(x.tensor, Axes(names_of(over)));
    });
  }
  return {x};
}

struct Interpolation {
  enum class Kind { nearest, nearest_exact, linear, cubic } kind = Kind::nearest;
  bool align_corners = false, antialias = false;
};

/// Row o: the weights of the elements of which element o is made. `scale`: of the sizes, 0 for
/// their quotient.
std::vector<std::vector<double>> interpolation(int64_t in, int64_t out, const Interpolation& o,
                                               double scale) {
  using Kind = Interpolation::Kind;
  const auto n = static_cast<double>(in);
  const double step = o.align_corners ? (out > 1 ? (n - 1) / static_cast<double>(out - 1) : 0)
                                      : (scale > 0 ? 1 / scale : n / static_cast<double>(out));
  const auto cubic = [](double x, double a) {
    x = std::abs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
  };
  std::vector<std::vector<double>> rows;
  for (int64_t k = 0; k < out; ++k) {
    std::vector<double>& row = rows.emplace_back(static_cast<size_t>(in), 0);
    const auto at = static_cast<double>(k);
    const auto add = [&](int64_t i, double w) {
      row[static_cast<size_t>(std::clamp<int64_t>(i, 0, in - 1))] += w;
    };
    if (o.kind == Kind::nearest || o.kind == Kind::nearest_exact) {
      add(static_cast<int64_t>(std::floor((o.kind == Kind::nearest ? at : at + 0.5) * step)), 1);
      continue;
    }
    const double middle = o.align_corners ? at * step : (at + 0.5) * step - 0.5;
    if (o.antialias) {
      const double wide = std::max(step, 1.0), reach = (o.kind == Kind::cubic ? 2 : 1) * wide;
      const auto low = std::max<int64_t>(0, static_cast<int64_t>(middle + 0.5 - reach + 0.5)),
                 high = std::min(in, static_cast<int64_t>(middle + 0.5 + reach + 0.5));
      double sum = 0;
      for (int64_t i = low; i < high; ++i) {
        const double x = (static_cast<double>(i) - middle) / wide;
        const double w = o.kind == Kind::cubic ? cubic(x, -0.5) : std::max(0.0, 1 - std::abs(x));
        add(i, w), sum += w;
      }
      for (double& w : row) w /= sum;
      continue;
    }
    const double place = o.kind == Kind::linear ? std::max(0.0, middle) : middle;
    const auto first = static_cast<int64_t>(std::floor(place));
    const double part = place - static_cast<double>(first);
    if (o.kind == Kind::linear) {
      add(first, 1 - part), add(first + 1, part);
    } else {
      for (int64_t i = -1; i < 3; ++i) add(first + i, cubic(static_cast<double>(i) - part, -0.75));
    }
  }
  return rows;
}

/// Each spatial axis by its matrix of weights.
std::vector<Value> interpolated(Call& c) {
  Value x = c.value(c.is_given("input") ? "input" : "self");
  const std::vector<int64_t> sizes = c.meta().sizes;
  const std::string& op = c.node().target;
  const auto has = [&](const char* word) { return op.find(word) != std::string::npos; };
  using Kind = Interpolation::Kind;
  Interpolation o;
  o.kind = has("cubic")     ? Kind::cubic
           : has("exact")   ? Kind::nearest_exact
           : has("nearest") ? Kind::nearest
                            : Kind::linear;
  o.align_corners = c.flag("align_corners", false), o.antialias = has("_aa.");
  std::vector<double> scales;
  if (const Argument* given = c.node().find("scale_factors"))
    if (const auto* all = std::get_if<std::vector<double>>(given)) scales = *all;
  for (const char* arg : {"scales_d", "scales_h", "scales", "scales_w"})
    if (c.is_given(arg)) scales.push_back(c.number(arg));
  for (size_t d = 2; d < sizes.size(); ++d) {
    const int64_t n = c.size(x.axes[d]);
    if (n == sizes[d]) continue;
    const double scale = d - 2 < scales.size() ? scales[d - 2] : 0;
    x = by_weights(c, x, d, sizes[d], [&] { return interpolation(n, sizes[d], o, scale); });
  }
  return {x};
}

/// The weights of 2^d neighbours of places in [-1, 1], of which only one is looked up for
/// "nearest". Elements are looked up in the image's axes as one.
std::vector<Value> sampled_grid(Call& c) {
  const Value x = c.value("input"), grid = c.value("grid");
  const int64_t mode = c.whole("interpolation_mode", 0), padding = c.whole("padding_mode", 0);
  if (x.axes.size() != 4 || mode > 1 || padding > 1)
    c.refuse("samples volumes, by cubic weights or with reflection, which Tessera does not know");
  const bool aligned = c.flag("align_corners", false);
  const int64_t h = c.size(x.axes[2]), w = c.size(x.axes[3]);
  const Value gx = element(c, grid, 3, 0), gy = element(c, grid, 3, 1);
  Axis pixels = c.expand(x.axes[2]);
  for (const Use& use : c.expand(x.axes[3])) pixels.push_back(use);
  return {c.joined(
      "ncp,nyx,nyx->ncyx", {c.moved(x, {x.axes[0], x.axes[1], pixels}), gx, gy},
      [&](const Joined& j) {
        const Dim all("sampled__pixels", h * w);
        const Tensor image = merge(Call::having(j.x[0], j.of('p')), j.of('p'), all);
        const auto place = [&](const Tensor& t, int64_t n) {
          const auto size = static_cast<double>(n);
          Tensor at = aligned ? (t + 1.0) * ((size - 1) / 2) : ((t + 1.0) * size - 1.0) / 2.0;
          return padding == 1 ? clip(at, 0, size - 1) : at;
        };
        const Tensor px = place(j.x[1], w), py = place(j.x[2], h);
        const auto looked_up = [&](const Tensor& ix, const Tensor& iy) {
          const auto inside = [&](const Tensor& i, int64_t n) {
            return logical_and(greater_equal(i, 0.0), less(i, static_cast<double>(n)));
          };
          const Tensor seen = logical_and(inside(ix, w), inside(iy, h));
          const Tensor at = clip(iy, 0, static_cast<double>(h - 1)) * static_cast<double>(w) +
                            clip(ix, 0, static_cast<double>(w - 1));
          const Tensor y = gather(image, tessera::cast(stop_gradient(at), DType::int32), all.name);
          return where(seen, y, zeros_like(y));
        };
        if (mode == 1) return looked_up(round(px), round(py));
        const Tensor x0 = stop_gradient(floor(px)), y0 = stop_gradient(floor(py));
        const Tensor fx = px - x0, fy = py - y0;
        return looked_up(x0, y0) * ((1.0 - fx) * (1.0 - fy)) +
               looked_up(x0 + 1.0, y0) * (fx * (1.0 - fy)) +
               looked_up(x0, y0 + 1.0) * ((1.0 - fx) * fy) +
               looked_up(x0 + 1.0, y0 + 1.0) * (fx * fy);
      })};
}

/// v g / |v|, the size over all axes but one.
std::vector<Value> weight_norm(Call& c) {
  const Value v = c.value("v"), g = c.value("g");
  const size_t kept = c.axis("dim", v.axes.size(), 0);
  return {c.pointwise({v, g}, c.dtype(), [&](const auto& x) {
    std::vector<Dim> over;
    for (const Dim& d : x[0].shape()) {
      bool is_kept = false;
      for (const Dim& k : c.dims(v.axes[kept])) is_kept = is_kept || k.name == d.name;
      if (!is_kept) over.push_back(d);
    }
    return x[0] * (x[1] / sqrt(reduce_sum(square(x[0]), Axes(names_of(over)))));
  })};
}

const Row kLayers[] = {
    {"embedding.default", embedding},
    {"layer_norm.default native_layer_norm.default", layer_norm_rule},
    {"rms_norm.default", rms_norm_rule},
    {"batch_norm.default _native_batch_norm_legit_functional.default "
     "_native_batch_norm_legit_no_training.default",
     batch_norm_rule},
    {"group_norm.default native_group_norm.default", group_norm_rule},
    {"dropout.default", dropout_rule},
    {"scaled_dot_product_attention.default", attention_rule},
    {"convolution.default", any_convolution},
    {"conv1d.default conv1d.padding", convolution<1, false>},
    {"conv2d.default conv2d.padding", convolution<2, false>},
    {"conv3d.default conv3d.padding", convolution<3, false>},
    {"conv_transpose1d.default", convolution<1, true>},
    {"conv_transpose2d.input", convolution<2, true>},
    {"conv_transpose3d.input", convolution<3, true>},
    {"max_pool1d.default", pooled<1, true>},
    {"max_pool2d.default max_pool2d_with_indices.default", pooled<2, true>},
    {"avg_pool1d.default", pooled<1, false>},
    {"avg_pool2d.default", pooled<2, false>},
    {"max_pool3d.default max_pool3d_with_indices.default", pooled<3, true>},
    {"avg_pool3d.default", pooled<3, false>},
    {"adaptive_avg_pool1d.default", adaptive_pool<1, false>},
    {"adaptive_avg_pool2d.default _adaptive_avg_pool2d.default", adaptive_pool<2, false>},
    {"adaptive_avg_pool3d.default _adaptive_avg_pool3d.default", adaptive_pool<3, false>},
    {"adaptive_max_pool1d.default", adaptive_pool<1, true>},
    {"adaptive_max_pool2d.default", adaptive_pool<2, true>},
    {"upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest2d.default "
     "upsample_nearest3d.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec "
     "upsample_linear1d.vec upsample_bilinear2d.vec upsample_bilinear2d.default "
     "upsample_trilinear3d.vec upsample_bicubic2d.vec upsample_bicubic2d.default "
     "_upsample_bilinear2d_aa.vec _upsample_bilinear2d_aa.default _upsample_bicubic2d_aa.vec "
     "_upsample_bicubic2d_aa.default",
     interpolated},
    {"grid_sampler.default grid_sampler_2d.default", sampled_grid},
    {"_weight_norm.default", weight_norm},
};

}  // namespace

std::span<const Row> layer_rows() { return kLayers; }

}  // namespace tessera::pytorch
