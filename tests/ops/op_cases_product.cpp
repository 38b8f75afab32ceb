// Rows of einsum and the reductions.
#include <algorithm>
#include <cmath>

#include "ops/op_cases.h"
#include "ops/sum_to.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;

const Dim a("a", 5), b("b", 6), c("c", 4), d("d", 3), n("n", 7);

OpCase product(const std::string& name, std::vector<CaseInput> in, Shape out) {
  OpCase row{
      name, std::move(in), {"a", "b", "c", "d", "n"}, [out](Graph&, const Tensors& x) -> Tensors {
        return {sum_of_products(x, out)};
      }};
  std::erase_if(row.splits, [&](const std::string& dim) {
    return !out.has(dim) && std::none_of(row.in.begin(), row.in.end(),
                                         [&](const CaseInput& i) { return i.shape.has(dim); });
  });
  row.expect = [out](const std::vector<Whole>& x) {
    std::vector<int64_t> sizes;
    for (const Dim& dim : out) sizes.push_back(dim.size);
    return brute_einsum(x, Whole(out.names(), sizes));
  };
  return row;
}

void concat_k_matmuls(std::vector<OpCase>& rows) {
  rows.push_back(product("einsum_matmul", {real("x", {a, n}), real("y", {n, b})}, {a, b}));
  rows.push_back(product("einsum_transposed", {real("x", {n, a}), real("y", {b, n})}, {b, a}));
  rows.push_back(
      product("einsum_batched", {real("x", {c, a, n}), real("y", {c, n, b})}, {c, a, b}));
  rows.push_back(
      product("einsum_inner_batch", {real("x", {a, c, n}), real("y", {n, b, c})}, {b, c, a}));
  rows.push_back(
      product("einsum_two_contracted", {real("x", {a, n, c}), real("y", {c, b, n})}, {a, b}));
  rows.push_back(product("einsum_to_scalar", {real("x", {a, b}), real("y", {b, a})}, {}));
  rows.push_back(product("einsum_of_vector", {real("x", {a, n}), real("y", {n})}, {a}));
  rows.push_back(product("einsum_outer", {real("x", {a, c}), real("y", {b})}, {b, a, c}));
  rows.push_back(
      product("einsum_chain", {real("x", {a, b}), real("y", {b, c}), real("z", {c, n})}, {a, n}));
  rows.push_back(
      product("einsum_star", {real("x", {a, n}), real("y", {b, n}), real("z", {c, n})}, {a, b, c}));
  rows.push_back(product("einsum_broadcasts", {real("x", {a, n}), real("y", {n})}, {d, a}));
  rows.push_back(product("einsum_lone_dims", {real("x", {a, n, d}), real("y", {n, b})}, {b}));
  rows.push_back(product("einsum_one_operand", {real("x", {a, n, b})}, {b, a}));
  rows.push_back(
      product("einsum_parameter", {real("x", {a, n}), parameter(real("w", {n, b}))}, {a, b}));
  rows.push_back(
      {"einsum_of_itself",
       {real("x", {a, b})},
       {"a", "b"},
       [](Graph&, const Tensors& x) -> Tensors {
         return {einsum({x[0], x[0]}, Shape{a}), einsum({x[0], rename(x[0], "a", "d2")})};
       }});
  rows.push_back({"einsum_of_partials",
                  {real("x", {a, n}), real("y", {n, b}), real("z", {n, b})},
                  {"a", "b", "n"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    Tensor u = einsum({x[0], x[1]}, {a, b}), v = einsum({x[0], x[2]}, {a, b});
                    Tensor offset = reduce_sum(x[1], "n");
                    return {u * 2.0 + v - offset, tanh(u) + v};
                  }});
  rows.push_back({"two_layers",
                  {real("x", {a, n}), parameter(real("w", {n, b})), parameter(real("v", {b, c}))},
                  {"a", "b", "c", "n"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {einsum({sigmoid(einsum({x[0], x[1]}, {a, b})), x[2]}, {a, c})};
                  }});
  rows.push_back({"tied_weights",
                  {integers("i", {a, c}, 0, 6), parameter(real("w", {n, b}))},
                  {"a", "b", "c", "n"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {einsum({tanh(gather(x[1], x[0], "n")), x[1]}, {a, c, n})};
                  }});
}

using Reduce = Tensor (*)(Tensor, const Axes&, Loc);

OpCase reduction(const std::string& name, Reduce op, CaseInput x, Axes axes,
                 bool has_gradient = true) {
  OpCase row{
      name, {std::move(x)}, {"a", "b", "c"}, [op, axes](Graph&, const Tensors& in) -> Tensors {
        return {op(in[0], axes, Loc::current())};
      }};
  row.has_gradient = has_gradient;
  return row;
}

