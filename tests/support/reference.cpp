#include "support/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <unordered_map>

#include "base/fail.h"
#include "base/float16.h"
#include "ir/body.h"
#include "ir/source_ops.h"

namespace tessera::test {

Whole::Whole(std::vector<std::string> d, std::vector<int64_t> s, double fill)
    : dims(std::move(d)), sizes(std::move(s)) {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  data.assign(static_cast<size_t>(n), fill);
}

int Whole::find(const std::string& dim) const {
  auto it = std::find(dims.begin(), dims.end(), dim);
  return it == dims.end() ? -1 : static_cast<int>(it - dims.begin());
}

std::vector<int64_t> Whole::strides_over(const std::vector<std::string>& names) const {
  std::vector<int64_t> own(dims.size(), 1), result;
  for (size_t d = dims.size(); d-- > 1;) own[d - 1] = own[d] * sizes[d];
  for (const std::string& name : names) result.push_back(find(name) < 0 ? 0 : own[find(name)]);
  return result;
}

int64_t dot(const std::vector<int64_t>& index, const std::vector<int64_t>& strides) {
  int64_t sum = 0;
  for (size_t d = 0; d < index.size(); ++d) sum += index[d] * strides[d];
  return sum;
}

Whole whole_of(const Array& array) {
  Whole whole(array.dims, array.sizes);
  for (int64_t i = 0; i < array.elements(); ++i) whole.data[i] = array.at(i);
  return whole;
}

namespace {

template <class T>
void store(Array& array, const std::vector<double>& from) {
  for (size_t i = 0; i < from.size(); ++i) array.data<T>()[i] = static_cast<T>(from[i]);
}

float to_bfloat16(double x) {
  float f = static_cast<float>(x);
  if (std::isnan(f)) return f;
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&f, &bits, 4);
  return f;
}

/// In whole units of the last place, of which there are 2^10 in a power of two.
float to_float16(double x) {
  const float f = static_cast<float>(x);
  if (!std::isfinite(f) || f == 0) return f;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(f), -14) - 10);
  const double rounded = std::nearbyint(f / unit) * unit;
  return static_cast<float>(std::abs(rounded) > 65504 ? std::copysign(INFINITY, f) : rounded);
}

double to_integer(double x, double lo, double hi) {
  return std::isnan(x) ? 0 : std::clamp(std::trunc(x), lo, hi);
}

}  // namespace

double as_dtype(double x, DType dtype) {
  switch (dtype) {
    case DType::float32:
      return static_cast<float>(x);
    case DType::float64:
      return x;
    case DType::bfloat16:
      return to_bfloat16(x);
    case DType::float16:
      return to_float16(x);
    case DType::int32:
      return to_integer(x, -2147483648.0, 2147483647.0);
    case DType::int64:
      return to_integer(x, -9.2e18, 9.2e18);
    case DType::uint8:
      return to_integer(x, 0, 255);
    case DType::bool_:
      return x != 0;
  }
  return x;
}

Array array_of(const Whole& whole, DType dtype) {
  Array array(dtype, whole.dims, whole.sizes);
  std::vector<double> held;
  for (double x : whole.data) held.push_back(as_dtype(x, dtype));
  switch (dtype) {
    case DType::float32:
      store<float>(array, held);
      break;
    case DType::float64:
      store<double>(array, held);
      break;
    case DType::int32:
      store<int32_t>(array, held);
      break;
    case DType::int64:
      store<int64_t>(array, held);
      break;
    case DType::uint8:
    case DType::bool_:
      store<uint8_t>(array, held);
      break;
    case DType::float16:
      for (size_t i = 0; i < held.size(); ++i)
        array.data<uint16_t>()[i] = tessera::to_float16(static_cast<float>(held[i])).bits;
      break;
    case DType::bfloat16:
      for (size_t i = 0; i < held.size(); ++i) {
        const float f = static_cast<float>(held[i]);
        std::memcpy(array.data<uint16_t>() + i, reinterpret_cast<const char*>(&f) + 2, 2);
      }
      break;
  }
  return array;
}

double relative_error(const Whole& a, const Whole& b, double floor) {
  if (a.dims != b.dims || a.sizes != b.sizes) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double x = a.data[i], y = b.data[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) {
      norm += std::isfinite(y) ? y * y : 0;
      continue;
    }
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), floor);
}

namespace {
/// 1 where an index of a grouped matmul, operand 2, chooses a group; indices elsewhere choose
/// none.
Whole chosen(const Whole& indices, const std::string& dim, int64_t groups) {
  Whole hot = indices;
  hot.dims.push_back(dim);
  hot.sizes.push_back(groups);
  hot.data.assign(static_cast<size_t>(indices.elements() * groups), 0);
  for (int64_t i = 0; i < indices.elements(); ++i) {
    const auto g = static_cast<int64_t>(indices.data[static_cast<size_t>(i)]);
    if (g >= 0 && g < groups) hot.data[static_cast<size_t>(i * groups + g)] = 1;
  }
  return hot;
}
}  // namespace

