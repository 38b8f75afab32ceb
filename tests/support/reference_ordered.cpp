// The reference of ops that see all of one dim: windows, running sums, order.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/fail.h"
#include "support/reference.h"
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

/// Over every output index, window index and other index: x, filter and y are the operands and the
/// result, in an order that `result` tells.
void Reference::conv(const Node& node, const Whole& a, const Whole& b, Whole& result) const {
  const int64_t makes = node.attrs.get<int64_t>("result");
  const Whole& x = makes == 1 ? result : a;
  const Whole& filter = makes == 2 ? result : b;
  const Whole& y = makes == 0 ? result : makes == 1 ? a : b;
  auto list = [&](const char* name) { return node.attrs.get<std::vector<int64_t>>(name); };
  const auto spatial = node.attrs.get<std::vector<std::string>>("spatial"),
             filters = node.attrs.get<std::vector<std::string>>("filters");
  const auto in_sizes = list("in_sizes"), strides = list("strides"), dilations = list("dilations"),
             los = list("los");
  std::vector<std::string> others;
  std::vector<int64_t> sizes;
  for (const Whole* w : {&x, &filter, &y}) {
    for (size_t d = 0; d < w->dims.size(); ++d) {
      const std::string& name = w->dims[d];
      const auto is = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
      };
      if (is(spatial) || is(filters) || is(others)) continue;
      others.push_back(name);
      sizes.push_back(w->sizes[d]);
    }
  }
  const size_t plain = others.size(), s = spatial.size();
  for (const char* name : {"out_sizes", "window_sizes"}) {
    for (int64_t size : list(name)) sizes.push_back(size);
  }
  const auto x_plain = x.strides_over(others), f_plain = filter.strides_over(others),
             y_plain = y.strides_over(others), x_steps = x.strides_over(spatial),
             f_steps = filter.strides_over(filters), y_steps = y.strides_over(spatial);
  each_index(sizes, [&](const std::vector<int64_t>& index) {
    int64_t at_x = 0, at_f = 0, at_y = 0;
    for (size_t d = 0; d < plain; ++d) {
      at_x += index[d] * x_plain[d], at_f += index[d] * f_plain[d], at_y += index[d] * y_plain[d];
    }
    for (size_t d = 0; d < s; ++d) {
      const int64_t o = index[plain + d], k = index[plain + s + d];
      const int64_t i = strides[d] * o + dilations[d] * k - los[d];
      if (i < 0 || i >= in_sizes[d]) return;
      at_x += i * x_steps[d], at_f += k * f_steps[d], at_y += o * y_steps[d];
    }
    if (makes == 0) result.data[at_y] += x.data[at_x] * filter.data[at_f];
    if (makes == 1) result.data[at_x] += y.data[at_y] * filter.data[at_f];
    if (makes == 2) result.data[at_f] += x.data[at_x] * y.data[at_y];
  });
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

void Reference::linear_scan(const Node& node, const Whole& x, const Whole& decay,
                            Whole& result) const {
  const auto at_decay = decay.strides_over(x.dims);
  std::vector<int64_t> of_decay;  // by element of x
  each_index(x.sizes,
             [&](const std::vector<int64_t>& index) { of_decay.push_back(dot(index, at_decay)); });
  each_line(x, node.attrs.get<std::string>("dim"), [&](std::vector<int64_t> line) {
    if (node.attrs.get<int64_t>("reverse")) std::reverse(line.begin(), line.end());
    double state = 0;
    for (int64_t i : line) {
      const auto d = static_cast<size_t>(of_decay[static_cast<size_t>(i)]);
      result.data[static_cast<size_t>(i)] = state =
          state * decay.data[d] + x.data[static_cast<size_t>(i)];
    }
  });
}

void Reference::largest(const Node& node, const Whole& x, int64_t k, Whole& values,
                        Whole& indices) {
  const auto& dim = node.attrs.get<std::string>("dim");
  const bool smallest = node.attrs.get<int64_t>("smallest", 0);
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
    const double sign = smallest ? -1 : 1;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return sign * line[a * stride] > sign * line[b * stride];
    });
    if (step == 0 && n > 1)  // argmax: an index jumps
      near_tie_ = near_tie_ || is_close(line[order[0] * stride], line[order[1] * stride]);
    for (int64_t j = n; j < k; ++j) {  // more than a run has of a bounded dim
      values.data[dot(index, to) + j * step] = -sign * std::numeric_limits<double>::max();
      indices.data[dot(index, to) + j * step] = static_cast<double>(j);
    }
    for (int64_t j = 0; j < std::min(n, k); ++j) {
      values.data[dot(index, to) + j * step] = line[order[j] * stride];
      indices.data[dot(index, to) + j * step] = static_cast<double>(order[j]);
    }
  });
}

}  // namespace tessera::test