void add_reductions(std::vector<OpCase>& rows) {
  const struct {
    const char* name;
    Reduce op;
  } ops[] = {{"reduce_sum", reduce_sum},
             {"reduce_max", reduce_max},
             {"reduce_min", reduce_min},
             {"reduce_prod", reduce_prod}};
  for (const auto& [name, op] : ops) {
    const std::string s = name;
    rows.push_back(reduction(s + "_last", op, real("x", {a, b, c}), "c"));
    rows.push_back(reduction(s + "_first", op, positive("x", {a, b, c}), "a"));
    rows.push_back(reduction(s + "_two", op, real("x", {a, b, c}, -3, -1), {"c", "a"}));
    rows.push_back(reduction(s + "_all", op, real("x", {a, c}, 0.5, 1.5), {"a", "c"}));
    rows.push_back(reduction(s + "_int", op, integers("x", {a, b, c}, -9, -1), {"b"}));
    rows.push_back(
        reduction(s + "_ties", op, integers("x", {a, b}, -1, 1, DType::float32), "a", false));
  }
  rows.push_back(reduction("reduce_any", reduce_any, flags("x", {a, b, c}), {"a", "c"}));
  rows.push_back(reduction("reduce_all", reduce_all, flags("x", {a, b, c}), {"a"}));
  rows.push_back(reduction("reduce_mean", reduce_mean, real("x", {a, b, c}), {"a", "c"}));
  rows.push_back(
      {"sum_all", {real("x", {a, b})}, {"a", "b"}, [](Graph&, const Tensors& in) -> Tensors {
         return {sum_all(exp(in[0])), mean_all(exp(in[0]))};
       }});
  rows.push_back({"max_of_exp",
                  {real("x", {a, b}, -6, -4)},
                  {"a", "b"},
                  [](Graph&, const Tensors& in) -> Tensors {
                    return {reduce_max(exp(in[0]), "a"), reduce_min(-exp(in[0]), "a"),
                            reduce_prod(sin(in[0]), "b")};
                  }});
}

void add_means(std::vector<OpCase>& rows) {
  const std::vector<std::string> axes = {"b", "c"};
  OpCase mean{"mean_by_formula",
              {real("x", {a, b, c})},
              {"a", "b", "c"},
              [axes](Graph&, const Tensors& in) -> Tensors { return {reduce_mean(in[0], axes)}; }};
  mean.expect = [](const std::vector<Whole>& in) {
    Whole y = brute_einsum(in, Whole({"a"}, {5}));
    for (double& v : y.data) v /= 24;
    return y;
  };
  rows.push_back(mean);
  OpCase lse{
      "reduce_logsumexp",
      {real("x", {a, b, c}, -40, 40)},
      {"a", "b", "c"},
      [axes](Graph&, const Tensors& in) -> Tensors { return {reduce_logsumexp(in[0], axes)}; }};
  lse.expect = [](const std::vector<Whole>& in) {
    Whole e = in[0];
    for (double& v : e.data) v = std::exp(v);
    Whole y = brute_einsum({e}, Whole({"a"}, {5}));
    for (double& v : y.data) v = std::log(v);
    return y;
  };
  rows.push_back(lse);
  const Dim batch = Dim::bounded("a", 6);
  OpCase bounded{"mean_of_bounded",
                 {real("x", {batch, b})},
                 {"a", "b"},
                 [batch](Graph& g, const Tensors& in) -> Tensors {
                   return {reduce_mean(exp(in[0]), "a"), dim_size(g, batch, in[0].dtype()),
                           mean_all(in[0]), reduce_max(in[0] - 3.0, "a")};
                 }};
  bounded.sizes = {{"a", 4}};
  rows.push_back(bounded);
  OpCase fixed{
      "dim_size", {real("x", {a, b})}, {"a", "b"}, [](Graph& g, const Tensors& in) -> Tensors {
        return {in[0] * dim_size(g, a, in[0].dtype())};
      }};
  rows.push_back(fixed);
}

/// The real part by the definition, and what comes back from it.
OpCase transform(const std::string& name, int64_t size) {
  const Dim along("n", size);
  OpCase row{name,
             {real("re", {a, along, d}), real("im", {a, along, d})},
             {"a", "n", "d"},
             [](Graph&, const Tensors& x) -> Tensors {
               const Complex y = fft({x[0], x[1]}, "n"), back = fft(y, "n", true);
               const Complex of_real = fft({exp(x[0]), Tensor()}, "n");
               return {y.re, y.im, back.re, back.im, of_real.im};
             }};
  row.expect = [=](const std::vector<Whole>& x) {
    Whole y = x[0];
    each_index({5, size, 3}, [&](const std::vector<int64_t>& i) {
      double sum = 0;
      for (int64_t j = 0; j < size; ++j) {
        const double angle = -2 * 3.14159265358979323846 * double(i[1] * j % size) / double(size);
        const size_t from = static_cast<size_t>((i[0] * size + j) * 3 + i[2]);
        sum += x[0].data[from] * std::cos(angle) - x[1].data[from] * std::sin(angle);
      }
      y.data[static_cast<size_t>((i[0] * size + i[1]) * 3 + i[2])] = sum;
    });
    return y;
  };
  return row;
}

}  // namespace

std::vector<OpCase> product_cases() {
  std::vector<OpCase> rows;
  concat_k_matmuls(rows);
  add_reductions(rows);
  add_means(rows);
  rows.push_back(transform("fft", 7));
  rows.push_back(transform("fft_of_factors", 40));
  return rows;
}

}  // namespace tessera::test