Whole brute_einsum(const std::vector<Whole>& operands, Whole out) {
  std::vector<std::string> dims = out.dims;
  std::vector<int64_t> sizes = out.sizes;
  for (const Whole& x : operands) {
    for (size_t d = 0; d < x.dims.size(); ++d) {
      if (std::find(dims.begin(), dims.end(), x.dims[d]) != dims.end()) continue;
      dims.push_back(x.dims[d]);
      sizes.push_back(x.sizes[d]);
    }
  }
  std::vector<std::vector<int64_t>> strides;
  for (const Whole& x : operands) strides.push_back(x.strides_over(dims));
  const std::vector<int64_t> out_strides = out.strides_over(dims);
  std::fill(out.data.begin(), out.data.end(), 0);
  each_index(sizes, [&](const std::vector<int64_t>& index) {
    double product = 1;
    for (size_t k = 0; k < operands.size(); ++k)
      product *= operands[k].data[dot(index, strides[k])];
    out.data[dot(index, out_strides)] += product;
  });
  return out;
}

Reference::Reference(const Graph& graph, std::map<std::string, int64_t> sizes, double tie)
    : graph_(graph), sizes_(std::move(sizes)), tie_(tie) {}

const Whole& Reference::value(const Tensor& tensor) { return value(tensor.id()); }

const Whole& Reference::value(int id) {
  // Oldest first, so that the recursion of evaluate() stays shallow however deep the graph is.
  std::vector<int> open{id}, order;
  std::map<int, bool> seen;
  while (!open.empty()) {
    const int v = open.back();
    open.pop_back();
    if (known_.count(v) || std::exchange(seen[v], true)) continue;
    order.push_back(v);
    if (graph_.producer(v).op == &kLoop) continue;  // asks for what its iterations need
    for (int in : graph_.producer(v).in) open.push_back(in);
  }
  std::sort(order.begin(), order.end());
  for (int v : order) {
    if (!known_.count(v)) evaluate(graph_.producer(v));
  }
  return known_.at(id);
}

Whole Reference::empty(const Shape& shape, double fill) const {
  std::vector<int64_t> sizes;
  for (const Dim& d : shape) {
    auto it = sizes_.find(d.name);
    sizes.push_back(d.is_bounded && it != sizes_.end() ? it->second : d.size);
  }
  return Whole(shape.names(), sizes, fill);
}

void Reference::evaluate_body(const Node& node, const std::vector<Whole>& in) {
  const CallTypes types = call_types(graph_, node);
  const Body body = body_of(OpCall{*node.op, types.in, types.out, node.attrs});
  Reference inner(body.graph, sizes_, tie_);
  inner.meanings_ = meanings_;
  for (size_t i = 0; i < in.size(); ++i) inner.set(body.in[i], in[i]);
  for (size_t i = 0; i < node.out.size(); ++i) known_[node.out[i]] = inner.value(body.out[i]);
  near_tie_ |= inner.near_tie_;
}

void Reference::evaluate(const Node& node) {
  if (node.op == &kLoop) return loop(node);
  std::vector<Whole> in;
  for (int v : node.in) in.push_back(known_.at(v));
  if (node.op->body) return evaluate_body(node, in);
  const Value& out = graph_.value(node.out[0]);
  const std::string name(node.op->name);
  Whole& result = known_[node.out[0]];
  if (node.op == &kLoopIndex) {
    result = Whole({}, {}, static_cast<double>(iteration_of_.at(node.loop)));
  } else if (node.op == &kLoopSlice) {
    result = slice(node, in[0]);
  } else if (const auto known = meanings_.find(name); known != meanings_.end()) {
    result = known->second(node.attrs, in);
  } else if (in.empty()) {
    result = source(node, out.shape);
  } else if (name == "einsum") {
    result = brute_einsum(in, empty(out.shape));
  } else if (name.rfind("reduce_", 0) == 0) {
    result = reduce(node, in[0], out);
  } else if (name == "gather") {
    result = gather(node, in[0], in[1], out);
  } else if (name == "scatter_add") {
    result = scatter(node, in[0], in[1], out);
  } else if (name == "grouped_dot" || name == "grouped_outer") {
    const auto& dim = node.attrs.get<std::string>("dim");
    const Shape& matrices = name == "grouped_dot" ? graph_.value(node.in[1]).shape : out.shape;
    result =
        brute_einsum({in[0], in[1], chosen(in[2], dim, matrices.dim(dim).size)}, empty(out.shape));
  } else if (name == "reshape") {
    reshape(in[0], graph_.value(node.in[0]).shape, result = empty(out.shape), out.shape);
  } else if (name == "window" || name == "fold") {
    window(node, in[0], result = empty(out.shape));
  } else if (name == "conv") {
    conv(node, in[0], in[1], result = empty(out.shape));
  } else if (name == "cumsum") {
    cumsum(node, in[0], result = empty(out.shape));
  } else if (name == "linear_scan") {
    linear_scan(node, in[0], in[1], result = empty(out.shape));
  } else if (name == "argmax" || name == "top_k") {
    Whole& indices = known_[node.out[1]] = empty(graph_.value(node.out[1]).shape);
    largest(node, in[0], node.attrs.get<int64_t>("k", 1), result = empty(out.shape), indices);
  } else {
    result = pointwise(node, in, out);
  }
}

