// Elements by computed indices.
#include <algorithm>

#include "pytorch/aten.h"

namespace tessera::pytorch {

namespace {

/// Negative indices count from the end.
Tensor wrapped(const Call& c, const Value& index, const Tensor& t, int64_t size) {
  const auto negative = [](const Array& a) {
    for (int64_t i = 0; i < a.elements(); ++i)
      if (a.at(i) < 0) return true;
    return false;
  };
  if (index.array && !negative(*index.array)) return t;
  (void)c;
  return where(less(t, 0.0), t + static_cast<double>(size), t);
}

/// x[..., i, j, ...]: the indexed axes become those of the indices, where the first of them is, or in
/// front if other axes stand between them.
std::vector<Value> indexed(Call& c) {
  const Value x = c.value("self");
  const auto* given = std::get_if<std::vector<TensorName>>(c.node().find("indices"));
  if (!given) c.refuse("lacks its indices");
  std::vector<size_t> axes;
  std::vector<Value> indices;
  for (size_t i = 0; i < given->size(); ++i) {
    if ((*given)[i].name.empty()) continue;
    axes.push_back(i);
    indices.push_back(c.of((*given)[i].name));
    if (indices.back().dtype == DType::bool_)
      c.refuse("takes the elements where a mask is true, whose number depends on the data");
  }
  const bool adjacent = axes.empty() || axes.back() - axes.front() + 1 == axes.size();
  // All indices as one into the product of their axes.
  AxisList rest;
  Axis flat;
  for (size_t i = 0; i < x.axes.size(); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) {
      rest.push_back(x.axes[i]);
    } else {
      for (const Use& use : c.expand(x.axes[i])) flat.push_back(use);
    }
  }
  const Value index = c.pointwise(indices, DType::int32, [&](const auto& t) {
    Tensor sum;
    for (size_t i = 0; i < t.size(); ++i) {
      int64_t inner = 1;
      for (size_t k = i + 1; k < axes.size(); ++k) inner *= c.size(x.axes[axes[k]]);
      Tensor part = wrapped(c, indices[i], t[i], c.size(x.axes[axes[i]]));
      if (inner > 1) part = part * static_cast<double>(inner);
      sum = sum.empty() ? part : sum + part;
    }
    return sum;
  });
  // Labels: f for the flat axis, letters for the rest, ... for those of the indices.
  std::string letters;
  for (size_t i = 0; i < rest.size(); ++i) letters += static_cast<char>('A' + i);
  const size_t front = adjacent && !axes.empty() ? axes.front() : 0;
  AxisList operand = rest;
  operand.insert(operand.begin(), flat);
  // Result axes in front of the indices' have letters, which the spec cannot put before "...": move later.
  Value y = c.joined("f" + letters + ",...->..." + letters, {c.moved(x, operand), index}, [&](const Joined& j) {
    const Dim rows = merged(j.of('f'));
    return gather(merge(Call::having(j.x[0], j.of('f')), j.of('f'), rows), j.x[1], rows.name);
  });
  const auto n = std::ssize(index.axes);
  std::rotate(y.axes.begin(), y.axes.begin() + n, y.axes.begin() + n + static_cast<long>(front));
  return {y};
}

std::vector<Value> selected_rows(Call& c) {
  const Value x = c.value("self"), index = c.value("index");
  const size_t d = c.axis("dim", x.axes.size());
  AxisList axes = x.axes;
  std::rotate(axes.begin(), axes.begin() + static_cast<long>(d), axes.begin() + static_cast<long>(d) + 1);
  std::string letters;
  for (size_t i = 1; i < axes.size(); ++i) letters += static_cast<char>('A' + i);
  Value y = c.joined("f" + letters + ",...->..." + letters, {c.moved(x, axes), index}, [&](const Joined& j) {
    const Dim rows = merged(j.of('f'));
    return gather(merge(Call::having(j.x[0], j.of('f')), j.of('f'), rows), wrapped(c, index, j.x[1], rows.size), rows.name);
  });
  std::rotate(y.axes.begin(), y.axes.begin() + 1, y.axes.begin() + static_cast<long>(d) + 1);
  return {y};
}

/// y[i, j] = x[i, index[i, j]].
std::vector<Value> gathered(Call& c) {
  const Value x = c.value("self"), index = c.value("index");
  const size_t d = c.axis("dim", x.axes.size());
  for (size_t i = 0; i < x.axes.size(); ++i)
    if (i != d && c.size(x.axes[i]) != c.size(index.axes[i]))
      c.refuse("gathers from a part of another axis, which Tessera does not know");
  // x has its axis under another label than the index.
  std::string from, at;
  for (size_t i = 0; i < x.axes.size(); ++i) from += i == d ? '#' : static_cast<char>('A' + i), at += static_cast<char>('A' + i);
  return {c.joined(from + "," + at + "->" + at, {x, index}, [&](const Joined& j) {
    const Dim rows = merged(j.of('#'));
    const Tensor w = merge(Call::having(j.x[0], j.of('#')), j.of('#'), rows);
    return gather(w, wrapped(c, index, j.x[1], rows.size), rows.name);
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

/// x with elements at indices along an axis written, or added to: each as a row of its one-hot.
enum class Write { replace, add };

template <Write write>
std::vector<Value> scattered(Call& c) {
  const Value x = c.value("self"), index = c.value("index");
  const Value source = c.value(c.is_given("src") ? "src" : "value");
  const size_t d = c.axis("dim", x.axes.size());
  for (size_t i = 0; i < x.axes.size(); ++i)
    if (i != d && c.size(x.axes[i]) != c.size(index.axes[i]))
      c.refuse("scatters to a part of another axis, which Tessera does not know");
  if (!source.axes.empty() && c.sizes(source) != c.sizes(index))
    c.refuse("scatters a part of its source, which Tessera does not know");
  std::string to, at;
  for (size_t i = 0; i < x.axes.size(); ++i) to += static_cast<char>('A' + i), at += i == d ? '#' : static_cast<char>('A' + i);
  return {c.joined(to + "," + at + "," + (source.axes.empty() ? "" : at) + "->" + to, {x, index, source}, [&](const Joined& j) {
    const std::vector<Dim> target = j.of(static_cast<char>('A' + d));
    const Dim rows = merged(target);
    std::vector<Dim> out;
    for (size_t i = 0; i < x.axes.size(); ++i) {
      if (i == d) {
        out.push_back(rows);
      } else {
        for (const Dim& dim : j.of(static_cast<char>('A' + i))) out.push_back(dim);
      }
    }
    std::vector<Dim> all;
    for (const auto& [label, dims] : j.dims)
      if (label != static_cast<int>('A' + d)) all.insert(all.end(), dims.begin(), dims.end());
    const Tensor where_to = Call::having(wrapped(c, index, j.x[1], rows.size), all);
    const Tensor values = Call::having(source.number ? c.constant(*source.number, c.dtype()) : tessera::cast(j.x[2], c.dtype()), all);
    const Tensor sum = unmerge(scatter_add(where_to, values, shape_of(out), rows.name), rows, target);
    if (write == Write::add) return j.x[0] + sum;
    const Tensor ones = Call::having(tessera::constant(c.graph(), 1, DType::float32, where_to.shape()), all);
    const Tensor hits = unmerge(scatter_add(where_to, ones, shape_of(out), rows.name), rows, target);
    return where(greater(hits, 0.0), sum, j.x[0]);
  })};
}

std::vector<Value> differences(Call& c) {
  if (c.whole("n", 1) != 1 || c.is_given("append")) c.refuse("takes differences in a way that Tessera does not know");
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
      const Tensor previous = where(equal(iota(c.graph(), all), 0.0), tessera::cast(first.tensor, t.dtype()), shift(t, all.name, 1));
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
    {"gather.default", gathered},
    {"one_hot.default", one_hot_rule},
    {"scatter.src scatter.value", scattered<Write::replace>},
    {"scatter_add.default", scattered<Write::add>},
    {"diff.default", differences},
};

}  // namespace

std::span<const Row> index_rows() { return kIndexing; }

}  // namespace tessera::pytorch
