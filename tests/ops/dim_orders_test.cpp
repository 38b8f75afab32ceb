// The order of dims is a matter of memory alone: the rows of op_cases with the dims of their
// operands in other orders have the same values and gradients, and so have ops whose lists of dims
// are in other orders.
#include <algorithm>
#include <random>

#include "base/fail.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "tessera/nn.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// x with its dims in the order of `dims`. Dims that x lacks are left out; those that `dims` lacks
/// stay behind the others.
Whole in_order(const Whole& x, const std::vector<std::string>& dims) {
  Whole y;
  for (const std::string& dim : dims) {
    if (x.find(dim) >= 0) y.dims.push_back(dim);
  }
  for (const std::string& dim : x.dims) {
    if (std::find(y.dims.begin(), y.dims.end(), dim) == y.dims.end()) y.dims.push_back(dim);
  }
  for (const std::string& dim : y.dims) y.sizes.push_back(x.sizes[x.find(dim)]);
  const std::vector<int64_t> steps = x.strides_over(y.dims);
  each_index(y.sizes,
             [&](const std::vector<int64_t>& i) { y.data.push_back(x.data[dot(i, steps)]); });
  return y;
}

using Orders = std::vector<std::vector<std::string>>;  // of the operands of a row

OpCase with_orders(OpCase row, const Orders& orders) {
  for (size_t i = 0; i < orders.size(); ++i) {
    std::vector<Dim> dims;
    for (const std::string& dim : orders[i]) dims.push_back(row.in[i].shape.dim(dim));
    row.in[i].shape = Shape(dims);
  }
  return row;
}

/// All operands reversed, each alone, and some at random.
std::vector<Orders> orders_of(const OpCase& row, size_t limit, std::mt19937_64& random) {
  Orders own;
  for (const CaseInput& in : row.in) own.push_back(in.shape.names());
  std::vector<Orders> all;
  Orders reversed = own;
  for (auto& names : reversed) std::reverse(names.begin(), names.end());
  all.push_back(reversed);
  for (size_t i = 0; i < own.size(); ++i) {
    Orders one = own;
    one[i] = reversed[i];
    all.push_back(one);
  }
  for (size_t k = 0; k < limit; ++k) {
    Orders shuffled = own;
    for (auto& names : shuffled) std::shuffle(names.begin(), names.end(), random);
    all.push_back(shuffled);
  }
  std::vector<Orders> distinct;
  for (const Orders& orders : all) {
    if (orders != own && std::find(distinct.begin(), distinct.end(), orders) == distinct.end())
      distinct.push_back(orders);
  }
  return distinct;
}

/// Runs the row in these orders, and compares with the values that the original has by the
/// reference.
std::string check_orders(const OpCase& row, const BuiltCase& original,
                         const std::array<std::vector<Whole>, 2>& expected, const Orders& orders,
                         const MeshLayout& at, Clusters& clusters) {
  std::string name = row.name;
  for (const auto& names : orders) name += fmt::format(" [{}]", fmt::join(names, ", "));
  try {
    const OpCase other = with_orders(row, orders);
    BuiltCase built(other, DType::float64);
    for (size_t r = 0; r < built.rounds.size(); ++r) {
      for (auto& [fed, value] : built.rounds[r].feeds)
        value = in_order(original.rounds[r].feeds.at(fed), value.dims);
    }
    const Mesh mesh = Mesh::parse(at.mesh);
    const auto values = built.run(clusters.of(mesh.size()), mesh, at.layout);
    std::string errors;
    const std::vector<Tensor> tensors = built.fetched();
    for (size_t i = 0; i < 2 * tensors.size(); ++i) {
      const size_t round = i / tensors.size(), t = i % tensors.size();
      const Whole& value = values[round][t];
      const bool is_loss = !built.loss().empty() && tensors[t].id() == built.loss().id();
      const double error =
          relative_error(value, in_order(expected[round][t], value.dims), is_loss ? 1.0 : 1e-30);
      if (!(error <= 1e-10))
        errors += fmt::format("\n{} layout '{}': '{}' is off by {:.3g}", name, at.layout,
                              tensors[t].name(), error);
    }
    return errors;
  } catch (const Error& e) {
    clusters.drop(Mesh::parse(at.mesh).size());
    return fmt::format("\n{} layout '{}': {} error: {}", name, at.layout, to_string(e.kind()),
                       e.what());
  }
}

