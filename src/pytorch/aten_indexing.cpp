// Elements by computed indices.
#include <algorithm>
#include <cmath>

#include "pytorch/aten.h"

namespace tessera::pytorch {

namespace {

/// Negative indices count from the end.
Tensor wrapped(const Value& index, const Tensor& t, int64_t size) {
  const auto negative = [](const Array& a) {
    for (int64_t i = 0; i < a.elements(); ++i)
      if (a.at(i) < 0) return true;
    return false;
  };
  if (index.array && !negative(*index.array)) return t;
  return where(less(t, 0.0), t + static_cast<double>(size), t);
}

/// Indices of several axes as one into their product.
struct FlatIndex {
  std::vector<size_t> axes;  ///< that are indexed
  AxisList rest;             ///< the other ones
  Axis flat;                 ///< the product
  Value index;
  bool adjacent = true;
};

/// Nothing where an index is a mask.
std::optional<FlatIndex> flat_index(Call& c, const Value& x) {
  const auto* given = std::get_if<std::vector<TensorName>>(c.node().find("indices"));
  if (!given) c.refuse("lacks its indices");
  FlatIndex f;
  std::vector<Value> indices;
  for (size_t i = 0; i < x.axes.size(); ++i) {
    if (i >= given->size() || (*given)[i].name.empty()) {
      f.rest.push_back(x.axes[i]);
      continue;
    }
    f.axes.push_back(i);
    indices.push_back(c.of((*given)[i].name));
    if (indices.back().dtype == DType::bool_) return {};
    for (const Use& use : c.expand(x.axes[i])) f.flat.push_back(use);
  }
  if (f.axes.empty()) c.refuse("lacks its indices");
  f.adjacent = f.axes.back() - f.axes.front() + 1 == f.axes.size();
  f.index = c.pointwise(indices, DType::int32, [&](const auto& t) {
    Tensor sum;
    for (size_t i = 0; i < t.size(); ++i) {
      int64_t inner = 1;
      for (size_t k = i + 1; k < f.axes.size(); ++k) inner *= c.size(x.axes[f.axes[k]]);
      Tensor part = wrapped(indices[i], t[i], c.size(x.axes[f.axes[i]]));
      if (inner > 1) part = part * static_cast<double>(inner);
      sum = sum.empty() ? part : sum + part;
    }
    return sum;
  });
  return f;
}

std::string letters_of(const AxisList& axes) {
  std::string letters;
  for (size_t i = 0; i < axes.size(); ++i) letters += static_cast<char>('A' + i);
  return letters;
}

/// The flat axis in front of the others.
Value flat_first(const Call& c, const Value& x, const FlatIndex& f) {
  AxisList axes = f.rest;
  axes.insert(axes.begin(), f.flat);
  return c.moved(x, axes);
}

/// x[..., i, j, ...]: the indexed axes become those of the indices, where the first of them is, or
/// in front if other axes stand between them.
std::vector<Value> indexed(Call& c) {
  const Value x = c.value("self");
  const std::optional<FlatIndex> f = flat_index(c, x);
  if (!f) c.refuse("takes the elements where a mask is true, whose number depends on the data");
  const std::string letters = letters_of(f->rest);
  Value y = c.joined("f" + letters + ",...->..." + letters, {flat_first(c, x, *f), f->index},
                     [&](const Joined& j) {
                       const Dim rows = merged(j.of('f'));
                       return gather(merge(Call::having(j.x[0], j.of('f')), j.of('f'), rows),
                                     j.x[1], rows.name);
                     });
  const auto n = std::ssize(f->index.axes);
  const auto front = static_cast<long>(f->adjacent ? f->axes.front() : 0);
  std::rotate(y.axes.begin(), y.axes.begin() + n, y.axes.begin() + n + front);
  return {y};
}

/// x with `values` at indices along the dim `rows`, or with them added. `all`: dims of index and
/// values.
Tensor written(Tensor x, Tensor index, Tensor values, const Shape& shape, const Dim& rows,
               const std::vector<Dim>& all, bool adds) {
  index = Call::having(index, all);
  const Tensor sum = scatter_add(index, Call::having(values, all), shape, rows.name);
  if (adds) return x + sum;
  const Tensor hits = scatter_add(index, ones_like(Call::having(cast(values, DType::float32), all)),
                                  shape, rows.name);
  return where(greater(hits, 0.0), sum, x);
}

/// x[..., i, j, ...] = values.
std::vector<Value> put_at(Call& c) {
  const Value x = c.value("self");
  Value values = c.value("values");
  const bool adds = c.flag("accumulate", false);
  const std::optional<FlatIndex> f = flat_index(c, x);
  if (!f) {
    const auto& given = std::get<std::vector<TensorName>>(*c.node().find("indices"));
    if (given.size() != 1 || !values.axes.empty() || adds)
      c.refuse("writes several values where a mask is true, whose number depends on the data");
    Value mask = c.of(given[0].name);
    mask.axes.resize(x.axes.size());
    return {c.pointwise({x, c.moved(mask, mask.axes), values}, {},
                        [&](const auto& t) { return where(t[1], cast(t[2], c.dtype()), t[0]); })};
  }
  const size_t front = f->adjacent ? f->axes.front() : 0, places = f->index.axes.size();
  if (front > 0 && !values.axes.empty()) {  // axes of indices stand behind those in front of them
    if (values.axes.size() != f->rest.size() + places)
      c.refuse(
          "writes values that are repeated at indices of an inner axis, which Tessera does not "
          "know");
    const auto begin = values.axes.begin();
    std::rotate(begin, begin + static_cast<long>(front), begin + static_cast<long>(front + places));
  }
  const std::string letters = letters_of(f->rest);
  const std::string given = values.axes.size() >= f->rest.size()
                                ? "..." + letters
                                : letters.substr(f->rest.size() - values.axes.size());
  Value y = c.joined("f" + letters + ",...," + given + "->f" + letters,
                     {flat_first(c, x, *f), f->index, values}, [&](const Joined& j) {
                       const Dim rows = merged(j.of('f'));
                       std::vector<Dim> out = {rows}, all;
                       for (const char letter : letters)
                         for (const Dim& d : j.of(letter)) out.push_back(d);
                       for (const auto& [label, dims] : j.dims)
                         if (label != 'f') all.insert(all.end(), dims.begin(), dims.end());
                       const Tensor base = merge(Call::having(j.x[0], j.of('f')), j.of('f'), rows);
                       return unmerge(written(base, j.x[1], cast(j.x[2], c.dtype()), shape_of(out),
                                              rows, all, adds),
                                      rows, j.of('f'));
                     });
  // The flat axis is several again.
  AxisList axes;
  Axis rest = c.expand(y.axes[0]);
  size_t other = 1, part = 0;
  for (size_t i = 0; i < x.axes.size(); ++i) {
    if (part < f->axes.size() && f->axes[part] == i) {
      const auto count = static_cast<long>(c.expand(x.axes[i]).size());
      axes.emplace_back(rest.begin(), rest.begin() + count);
      rest.erase(rest.begin(), rest.begin() + count);
      ++part;
    } else {
      axes.push_back(y.axes[other++]);
    }
  }
  return {c.moved(y, axes)};
}

std::vector<Value> selected_rows(Call& c) {
  const Value x = c.value("self"), index = c.value("index");
  const size_t d = c.axis("dim", x.axes.size());
  AxisList axes = x.axes;
  std::rotate(axes.begin(), axes.begin() + static_cast<long>(d),
              axes.begin() + static_cast<long>(d) + 1);
  std::string letters;
  for (size_t i = 1; i < axes.size(); ++i) letters += static_cast<char>('A' + i);
  Value y = c.joined("f" + letters + ",...->..." + letters, {c.moved(x, axes), index},
                     [&](const Joined& j) {
                       const Dim rows = merged(j.of('f'));
                       return gather(merge(Call::having(j.x[0], j.of('f')), j.of('f'), rows),
                                     wrapped(index, j.x[1], rows.size), rows.name);
                     });
  std::rotate(y.axes.begin(), y.axes.begin() + 1, y.axes.begin() + static_cast<long>(d) + 1);
  return {y};
}

/// y[i, j] = x[i, index[i, j]].
std::vector<Value> gathered(Call& c) {
  const Value x = c.value("self"), index = c.value(c.is_given("index") ? "index" : "indices");
  const size_t d = c.axis("dim", x.axes.size());
  for (size_t i = 0; i < x.axes.size(); ++i)
    if (i != d && c.size(x.axes[i]) != c.size(index.axes[i]))
      c.refuse("gathers from a part of another axis, which Tessera does not know");
  // x has its axis under another label than the index.
  std::string from, at;
  for (size_t i = 0; i < x.axes.size(); ++i)
    from += i == d ? '#' : static_cast<char>('A' + i), at += static_cast<char>('A' + i);
  return {c.joined(from + "," + at + "->" + at, {x, index}, [&](const Joined& j) {
    const Dim rows = merged(j.of('#'));
    const Tensor w = merge(Call::having(j.x[0], j.of('#')), j.of('#'), rows);
    return gather(w, wrapped(index, j.x[1], rows.size), rows.name);
  })};
}

std::vector<Value> one_hot_rule(Call& c) {
  const Value index = c.value("self");
  AxisList axes = index.axes;
  axes.push_back(c.fresh(c.meta().sizes.back(), axes));
  return {c.made(axes, [&] {
    const Dim classes = merged(c.dims(axes.back()));
    return unmerge(one_hot(index.tensor, classes, 1, 0, c.dtype()), classes, c.dims(axes.back()));
  })};
}

/// The largest of `values` at each index along `rows`, and whether there is one: by comparing each
/// index with each row.
std::pair<Tensor, Tensor> scattered_maximum(const Tensor& index, const Tensor& values,
                                            const Dim& rows, const std::vector<Dim>& over) {
  const Tensor hits = equal(index, iota(values.graph(), rows));
  const Tensor least =
      where(hits, values, tessera::constant(values.graph(), -INFINITY, values.dtype()));
  return {reduce_max(least, Axes(names_of(over))), reduce_any(hits, Axes(names_of(over)))};
}

/// x with elements at indices along an axis written, added, or combined otherwise. An index with
/// one axis is that of the source's axis `dim`.
enum class Write { replace, add, named };

template <Write write>
std::vector<Value> scattered(Call& c) {
  const Value x = c.value("self"), index = c.value("index");
  const Value source = c.value(c.is_given("src")      ? "src"
                               : c.is_given("source") ? "source"
                                                      : "value");
  const size_t d = c.axis("dim", x.axes.size());
  const bool is_list = index.axes.size() == 1;
  const double alpha = c.number("alpha", 1);
  const std::string kind = write == Write::named ? c.text("reduce", "sum")
                           : write == Write::add ? "sum"
                                                 : "";
  const bool with_self = c.flag("include_self", true);
  const Value& given = is_list && !source.axes.empty() ? source : index;
  for (size_t i = 0; i < x.axes.size() && !(is_list && source.axes.empty()); ++i)
    if (i != d && c.size(x.axes[i]) != c.size(given.axes[i]))
      c.refuse("scatters to a part of another axis, which Tessera does not know");
  if (!source.axes.empty() && !is_list && c.sizes(source) != c.sizes(index))
    c.refuse("scatters a part of its source, which Tessera does not know");
  std::string to, at;
  for (size_t i = 0; i < x.axes.size(); ++i)
    to += static_cast<char>('A' + i), at += i == d ? '#' : static_cast<char>('A' + i);
  const std::string spec =
      to + "," + (is_list ? "#" : at) + "," + (source.axes.empty() ? "" : at) + "->" + to;
  return {c.joined(spec, {x, index, source}, [&](const Joined& j) {
    const std::vector<Dim> target = j.of(static_cast<char>('A' + d));
    const Dim rows = merged(target).renamed("scatter__rows");
    std::vector<Dim> out, all;
    for (size_t i = 0; i < x.axes.size(); ++i) {
      if (i == d) {
        out.push_back(rows);
      } else {
        for (const Dim& dim : j.of(static_cast<char>('A' + i))) out.push_back(dim);
      }
    }
    for (const auto& [label, dims] : j.dims)
      if (label != static_cast<int>('A' + d)) all.insert(all.end(), dims.begin(), dims.end());
    Tensor values =
        source.number ? c.constant(*source.number, c.dtype()) : tessera::cast(j.x[2], c.dtype());
    if (alpha != 1) values = values * alpha;
    const Tensor base = merge(Call::having(j.x[0], target), target, rows);
    const Tensor i = wrapped(index, j.x[1], rows.size);
    const auto summed = [&](const Tensor& t) {
      return scatter_add(Call::having(i, all), Call::having(t, all), shape_of(out), rows.name);
    };
    const auto counts = [&] { return summed(ones_like(values)); };
    Tensor y;
    if (kind.empty()) {
      y = where(greater(counts(), 0.0), summed(values), base);
    } else if (kind == "sum" || kind == "add") {
      y = summed(values) +
          (with_self ? base : where(greater(counts(), 0.0), zeros_like(base), base));
    } else if (kind == "mean") {
      const Tensor n = counts();
      y = with_self ? (summed(values) + base) / (n + 1.0)
                    : where(greater(n, 0.0), summed(values) / maximum(n, 1.0), base);
    } else if (kind == "amax" || kind == "amin") {
      const bool largest = kind == "amax";
      const auto [most, hit] = scattered_maximum(
          Call::having(i, all), Call::having(largest ? values : neg(values), all), rows, j.of('#'));
      const Tensor best = largest ? most : neg(most);
      y = !with_self ? where(hit, best, base) : largest ? maximum(base, best) : minimum(base, best);
    } else {
      c.refuse(fmt::format("combines elements by '{}', which Tessera does not know", kind));
    }
    return unmerge(y, rows, target);
  })};
}

/// How many of sorted boundaries lie in front of each element.
std::vector<Value> sorted_place(Call& c) {
  const Value x = c.value("self");
  const Value bounds = c.value(c.is_given("boundaries") ? "boundaries" : "sorted_sequence");
  const bool right = c.flag("right", false) || c.text("side", "left") == "right";
  if (bounds.axes.size() != 1) c.refuse("has boundaries for each row, which Tessera does not know");
  return {c.joined("...,#->...", {x, bounds}, [&](const Joined& j) {
    const Tensor b = Call::having(j.x[1], j.of('#'));
    const Tensor is_behind = right ? less_equal(b, j.x[0]) : less(b, j.x[0]);
    return reduce_sum(tessera::cast(is_behind, DType::int32), Axes(names_of(j.of('#'))));
  })};
}

/// Rows and columns of the lower or upper triangle.
template <bool lower>
std::vector<Value> triangle_indices(Call& c) {
  const int64_t rows = c.whole("row"), columns = c.whole("col"), offset = c.whole("offset", 0);
  std::vector<std::pair<int64_t, int64_t>> at;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < columns; ++k)
      if (lower ? k <= i + offset : k >= i + offset) at.emplace_back(i, k);
  AxisList axes = {c.fresh(2)};
  axes.push_back(c.fresh(std::ssize(at), axes));
  return {c.made(axes, [&] {
    Array values(DType::int32, {"pair", "places"}, {2, std::ssize(at)});
    for (size_t i = 0; i < at.size(); ++i)
      values.data<int32_t>()[i] = static_cast<int32_t>(at[i].first),
      values.data<int32_t>()[at.size() + i] = static_cast<int32_t>(at[i].second);
    Tensor t = tessera::constant(c.graph(), values);
    return dims_again(c, dims_again(c, t, Dim("pair", 2), axes[0]), Dim("places", std::ssize(at)),
                      axes[1]);
  })};
}

std::vector<Value> differences(Call& c) {
  if (c.whole("n", 1) != 1 || c.is_given("append"))
    c.refuse("takes differences in a way that Tessera does not know");
  Value x = c.value("self");
  const size_t d = c.axis("dim", x.axes.size(), -1);
  const std::optional<Value> before = c.find("prepend");
  const int64_t n = c.size(x.axes[d]), front = before ? c.size(before->axes[d]) : 0;
  if (front > 1) c.refuse("prepends several elements, which Tessera does not know");
  if (front == 1) {  // the axis stays
    Value first = *before;
    first.axes[d] = {};
    return {c.made(x.axes, [&] {
      const std::vector<Dim> dims = c.dims(x.axes[d]);
      const Dim all = merged(dims);
      const Tensor t = merge(Call::having(x.tensor, dims), dims, all);
      const Tensor previous = where(equal(iota(c.graph(), all), 0.0),
                                    tessera::cast(first.tensor, t.dtype()), shift(t, all.name, 1));
      return unmerge(t - previous, all, dims);
    })};
  }
  AxisList axes = x.axes;
  axes[d] = {};
  axes[d] = c.fresh(n - 1, axes);
  return {c.made(axes, [&] {
    const std::vector<Dim> dims = c.dims(x.axes[d]), to = c.dims(axes[d]);
    const Dim all = merged(dims);
    const Tensor t = merge(Call::having(x.tensor, dims), dims, all);
    const Tensor y = slice(t, all.name, 1, n - 1) - slice(t, all.name, 0, n - 1);
    return to.empty() ? pick(y, all.name, 0) : unmerge(y, all, to);
  })};
}

const Row kIndexing[] = {
    {"index.Tensor", indexed},
    {"index_select.default", selected_rows},
    {"gather.default take_along_dim.default", gathered},
    {"one_hot.default", one_hot_rule},
    {"scatter.src scatter.value index_fill.int_Scalar index_copy.default",
     scattered<Write::replace>},
    {"scatter_add.default index_add.default", scattered<Write::add>},
    {"scatter_reduce.two", scattered<Write::named>},
    {"bucketize.Tensor searchsorted.Tensor", sorted_place},
    {"tril_indices.default", triangle_indices<true>},
    {"triu_indices.default", triangle_indices<false>},
    {"index_put.default", put_at},
    {"diff.default", differences},
};

}  // namespace

std::span<const Row> index_rows() { return kIndexing; }

}  // namespace tessera::pytorch
