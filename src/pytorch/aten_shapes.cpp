// Ops that compute nothing: most only say which axes there are, and vanish. And those that make a
// tensor of a shape.
#include <algorithm>
#include <numeric>
#include <set>

#include "pytorch/aten.h"

namespace tessera::pytorch {

/// A boundary is cut where a size begins. Where an axis cannot be cut so, elements change their
/// place among dims.
Value reshaped(Call& c, const Value& x, std::vector<int64_t> sizes) {
  for (int64_t& size : sizes)
    if (size < 0)
      size = std::accumulate(x.axes.begin(), x.axes.end(), int64_t{1},
                             [&](int64_t n, const Axis& axis) { return n * c.size(axis); });
  Axis flat;
  for (const Axis& axis : x.axes)
    for (const Use& use : c.expand(axis)) flat.push_back(use);
  int64_t inner = 1;
  bool fits = true;
  for (size_t i = sizes.size(); i-- > 0;) fits = c.cut(flat, inner *= sizes[i]) && fits;
  AxisList axes(sizes.size());
  if (c.once(fits)) {
    Axis rest = c.expand(flat);
    for (size_t i = sizes.size(); i-- > 0;)
      std::tie(axes[i], rest) = halves(c.atoms(), rest, sizes[i]);
    return c.moved(x, axes);
  }
  for (size_t i = 0; i < sizes.size(); ++i) axes[i] = c.fresh(sizes[i], axes);
  return c.made(axes, [&] { return c.with_axes(c.full(x), axes); });
}

Value reordered(const Call& c, const Value& x, const std::vector<size_t>& order) {
  AxisList axes;
  for (const size_t i : order) axes.push_back(x.axes[i]);
  return c.moved(x, axes);
}

Tensor one_dim(const Call& c, Tensor x, const Axis& axis, const Dim& to) {
  const std::vector<Dim> dims = c.dims(axis);
  return merge(Call::having(x, dims), dims, to);
}

Tensor dims_again(const Call& c, Tensor x, const Dim& from, const Axis& axis) {
  const std::vector<Dim> to = c.dims(axis);
  return to.empty() ? pick(x, from.name, 0) : unmerge(x, from, to);
}

namespace {

std::vector<Value> viewed(Call& c) { return {reshaped(c, c.value("self"), c.meta().sizes)}; }

std::vector<Value> permuted(Call& c) {
  const Value x = c.value("self");
  const auto rank = std::ssize(x.axes);
  AxisList axes;
  for (const int64_t d : c.list("dims"))
    axes.push_back(x.axes.at(static_cast<size_t>(d < 0 ? d + rank : d)));
  return {c.moved(x, axes)};
}

std::vector<Value> reversed_axes(Call& c) {
  const Value x = c.value("self");
  return {c.moved(x, AxisList(x.axes.rbegin(), x.axes.rend()))};
}

/// The last two axes change places.
std::vector<Value> turned(Call& c) {
  Value x = c.value("self");
  if (x.axes.size() > 1) std::swap(x.axes[x.axes.size() - 2], x.axes.back());
  return {c.moved(x, x.axes)};
}

template <char first, char second>
std::vector<Value> swapped(Call& c) {
  Value x = c.value("self");
  const char* names[2] = {"dim0", "dim1"};
  if (first == 'a') names[0] = "axis0", names[1] = "axis1";
  if (!x.axes.empty())
    std::swap(x.axes[c.axis(names[0], x.axes.size())], x.axes[c.axis(names[1], x.axes.size())]);
  return {c.moved(x, x.axes)};
}

std::vector<Value> with_unit(Call& c) {
  Value x = c.value("self");
  x.axes.insert(x.axes.begin() + static_cast<long>(c.axis("dim", x.axes.size() + 1)), Axis());
  return {c.moved(x, x.axes)};
}

std::vector<Value> without_units(Call& c) {
  const Value x = c.value("self");
  const auto rank = std::ssize(x.axes);
  std::vector<int64_t> all(x.axes.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<int64_t> dims = c.list("dim", all);
  for (int64_t& d : dims) d = d < 0 ? d + rank : d;
  AxisList axes;
  for (int64_t i = 0; i < rank; ++i) {
    const bool is_named = std::find(dims.begin(), dims.end(), i) != dims.end();
    if (!is_named || c.size(x.axes[static_cast<size_t>(i)]) != 1)
      axes.push_back(x.axes[static_cast<size_t>(i)]);
  }
  return {c.moved(x, axes)};
}

/// AxisList that are repeated have a dim that the tensor lacks, as broadcasting by name has them.
std::vector<Value> expanded(Call& c) {
  const Value x = c.value("self");
  const std::vector<int64_t> sizes = c.meta().sizes;
  AxisList axes(sizes.size() - x.axes.size());
  axes.insert(axes.end(), x.axes.begin(), x.axes.end());
  for (size_t i = 0; i < sizes.size(); ++i)
    if (c.size(axes[i]) != sizes[i]) axes[i] = c.fresh(sizes[i], axes);
  return {c.moved(x, axes)};
}

/// Each as broadcasting makes it.
std::vector<Value> broadcast_all(Call& c) {
  std::vector<Value> results;
  for (const Value& x : c.values("tensors")) {
    const std::vector<int64_t> sizes = c.meta().sizes;
    AxisList axes(sizes.size() - x.axes.size());
    axes.insert(axes.end(), x.axes.begin(), x.axes.end());
    for (size_t i = 0; i < sizes.size(); ++i)
      if (c.size(axes[i]) != sizes[i]) axes[i] = c.fresh(sizes[i], axes);
    results.push_back(c.moved(x, axes));
  }
  return results;
}

/// x x x: a new outer atom; each element several times: a new inner one.
std::vector<Value> tiled(Call& c) {
  const Value x = c.value("self");
  const std::vector<int64_t> counts = c.list(c.is_given("repeats") ? "repeats" : "dims");
  AxisList axes(counts.size() > x.axes.size() ? counts.size() - x.axes.size() : 0);
  axes.insert(axes.end(), x.axes.begin(), x.axes.end());
  for (size_t i = 0; i < counts.size(); ++i) {
    Axis& axis = axes[axes.size() - counts.size() + i];
    Axis outer = c.fresh(counts[i], axes);
    outer.insert(outer.end(), axis.begin(), axis.end());
    axis = outer;
  }
  return {c.moved(x, axes)};
}

std::vector<Value> repeated(Call& c) {
  Value x = c.value("self");
  if (!c.is_given("dim")) x = reshaped(c, x, {-1});
  Axis& axis = x.axes[c.axis("dim", x.axes.size(), 0)];
  for (const Use& use : c.fresh(c.whole("repeats"), x.axes)) axis.push_back(use);
  return {c.moved(x, x.axes)};
}

}  // namespace

Value interval(Call& c, const Value& x, size_t d, int64_t begin, int64_t size, int64_t step) {
  AxisList axes = x.axes;
  axes[d] = {};
  axes[d] = c.fresh(size, axes);
  return c.made(axes, [&] {
    if (size == 0) return c.constant(0, x.tensor.dtype());  // no elements: concatenation drops it
    const std::vector<Dim> from = c.dims(x.axes[d]), to = c.dims(axes[d]);
    if (present(x.tensor, from).empty()) return x.tensor;
    const Dim all = merged(from);
    Tensor y = merge(Call::having(x.tensor, from), from, all);
    if (step == 1) {
      y = slice(y, all.name, begin, size);
    } else {
      y = slice(y, all.name, begin, std::min(all.size - begin, (size - 1) * step + 1));
      y = pick(windows(y, all.name, Dim("window", 1), {.stride = step}), "window", 0);
    }
    if (to.empty()) return pick(y, all.name, 0);
    return unmerge(y, all, to);
  });
}

Value part_of(Call& c, const Value& x, size_t d, int64_t parts, bool strided, int64_t index) {
  const int64_t size = c.size(x.axes[d]) / parts;
  if (!c.once(c.cut(x.axes[d], strided ? parts : size)))  // 6 as 2 x 3 has no parts of 2
    return strided ? interval(c, x, d, index, size, parts) : interval(c, x, d, index * size, size);
  const auto [low, high] = halves(c.atoms(), c.expand(x.axes[d]), strided ? parts : size);
  AxisList axes = x.axes;
  axes[d] = strided ? high : low;
  return c.made(axes, [&] {
    Tensor y = x.tensor;
    int64_t rest = index;
    const std::vector<Dim> picked = c.dims(strided ? low : high);
    for (size_t i = picked.size(); i-- > 0;) {
      y = pick(y, picked[i].name, rest % picked[i].size);
      rest /= picked[i].size;
    }
    return y;
  });
}

Value element(Call& c, const Value& x, size_t d, int64_t index) {
  Value y = part_of(c, x, d, c.size(x.axes[d]), false, index);
  y.axes.erase(y.axes.begin() + static_cast<long>(d));
  return y;
}

Value taken(Call& c, const Value& x, size_t d, const std::vector<int64_t>& indices) {
  AxisList axes = x.axes;
  axes[d] = {};
  axes[d] = c.fresh(std::ssize(indices), axes);
  return c.made(axes, [&] {
    const Dim from("taken__from", c.size(x.axes[d])), to("taken__to", std::ssize(indices));
    Array at(DType::int32, {to.name}, {to.size});
    std::copy(indices.begin(), indices.end(), at.data<int32_t>());
    const Tensor y =
        gather(one_dim(c, x.tensor, x.axes[d], from), tessera::constant(c.graph(), at), from.name);
    return dims_again(c, y, to, axes[d]);
  });
}

namespace {

std::vector<Value> sliced(Call& c) {
  const Value x = c.value("self");
  const size_t d = c.axis("dim", x.axes.size(), 0);
  const int64_t n = c.size(x.axes[d]), step = c.whole("step", 1);
  const int64_t size = c.is_given("src") ? c.size(c.value("src").axes[d]) : c.meta().sizes[d];
  int64_t begin = c.whole("start", 0);
  begin = std::clamp<int64_t>(begin < 0 ? begin + n : begin, 0, n);
  if (size == n && step == 1) return {c.moved(x, x.axes)};
  bool strided = false;
  if (const int64_t parts = c.tiles("self", d, strided); parts > 0)
    return {part_of(c, x, d, parts, strided, strided ? begin : begin / (n / parts))};
  return {interval(c, x, d, begin, size, step)};
}

std::vector<Value> narrowed_to(Call& c) {
  const Value x = c.value("self");
  const size_t d = c.axis("dim", x.axes.size());
  const int64_t begin = c.whole("start");
  return {interval(c, x, d, begin < 0 ? begin + c.size(x.axes[d]) : begin, c.whole("length"))};
}

std::vector<Value> selected_index(Call& c) {
  const Value x = c.value("self");
  const size_t d = c.axis("dim", x.axes.size());
  const int64_t index = c.whole("index");
  return {element(c, x, d, index < 0 ? index + c.size(x.axes[d]) : index)};
}

/// Parts of an axis: of these sizes, of one size but for the last, or a number of them.
std::vector<Value> split_up(Call& c) {
  const Value x = c.value("self");
  const size_t d = c.axis("dim", x.axes.size(), 0);
  const int64_t n = c.size(x.axes[d]);
  const char* const counts = c.is_given("chunks") ? "chunks" : "sections";
  std::vector<int64_t> sizes =
      c.list(c.is_given("split_size") ? "split_size" : "split_sizes", std::vector<int64_t>());
  const int64_t count = sizes.empty() ? std::max<int64_t>(1, c.whole(counts)) : 0;
  if (sizes.empty()) sizes = {std::max<int64_t>(1, (n + count - 1) / count)};
  if (!c.is_given("split_sizes") && sizes.size() == 1) {
    sizes.assign(static_cast<size_t>((n + sizes[0] - 1) / std::max<int64_t>(1, sizes[0])),
                 sizes[0]);
    if (!sizes.empty()) sizes.back() = n - sizes[0] * (std::ssize(sizes) - 1);
  }
  const bool equal =
      std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes[0]; });
  std::vector<Value> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(equal ? part_of(c, x, d, std::ssize(sizes), false, std::ssize(parts))
                          : interval(c, x, d, begin, size));
    begin += size;
  }
  return parts;
}