TEST_CASE("the order of dims changes no value and no gradient", "[op_cases][dim_orders]") {
  const uint64_t seed = seed_of_run(20261130);
  const size_t limit = std::getenv("TESSERA_LONG") ? 40 : 2;
  std::mt19937_64 random(seed);
  INFO("seed " << seed);
  Clusters clusters;
  std::string errors;
  int rows = 0, orders_run = 0;
  for (const OpCase& row : op_cases()) {
    if (row.random || row.reads_order) continue;
    const BuiltCase original(row, DType::float64);
    std::array<std::vector<Whole>, 2> expected;
    for (size_t r = 0; r < 2; ++r) {
      Reference reference = original.reference(original.rounds[r]);
      for (const Tensor& t : original.fetched()) expected[r].push_back(reference.value(t));
    }
    const std::vector<std::string> splits = dims_in(original.graph(), row.splits);
    ++rows;
    for (const Orders& orders : orders_of(row, limit, random)) {
      ++orders_run;
      errors += check_orders(row, original, expected, orders, {"x:1", ""}, clusters);
      if (splits.empty()) continue;
      const std::string& split = splits[random() % splits.size()];
      errors += check_orders(row, original, expected, orders, {"x:2", split + ":x"}, clusters);
    }
  }
  WARN(fmt::format("seed {}: {} rows in {} orders", seed, rows, orders_run));
  CHECK(errors == "");
}

/// An op along a list of dims.
struct Listed {
  std::string name;
  std::function<std::vector<Tensor>(const Tensor& x, const std::vector<std::string>& list)> build;
};

Tensor stored_like(const Tensor& x, const std::string& name, const std::vector<std::string>& dims) {
  std::vector<Dim> own;
  for (const std::string& dim : dims) own.push_back(x.dim(dim));
  return x.graph().parameter(name, Shape(own), nn::zeros(), x.dtype());
}

std::vector<Listed> listed_ops() {
  using List = std::vector<std::string>;
  std::vector<Listed> ops;
  const auto add = [&](const char* name, auto op) {
    ops.push_back({name, [op](const Tensor& x, const List& list) -> std::vector<Tensor> {
                     return {op(x, Axes(list), Loc::current())};
                   }});
  };
  add("reduce_sum", reduce_sum);
  add("reduce_max", reduce_max);
  add("reduce_min", reduce_min);
  add("reduce_prod", reduce_prod);
  add("reduce_mean", reduce_mean);
  add("reduce_logsumexp", reduce_logsumexp);
  add("softmax", softmax);
  add("log_softmax", log_softmax);
  ops.push_back({"batch_normed", [](const Tensor& x, const List& list) -> std::vector<Tensor> {
                   const Shape rest = x.shape().without(list);
                   const BatchNormed y =
                       batch_normed(x, stored_like(x, "scale", rest.names()),
                                    stored_like(x, "bias", rest.names()), Axes(list));
                   return {y.y, y.mean, y.variance};
                 }});
  ops.push_back({"batch_norm", [](const Tensor& x, const List& list) -> std::vector<Tensor> {
                   return {nn::batch_norm(x, "norm", Axes(list))};
                 }});
  ops.push_back({"einsum", [](const Tensor& x, const List& list) -> std::vector<Tensor> {
                   std::vector<Dim> dims;
                   for (const std::string& dim : list) dims.push_back(x.dim(dim));
                   return {einsum({x, stored_like(x, "w", x.shape().names())}, Shape(dims))};
                 }});
  ops.push_back({"transpose", [](const Tensor& x, List list) -> std::vector<Tensor> {
                   for (const Dim& d : x.shape()) {
                     if (std::find(list.begin(), list.end(), d.name) == list.end())
                       list.push_back(d.name);
                   }
                   std::vector<Dim> dims;
                   for (const std::string& dim : list) dims.push_back(x.dim(dim));
                   return {exp(transpose(x, Shape(dims)))};
                 }});
  return ops;
}

TEST_CASE("the order of a list of dims changes no value and no gradient",
          "[op_cases][dim_orders]") {
  Clusters clusters;
  std::string errors;
  const Dim a("a", 2), b("b", 3), c("c", 4), d("d", 5);
  for (const Listed& op : listed_ops()) {
    OpCase row{op.name, {real("x", {a, b, c, d}, 0.5, 2)}, {"a", "b", "c", "d"}, {}};
    std::vector<std::string> list = {"a", "b", "c"};
    const auto build = [&op](const std::vector<std::string>& dims) {
      return [&op, dims](Graph&, const OpCase::Tensors& in) { return op.build(in[0], dims); };
    };
    row.build = build(list);
    const BuiltCase original(row, DType::float64);
    std::array<std::vector<Whole>, 2> expected;
    for (size_t r = 0; r < 2; ++r) {
      Reference reference = original.reference(original.rounds[r]);
      for (const Tensor& t : original.fetched()) expected[r].push_back(reference.value(t));
    }
    for (; std::next_permutation(list.begin(), list.end());) {
      row.build = build(list);
      row.name = fmt::format("{} {}", op.name, fmt::join(list, ","));
      for (const char* layout : {"", "a:x", "b:x", "c:x", "d:x"})
        errors += check_orders(row, original, expected, {{"a", "b", "c", "d"}},
                               {*layout ? "x:2" : "x:1", layout}, clusters);
      errors +=
          check_orders(row, original, expected, {{"d", "b", "a", "c"}}, {"x:1", ""}, clusters);
    }
  }
  CHECK(errors == "");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
