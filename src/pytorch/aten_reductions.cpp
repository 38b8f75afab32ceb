// Ops along axes: sums, maxima, softmax, cumulative sums, sorts.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "pytorch/aten.h"
#include "tessera/loops.h"

namespace tessera::pytorch {

namespace {

/// The axes that an argument names; all without it.
std::vector<size_t> named_axes(const Call& c, const Value& x, const char* arg = "dim") {
  std::vector<int64_t> all(x.axes.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<int64_t> dims = c.list(arg, all);
  if (dims.empty()) dims = all;
  std::vector<size_t> axes;
  for (const int64_t d : dims)
    axes.push_back(static_cast<size_t>(d < 0 ? d + std::ssize(x.axes) : d));
  return axes;
}

AxisList without(const AxisList& axes, const std::vector<size_t>& gone, bool keeps) {
  AxisList result;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool is_gone = std::find(gone.begin(), gone.end(), i) != gone.end();
    if (!is_gone) result.push_back(axes[i]);
    if (is_gone && keeps) result.emplace_back();
  }
  return result;
}

std::vector<Dim> dims_of(const Call& c, const Value& x, const std::vector<size_t>& axes) {
  std::vector<Dim> dims;
  for (const size_t axis : axes)
    for (const Dim& d : c.dims(x.axes[axis])) dims.push_back(d);
  return dims;
}

/// Over dims that x lacks, equal elements are reduced: `repeats` says that this changes their
/// value.
template <auto f, bool repeats>
std::vector<Value> reduction(Call& c) {
  const Value x = c.value("self");
  const std::vector<size_t> axes = named_axes(c, x);
  return {c.made(without(x.axes, axes, c.flag("keepdim", false)), [&] {
    const std::vector<Dim> dims = dims_of(c, x, axes);
    const DType dtype = c.dtype();
    Tensor t = dtype == DType::bool_ && x.dtype != DType::bool_ ? not_equal(x.tensor, 0.0)
                                                                : c.cast(x, dtype);
    if (repeats) t = Call::having(t, dims);
    const std::vector<Dim> there = present(t, dims);
    return there.empty() ? t : f(t, names_of(there));
  })};
}

/// Variance; its square root with `root`.
template <bool root>
std::vector<Value> variance(Call& c) {
  const Value x = c.value("self");
  const std::vector<size_t> axes = named_axes(c, x);
  const double correction =
      c.is_given("correction") ? c.number("correction") : c.flag("unbiased", true);
  return {c.made(without(x.axes, axes, c.flag("keepdim", false)), [&] {
    const std::vector<Dim> dims = dims_of(c, x, axes);
    double n = 1;
    for (const Dim& d : dims) n *= static_cast<double>(d.size);
    if (dims.empty()) return zeros_like(x.tensor);
    const Tensor t = Call::having(x.tensor, dims);
    const Axes over(names_of(dims));
    const Tensor y = reduce_sum(square(t - reduce_mean(t, over)), over) / (n - correction);
    return root ? sqrt(y) : y;
  })};
}

std::vector<Value> vector_norm(Call& c) {
  const Value x = c.value("self");
  const std::vector<size_t> axes = named_axes(c, x);
  const double p = c.number(c.is_given("ord") ? "ord" : "p", 2);
  return {c.made(without(x.axes, axes, c.flag("keepdim", false)), [&] {
    const std::vector<Dim> dims = dims_of(c, x, axes);
    const Tensor t = Call::having(c.cast(x, c.dtype()), dims);
    if (p == 2) return dims.empty() ? abs(t) : sqrt(reduce_sum(square(t), names_of(dims)));
    if (dims.empty()) return abs(t);
    if (p == 1) return reduce_sum(abs(t), names_of(dims));
    if (std::isinf(p))
      return p > 0 ? reduce_max(abs(t), names_of(dims)) : reduce_min(abs(t), names_of(dims));
    if (p == 0) return reduce_sum(cast(not_equal(t, 0.0), c.dtype()), names_of(dims));
    return pow(reduce_sum(pow(abs(t), c.constant(p, c.dtype())), names_of(dims)),
               c.constant(1 / p, c.dtype()));
  })};
}

template <bool logarithm>
std::vector<Value> softmax_rule(Call& c) {
  const Value x = c.value("self");
  const std::vector<size_t> axes = {c.axis("dim", x.axes.size())};
  return {c.made(x.axes, [&] {
    const std::vector<Dim> dims = dims_of(c, x, axes);
    const Tensor t = Call::having(c.cast(x, c.dtype()), dims);
    if (dims.empty()) return c.constant(logarithm ? 0 : 1, c.dtype());
    return logarithm ? log_softmax(t, names_of(dims)) : softmax(t, names_of(dims));
  })};
}

std::vector<Value> log_sum_exp(Call& c) {
  const Value x = c.value("self");
  const std::vector<size_t> axes = named_axes(c, x);
  return {c.made(without(x.axes, axes, c.flag("keepdim", false)), [&] {
    const std::vector<Dim> dims = dims_of(c, x, axes);
    return dims.empty() ? x.tensor : reduce_logsumexp(Call::having(x.tensor, dims), names_of(dims));
  })};
}

/// x with the dims of axis `axis` as one, and that dim.
std::pair<Tensor, Dim> along(const Call& c, const Value& x, size_t axis) {
  const std::vector<Dim> dims = c.dims(x.axes[axis]);
  const Dim all = merged(dims);
  return {merge(Call::having(x.tensor, dims), dims, all), all};
}

/// A result along one axis, which keeps its size.
Value along_axis(Call& c, const Value& x, size_t axis,
                 const std::function<Tensor(Tensor, const Dim&)>& f) {
  return c.made(x.axes, [&] {
    const auto [t, dim] = along(c, x, axis);
    const Tensor y = f(t, dim);
    return c.dims(x.axes[axis]).empty() ? pick(y, dim.name, 0)
                                        : unmerge(y, dim, c.dims(x.axes[axis]));
  });
}

std::vector<Value> cumulative_sum(Call& c) {
  const Value x = c.value("self");
  return {along_axis(c, x, c.axis("dim", x.axes.size()), [&](Tensor t, const Dim& dim) {
    return cumsum(t.dtype() == c.dtype() ? t : cast(t, c.dtype()), dim.name);
  })};
}

/// A loop over the axis, which carries what was combined.
template <auto f>
std::vector<Value> cumulative(Call& c) {
  const Value x = c.value("self");
  return {along_axis(c, x, c.axis("dim", x.axes.size()), [&](Tensor t, const Dim& dim) {
    t = cast(t, c.dtype());
    const Tensor first = pick(t, dim.name, 0);
    if (dim.size == 1) return t;
    const Dim rest("cumulative__rest", dim.size - 1);
    const Tensor others = rename(slice(t, dim.name, 1, rest.size), dim.name, rest.name);
    const IterationResults all = scan(c.graph(), rest, {first}, {others}, [&](const Iteration& i) {
      const Tensor y = transpose(f(i.carries[0], i.slices[0]), first.shape());
      return IterationResults{.carries = {y}, .stacked = {y}};
    });
    const Tensor front = reshape(first, Shape({Dim(dim.name, 1)}).united(first.shape()));
    return concat({front, rename(all.stacked[0], rest.name, dim.name)}, dim.name);
  })};
}

/// A variance or deviation, and the mean.
template <bool root>
std::vector<Value> variance_and_mean(Call& c) {
  const Value x = c.value("self");
  const std::vector<size_t> axes = named_axes(c, x);
  return {variance<root>(c)[0], c.made(without(x.axes, axes, c.flag("keepdim", false)), [&] {
            const std::vector<Dim> there = present(x.tensor, dims_of(c, x, axes));
            return there.empty() ? x.tensor : reduce_mean(x.tensor, names_of(there));
          })};
}

std::vector<Value> sorted(Call& c) {
  const Value x = c.value("self");
  const size_t axis = c.axis("dim", x.axes.size(), -1);
  const bool descending = c.flag("descending", false);
  std::vector<Value> results;
  if (c.node().target.find("argsort") == std::string::npos)
    results.push_back(along_axis(
        c, x, axis, [&](Tensor t, const Dim& d) { return sort(t, d.name, descending); }));
  results.push_back(along_axis(
      c, x, axis, [&](Tensor t, const Dim& d) { return argsort(t, d.name, descending); }));
  return results;
}

/// The largest or smallest element along an axis and its index; only the index if there is one
/// result.
template <bool largest>
std::vector<Value> extreme(Call& c) {
  const Value x = c.value("self");
  if (!c.is_given("dim")) {  // of all elements
    const bool index = c.node().target.find("aten.arg") == 0;
    return {c.made({}, [&] {
      std::vector<Dim> all = c.dims(x.axes);
      const Tensor t = c.full(x);
      if (!index)
        return all.empty() ? t
               : largest   ? reduce_max(t, names_of(all))
                           : reduce_min(t, names_of(all));
      const Dim one = merged(all);
      return largest ? argmax(merge(t, all, one), one.name) : argmin(merge(t, all, one), one.name);
    })};
  }
  const size_t axis = c.axis("dim", x.axes.size());
  const AxisList axes = without(x.axes, {axis}, c.flag("keepdim", false));
  std::vector<Value> results;
  if (c.results() == 2)
    results.push_back(c.made(axes, [&] {
      const auto [t, dim] = along(c, x, axis);
      // Of equal elements the one of the index has the gradient.
      return gather(t, largest ? argmax(t, dim.name) : argmin(t, dim.name), dim.name);
    }));
  results.push_back(c.made(axes, [&] {
    const auto [t, dim] = along(c, x, axis);
    return largest ? argmax(t, dim.name) : argmin(t, dim.name);
  }));
  return results;
}

std::vector<Value> largest_few(Call& c) {
  const Value x = c.value("self");
  const size_t axis = c.axis("dim", x.axes.size(), -1);
  const bool largest = c.flag("largest", true);
  AxisList axes = x.axes;
  axes[axis] = {};
  axes[axis] = c.fresh(c.whole("k"), axes);
  c.role(axes[axis], "choices", 10);
  std::optional<TopK> top;
  const auto result = [&](bool values) {
    return c.made(axes, [&] {
      const auto [t, dim] = along(c, x, axis);
      const std::vector<Dim> chosen = c.dims(axes[axis]);
      const Dim k = chosen.empty() ? Dim("chosen", 1) : chosen[0];
      if (chosen.size() > 1)
        c.refuse("chooses elements whose axis is viewed as several, which Tessera does not know");
      if (!top) top = top_k(largest ? t : neg(t), dim.name, k);
      const Tensor y = !values ? top->indices : largest ? top->values : neg(top->values);
      return chosen.empty() ? pick(y, k.name, 0) : y;
    });
  };
  return {result(true), result(false)};
}

/// How many elements lie in each of equal intervals.
std::vector<Value> histogram(Call& c) {
  const Value x = c.value("self");
  const AxisList axes = {c.fresh(c.whole("bins", 100))};
  const double least = c.number("min", 0), most = c.number("max", 0),
               bins = static_cast<double>(c.whole("bins", 100));
  if (least == most)
    c.refuse("counts between the least and largest element, which Tessera does not know");
  return {c.made(axes, [&] {
    const Tensor t = cast(c.full(x), DType::float32);
    const Tensor at = minimum(floor((t - least) * (bins / (most - least))), bins - 1);
    const Tensor inside = logical_and(greater_equal(t, least), less_equal(t, most));
    const Dim all = merged(c.dims(axes[0]));
    const Tensor hits = one_hot(where(inside, cast(at, DType::int32), -1.0), all, 1, 0, c.dtype());
    const Tensor y = reduce_sum(hits, Axes(names_of(c.dims(x.axes))));
    return unmerge(y, all, c.dims(axes[0]));
  })};
}

#define REDUCE(name, repeats) \
  reduction<[](const Tensor& x, const Axes& axes) -> Tensor { return name(x, axes); }, repeats>

const Row kReductions[] = {
    {"sum.default sum.dim_IntList", REDUCE(reduce_sum, true)},
    {"mean.default mean.dim", REDUCE(reduce_mean, false)},
    {"prod.default prod.dim_int", REDUCE(reduce_prod, true)},
    {"amax.default", REDUCE(reduce_max, false)},
    {"amin.default", REDUCE(reduce_min, false)},
    {"any.default any.dim any.dims", REDUCE(reduce_any, false)},
    {"all.default all.dim all.dims", REDUCE(reduce_all, false)},
    {"max.default max.dim argmax.default", extreme<true>},
    {"min.default min.dim argmin.default", extreme<false>},
    {"var.default var.dim var.correction", variance<false>},
    {"std.default std.dim std.correction", variance<true>},
    {"norm.ScalarOpt_dim norm.Scalar linalg_vector_norm.default", vector_norm},
    {"softmax.int _softmax.default", softmax_rule<false>},
    {"log_softmax.int _log_softmax.default", softmax_rule<true>},
    {"logsumexp.default", log_sum_exp},
    {"cumsum.default", cumulative_sum},
    {"cumprod.default",
     cumulative<[](const Tensor& a, const Tensor& b) -> Tensor { return a * b; }>},
    {"logcumsumexp.default", cumulative<[](const Tensor& a, const Tensor& b) -> Tensor {
       return maximum(a, b) + log1p(exp(neg(abs(a - b))));
     }>},
    {"cummax.default",
     cumulative<[](const Tensor& a, const Tensor& b) -> Tensor { return maximum(a, b); }>},
    {"cummin.default",
     cumulative<[](const Tensor& a, const Tensor& b) -> Tensor { return minimum(a, b); }>},
    {"var_mean.correction var_mean.dim var_mean.default", variance_and_mean<false>},
    {"std_mean.correction std_mean.dim std_mean.default", variance_and_mean<true>},
    {"sort.default sort.stable argsort.default argsort.stable", sorted},
    {"topk.default", largest_few},
    {"histc.default", histogram},
};

}  // namespace

std::span<const Row> reduction_rows() { return kReductions; }

}  // namespace tessera::pytorch