std::vector<Value> unbound(Call& c) {
  const Value x = c.value("self");
  const size_t d = c.axis("dim", x.axes.size(), 0);
  const int64_t n = c.size(x.axes[d]);
  std::vector<Value> parts;
  for (int64_t i = 0; i < n; ++i) parts.push_back(element(c, x, d, i));
  return parts;
}

/// The operands with one dim along axis `d`, and otherwise the same dims, all there.
std::vector<Tensor> alike(Call& c, const std::vector<Value>& xs, size_t d, const AxisList& axes,
                          const std::string& name) {
  std::vector<Tensor> tensors;
  for (const Value& x : xs) {
    std::vector<std::pair<std::string, std::string>> names;
    std::vector<Dim> all;
    for (size_t a = 0; a < axes.size(); ++a) {
      if (a == d) continue;
      const Axis from = c.expand(x.axes[a]), to = c.expand(axes[a]);
      for (size_t i = 0; i < from.size(); ++i)
        names.emplace_back(c.dim(from[i]).name, c.dim(to[i]).name);
      for (const Dim& dim : c.dims(axes[a])) all.push_back(dim);
    }
    // The dims of axis d step aside.
    std::vector<Dim> along;
    for (const Dim& dim : c.dims(x.axes[d])) {
      along.push_back(dim.renamed(dim.name + "__along"));
      names.emplace_back(dim.name, along.back().name);
    }
    Tensor t = Call::having(renamed(x.tensor, names), all);
    t = merge(Call::having(t, along), along, merged(along).renamed(name));
    all.push_back(Dim(name, c.size(x.axes[d])));
    tensors.push_back(transpose(t, shape_of(all)));
  }
  return tensors;
}

}  // namespace