/// Elements have the row-major index that they have where bounded dims have their bounds; those
/// that only the result has are zero.
void Reference::reshape(const Whole& x, const Shape& from, Whole& result, const Shape& to) {
  const auto full = [](const Shape& shape) {
    std::vector<int64_t> strides(shape.dims().size(), 1);
    for (size_t d = strides.size(); d-- > 1;)
      strides[d - 1] = strides[d] * shape[static_cast<int>(d)].size;
    return strides;
  };
  std::map<int64_t, double> elements;
  int64_t i = 0;
  each_index(x.sizes, [&](const std::vector<int64_t>& index) {
    elements[dot(index, full(from))] = x.data[i++];
  });
  i = 0;
  each_index(result.sizes, [&](const std::vector<int64_t>& index) {
    const auto it = elements.find(dot(index, full(to)));
    result.data[i++] = it == elements.end() ? 0 : it->second;
  });
}

Whole Reference::source(const Node& node, const Shape& shape) {
  const std::string name(node.op->name);
  if (name == "constant")
    return empty(shape, as_dtype(node.attrs.get<double>("value"), dtype_of(node.attrs)));
  if (name == "dim_size")
    return Whole({}, {}, static_cast<double>(empty(shape_of(node.attrs)).sizes[0]));
  if (name == "iota") {
    Whole result = empty(shape);
    for (int64_t i = 0; i < result.elements(); ++i) result.data[i] = static_cast<double>(i);
    return result;
  }
  throw std::runtime_error("no value is known for " + node.name + " (" + name + ")");
}

Whole Reference::reduce(const Node& node, const Whole& x, const Value& out) const {
  const std::string name = std::string(node.op->name).substr(7);
  const double inf = std::numeric_limits<double>::infinity();
  const std::map<std::string, double> first = {{"sum", 0},  {"max", -inf}, {"min", inf},
                                               {"prod", 1}, {"any", 0},    {"all", 1}};
  Whole result = empty(out.shape, first.at(name));
  const std::vector<int64_t> to = result.strides_over(x.dims);
  int64_t i = 0;
  each_index(x.sizes, [&](const std::vector<int64_t>& index) {
    double& r = result.data[dot(index, to)];
    const double v = x.data[i++];
    if (name == "sum") r += v;
    if (name == "max") r = std::max(r, v);
    if (name == "min") r = std::min(r, v);
    if (name == "prod") r *= v;
    if (name == "any") r = r != 0 || v != 0;
    if (name == "all") r = r != 0 && v != 0;
  });
  return result;
}

namespace {
/// The position that an index means, or -1 for none.
int64_t resolve(double index, int64_t size, const std::string& rule) {
  const int64_t i = static_cast<int64_t>(index);
  if (rule == "clamp") return std::clamp<int64_t>(i, 0, size - 1);
  if (i >= 0 && i < size) return i;
  TESSERA_CHECK(rule != "error", "index {} is outside of 0 .. {}", i, size - 1);
  return -1;
}
}  // namespace

Whole Reference::gather(const Node& node, const Whole& table, const Whole& indices,
                        const Value& out) const {
  const auto& dim = node.attrs.get<std::string>("dim");
  const auto& rule = node.attrs.get<std::string>("out_of_range");
  Whole result = empty(out.shape);
  const auto from = table.strides_over(result.dims), by = indices.strides_over(result.dims);
  const int64_t step = table.strides_over({dim})[0], size = table.sizes[table.find(dim)];
  int64_t i = 0;
  each_index(result.sizes, [&](const std::vector<int64_t>& index) {
    const int64_t row = resolve(indices.data[dot(index, by)], size, rule);
    result.data[i++] = row < 0 ? 0 : table.data[dot(index, from) + row * step];
  });
  return result;
}

Whole Reference::scatter(const Node& node, const Whole& indices, const Whole& updates,
                         const Value& out) const {
  const auto& dim = node.attrs.get<std::string>("dim");
  const auto& rule = node.attrs.get<std::string>("out_of_range");
  Whole result = empty(out.shape);
  const auto to = result.strides_over(updates.dims), by = indices.strides_over(updates.dims);
  const int64_t step = result.strides_over({dim})[0], size = result.sizes[result.find(dim)];
  int64_t i = 0;
  each_index(updates.sizes, [&](const std::vector<int64_t>& index) {
    const double update = updates.data[i++];
    const int64_t row = resolve(indices.data[dot(index, by)], size, rule);
    if (row >= 0) result.data[dot(index, to) + row * step] += update;
  });
  return result;
}

}  // namespace tessera::test
