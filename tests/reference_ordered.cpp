// The reference of ops that see all of one dim: windows, running sums, order.
#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "reference.h"
#include "tessera/op.h"

namespace tessera::test {

namespace {

/// Where window element k of output i lies along the windowed dim, or -1.
int64_t window_source(const Attrs& attrs, int64_t i, int64_t k) {
  const int64_t size = attrs.get<int64_t>("size");
  const int64_t at = attrs.get<int64_t>("stride") * i + attrs.get<int64_t>("dilation") * k -
                     attrs.get<int64_t>("lo");
  if (attrs.get<int64_t>("wrap")) return (at % size + size) % size;
  return at >= 0 && at < size ? at : -1;
}

/// Calls visit(position in the windowed tensor, position in the other or -1).
template <class Visit>
void each_window(const Attrs& attrs, const Whole& windowed, const Whole& natural, Visit visit) {
  const auto& dim = attrs.get<std::string>("dim");
  const int out = windowed.find(attrs.get<std::string>("out_name"));
  const int window =
      attrs.has("window_name") ? windowed.find(attrs.get<std::string>("window_name")) : -1;
  std::vector<int64_t> strides = natural.strides_over(windowed.dims);
  strides[out] = 0;
  if (window >= 0) strides[window] = 0;
  const int64_t step = natural.strides_over({dim})[0];
  int64_t position = 0;
  each_index(windowed.sizes, [&](const std::vector<int64_t>& index) {
    const int64_t at = window_source(attrs, index[out], window < 0 ? 0 : index[window]);
    visit(position++, at < 0 ? -1 : dot(index, strides) + at * step);
  });
}

/// Calls visit(positions along `dim`) for each row of x.
template <class Visit>
void each_line(const Whole& x, const std::string& dim, Visit visit) {
  std::vector<int64_t> sizes = x.sizes;
  const int d = x.find(dim);
  std::vector<int64_t> line(static_cast<size_t>(std::exchange(sizes[d], 1)));
  const auto strides = x.strides_over(x.dims);
  each_index(sizes, [&](const std::vector<int64_t>& index) {
    for (size_t i = 0; i < line.size(); ++i)
      line[i] = dot(index, strides) + static_cast<int64_t>(i) * strides[d];
    visit(static_cast<const std::vector<int64_t>&>(line));
  });
}

}  // namespace

void Reference::window(const Node& node, const Whole& x, Whole& result) const {
  if (node.op->name == "window") {
    const double fill = node.attrs.get<double>("fill");
    each_window(node.attrs, result, x, [&](int64_t to, int64_t from) {
      result.data[to] = from < 0 ? fill : x.data[from];
    });
  } else {
    each_window(node.attrs, x, result, [&](int64_t from, int64_t to) {
      if (to >= 0) result.data[to] += x.data[from];
    });
  }
}

void Reference::cumsum(const Node& node, const Whole& x, Whole& result) const {
  const bool exclusive = node.attrs.get<int64_t>("exclusive"),
             reverse = node.attrs.get<int64_t>("reverse");
  each_line(x, node.attrs.get<std::string>("dim"), [&](std::vector<int64_t> line) {
    if (reverse) std::reverse(line.begin(), line.end());
    double sum = 0;
    for (int64_t i : line) {
      result.data[i] = exclusive ? sum : sum + x.data[i];
      sum += x.data[i];
    }
  });
}

void Reference::largest(const Node& node, const Whole& x, int64_t k, Whole& values,
                        Whole& indices) const {
  const auto& dim = node.attrs.get<std::string>("dim");
  std::vector<std::string> rest = x.dims;
  rest.erase(std::find(rest.begin(), rest.end(), dim));
  const auto to = values.strides_over(rest);
  const int64_t step = node.attrs.has("k_name")
                           ? values.strides_over({node.attrs.get<std::string>("k_name")})[0]
                           : 0;
  std::vector<int64_t> sizes;
  for (const std::string& name : rest) sizes.push_back(x.sizes[x.find(name)]);
  const auto from = x.strides_over(rest);
  const int64_t n = x.sizes[x.find(dim)], stride = x.strides_over({dim})[0];
  each_index(sizes, [&](const std::vector<int64_t>& index) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), int64_t{0});
    const double* line = x.data.data() + dot(index, from);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return line[a * stride] > line[b * stride]; });
    for (int64_t j = 0; j < k; ++j) {
      values.data[dot(index, to) + j * step] = line[order[j] * stride];
      indices.data[dot(index, to) + j * step] = static_cast<double>(order[j]);
    }
  });
}

}  // namespace tessera::test