/// Where parts of one axis stand behind one another, they are an outer atom and the axis. Otherwise
/// the sum of their sizes is an axis of its own.
Value concatenated(Call& c, std::vector<Value> xs, size_t d, DType dtype) {
  std::erase_if(xs, [&](const Value& x) {
    return std::any_of(x.axes.begin(), x.axes.end(),
                       [&](const Axis& axis) { return c.size(axis) == 0; });
  });
  if (xs.empty()) c.refuse("joins tensors without elements");
  if (xs.size() == 1) return c.moved(xs[0], xs[0].axes);
  AxisList axes = xs[0].axes;
  for (const Value& x : xs) {
    for (size_t i = 0; i < axes.size(); ++i) {
      if (i == d) continue;
      if (axes[i].empty()) axes[i] = x.axes[i];
      if (!x.axes[i].empty()) c.unify(axes[i], x.axes[i]);
    }
  }
  const auto atoms_of = [&](const Axis& axis) {
    std::vector<int> atoms;
    for (const Use& use : c.expand(axis)) atoms.push_back(use.atom);
    return atoms;
  };
  const bool one_axis = std::all_of(xs.begin(), xs.end(), [&](const Value& x) {
    return atoms_of(x.axes[d]) == atoms_of(xs[0].axes[d]);
  });
  // Constants are computed once: a table of rotary positions cuts nothing.
  const bool varies =
      std::any_of(xs.begin(), xs.end(), [](const Value& x) { return !x.is_constant; });
  const bool is_product = c.once(one_axis && varies && !xs[0].axes[d].empty());
  axes[d] = {};
  if (is_product) {
    axes[d] = xs[0].axes[d];
    axes = c.distinct(axes);
    const Axis outer = c.fresh(std::ssize(xs), axes);
    axes[d].insert(axes[d].begin(), outer.begin(), outer.end());
  } else {
    int64_t size = 0;
    for (const Value& x : xs) size += c.size(x.axes[d]);
    axes[d] = c.fresh(size, axes);
  }
  return c.made(axes, [&] {
    for (Value& x : xs) x.tensor = c.cast(x, dtype);
    const Dim whole = merged(c.dims(axes[d])).renamed("whole__axis");
    const Tensor y = concat(alike(c, xs, d, axes, whole.name), whole.name);
    return unmerge(y, whole, c.dims(axes[d]));
  });
}

Value stacked(Call& c, std::vector<Value> xs, size_t d, DType dtype) {
  for (Value& x : xs) x.axes.insert(x.axes.begin() + static_cast<long>(d), Axis());
  return concatenated(c, xs, d, dtype);
}

namespace {

std::vector<Value> concatenation(Call& c) {
  const std::vector<Value> xs = c.values("tensors");
  if (xs.empty()) c.refuse("joins no tensors");
  return {concatenated(c, xs, c.axis("dim", c.meta().sizes.size(), 0), c.dtype())};
}

std::vector<Value> stack_rule(Call& c) {
  const std::vector<Value> xs = c.values("tensors");
  if (xs.empty()) c.refuse("joins no tensors");
  return {stacked(c, xs, c.axis("dim", xs[0].axes.size() + 1, 0), c.dtype())};
}

}  // namespace

Tensor written_view(Call& c, const Value& base, const Value& value, const std::string& of) {
  const Rule rule = find_rule(of);
  const Value view = rule(c)[0];  // its axes are those of the base
  for (size_t i = 0; i < view.axes.size(); ++i) c.unify(view.axes[i], value.axes[i]);
  if (!c.builds()) return {};
  std::vector<std::pair<std::string, std::string>> names;
  for (size_t i = 0; i < view.axes.size(); ++i) {
    const Axis from = c.expand(value.axes[i]), to = c.expand(view.axes[i]);
    for (size_t k = 0; k < from.size(); ++k)
      names.emplace_back(c.dim(from[k]).name, c.dim(to[k]).name);
  }
  const Tensor y = renamed(value.tensor, names);
  const bool selects = of == "select.int", slices = of == "slice.Tensor";
  if (!selects && (!slices || c.sizes(view) == c.sizes(base))) return y;
  const size_t d = c.axis("dim", base.axes.size(), 0);
  const int64_t n = c.size(base.axes[d]);
  const auto inside = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  const Tensor at = c.positions(base.axes[d]);
  if (selects)
    return where(equal(at, static_cast<double>(inside(c.whole("index")))), y, base.tensor);
  const int64_t begin = inside(c.whole("start", 0)), size = c.size(view.axes[d]);
  const int64_t step = c.whole("step", 1);
  const std::vector<Dim> part = c.dims(view.axes[d]), all = c.dims(base.axes[d]);
  Tensor placed = y;
  if (!present(y, part).empty()) {
    const Dim one = merged(part).renamed("written__axis");
    const Tensor from = maximum(
        minimum((at - static_cast<double>(begin)) / step, static_cast<double>(size - 1)), 0.0);
    placed = gather(merge(Call::having(y, part), part, one), from, one.name);
  }
  Tensor is_written = logical_and(greater_equal(at, static_cast<double>(begin)),
                                  less(at, static_cast<double>(begin + size * step)));
  if (step > 1)
    is_written = logical_and(
        is_written, equal(mod(at - static_cast<double>(begin), static_cast<double>(step)), 0.0));
  return where(is_written, placed, base.tensor);
}

namespace {

/// A copy of `self` in which a view of it is `src`: core ATen's form of a write.
template <const char* view>
std::vector<Value> scattered_view(Call& c) {
  const Value self = c.value("self");
  const Tensor t = written_view(c, self, c.value("src"), view);
  return {c.result(self.axes, t)};
}
constexpr char kSlice[] = "slice.Tensor", kSelect[] = "select.int";

// ----------------------------------------------------------------------------------------- sources

AxisList fresh_axes(Call& c) {
  AxisList axes;
  for (const int64_t size : c.meta().sizes) axes.push_back(c.fresh(size, axes));
  return axes;
}

/// One number in every element: no dim is there. `like`: with the axes of the operand.
Value filled(Call& c, double value, bool like) {
  return c.made(like ? c.value("self").axes : fresh_axes(c),
                [&] { return c.constant(value, c.dtype()); });
}

bool is_like(Call& c) { return c.node().target.find("_like.") != std::string::npos; }

template <int value>
std::vector<Value> filled_with(Call& c) {
  return {filled(c, value, is_like(c) || c.node().target.find("aten.zero.") != std::string::npos)};
}

std::vector<Value> full_of(Call& c) {
  const Value fill = c.value(c.is_given("s") ? "s" : "fill_value");
  if (fill.number) return {filled(c, *fill.number, is_like(c))};
  Value y = filled(c, 0, is_like(c));
  if (c.builds()) y.tensor = cast(fill.tensor, c.dtype());
  return {y};
}

std::vector<Value> counted(Call& c) {
  const double start = c.number("start", 0), step = c.number("step", 1);
  const AxisList axes = fresh_axes(c);
  return {c.made(axes, [&] {
    Tensor index = c.positions(axes[0]);
    if (index.dtype() != c.dtype()) index = cast(index, c.dtype());
    if (step != 1) index = index * step;
    return start == 0 ? index : index + start;
  })};
}

std::vector<Value> spaced(Call& c) {
  const AxisList axes = fresh_axes(c);
  return {c.made(axes, [&] {
    const int64_t steps = c.meta().sizes[0];
    const double start = c.number("start"),
                 step = (c.number("end") - start) /
                        std::max<double>(1, static_cast<double>(steps - 1));
    return cast(c.positions(axes[0]), c.dtype()) * step + start;
  })};
}

/// Random numbers of Tessera's own, by its seed and step.
template <bool is_normal>
std::vector<Value> random_numbers(Call& c) {
  const AxisList axes = is_like(c) ? c.distinct(c.value("self").axes) : fresh_axes(c);
  return {c.made(axes, [&] {
    const Shape shape = shape_of(c.dims(axes));
    return is_normal ? random_normal(c.graph(), shape, 0, 1, c.dtype())
                     : random_uniform(c.graph(), shape, 0, 1, c.dtype());
  })};
}

std::vector<Value> identity_matrix(Call& c) {
  const AxisList axes = fresh_axes(c);
  return {c.made(
      axes, [&] { return cast(equal(c.positions(axes[0]), c.positions(axes[1])), c.dtype()); })};
}

/// Keeps where row - column is at least (tril) or at most (triu) -diagonal.
template <bool lower>
std::vector<Value> triangle(Call& c) {
  const Value x = c.value("self");
  const auto diagonal = static_cast<double>(c.whole("diagonal", 0));
  return {c.made(x.axes, [&] {
    const Tensor row = c.positions(x.axes[x.axes.size() - 2]) + diagonal,
                 column = c.positions(x.axes.back());
    const Tensor keep = lower ? less_equal(column, row) : greater_equal(column, row);
    return where(keep, x.tensor, zeros_like(x.tensor));
  })};
}

const Row kShapes[] = {
    {"view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int "
     "view_copy.default view_as.default reshape_as.default",
     viewed},
    {"permute.default", permuted},
    {"transpose.int", swapped<'d', 'd'>},
    {"swapaxes.default", swapped<'a', 'a'>},
    {"swapdims.default", swapped<'d', 'd'>},
    {"t.default numpy_T.default", reversed_axes},
    {"mT.default", turned},
    {"unsqueeze.default", with_unit},
    {"squeeze.default squeeze.dim squeeze.dims", without_units},
    {"expand.default expand_as.default broadcast_to.default", expanded},
    {"broadcast_tensors.default", broadcast_all},
    {"repeat.default tile.default", tiled},
    {"repeat_interleave.self_int", repeated},
    {"slice.Tensor", sliced},
    {"slice_scatter.default", scattered_view<kSlice>},
    {"select_scatter.default", scattered_view<kSelect>},
    {"narrow.default", narrowed_to},
    {"select.int", selected_index},
    {"chunk.default split.Tensor split.sizes split_with_sizes.default tensor_split.sections",
     split_up},
    {"unbind.int", unbound},
    {"cat.default", concatenation},
    {"stack.default", stack_rule},
    {"zeros.default zeros_like.default new_zeros.default empty.memory_format empty_like.default "
     "empty_permuted.default "
     "new_empty.default zero.default",
     filled_with<0>},
    {"ones.default ones_like.default new_ones.default", filled_with<1>},
    {"full.default full_like.default new_full.default scalar_tensor.default", full_of},
    {"fill.Scalar fill.Tensor",
     [](Call& c) -> std::vector<Value> {
       return {c.pointwise({c.value("self"), c.value("value")}, c.dtype(),
                           [](const auto& x) { return x[1]; })};
     }},
    {"arange.default arange.start arange.start_step", counted},
    {"linspace.default", spaced},
    {"rand.default rand_like.default", random_numbers<false>},
    {"randn.default randn_like.default", random_numbers<true>},
    {"eye.default eye.m", identity_matrix},
    {"tril.default", triangle<true>},
    {"triu.default", triangle<false>},
};

}  // namespace

std::span<const Row> shape_rows() { return kShapes; }

}  // namespace tessera::pytorch
