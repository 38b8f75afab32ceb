// Muon. A matrix X with more columns than rows is orthogonalized by X <- a X + (b A + c A A) X with
// A = X X^T, which needs no singular values: the polynomial takes each of them near 1. A side of
// the matrix is a list of dims, so that A is an einsum of X with itself, one of them with its rows
// renamed; dims that count matrices are in all of them.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "optim/state.h"

namespace tessera {

namespace {

using optim::as_dtype_of, optim::state_of, optim::wide;

/// The dims of a parameter: which count matrices, and its two sides.
struct Sides {
  std::vector<Dim> stacked, rows, columns;
  static int64_t size(const std::vector<Dim>& dims) {
    int64_t n = 1;
    for (const Dim& d : dims) n *= d.size;
    return n;
  }
};

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Sides sides_of(const MuonOptions& o, Tensor p) {
  const int layers = p.graph().find_stored(p.id())->layers;
  Sides sides;
  for (int d = 0; d < p.shape().rank(); ++d) {
    const Dim& dim = p.shape()[d];
    auto& of = d < layers || holds(o.stacked, dim.name) ? sides.stacked
               : holds(o.rows, dim.name)                ? sides.rows
                                                        : sides.columns;
    of.push_back(dim);
  }
  return sides;
}

bool is_matrix(const MuonOptions& o, Tensor p) {
  if (!optim::any_match(o.matrices, p)) return false;
  const Sides sides = sides_of(o, p);
  return !sides.rows.empty() && !sides.columns.empty();
}

Shape shape_of(std::initializer_list<std::vector<Dim>> lists) {
  std::vector<Dim> dims;
  for (const std::vector<Dim>& list : lists) dims.insert(dims.end(), list.begin(), list.end());
  return Shape(dims);
}

std::vector<Dim> marked(std::vector<Dim> dims, const char* mark) {
  for (Dim& d : dims) d = d.renamed(mark + d.name);
  return dims;
}

Tensor renamed(Tensor x, const std::vector<Dim>& from, const std::vector<Dim>& to) {
  for (size_t i = 0; i < from.size(); ++i) x = rename(x, from[i].name, to[i].name);
  return x;
}

/// x with singular values near 1.
Tensor orthogonalized(Tensor x, const Sides& sides, int64_t iterations) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315, kEps = 1e-7;
  const bool wide = Sides::size(sides.rows) <= Sides::size(sides.columns);
  const std::vector<Dim>&s = wide ? sides.rows : sides.columns,  // the smaller side
      &other = wide ? sides.columns : sides.rows;
  const std::vector<Dim> t = marked(s, "muon_"), u = marked(s, "muon2_");
  const Shape matrix = shape_of({sides.stacked, s, other}),
              square = shape_of({sides.stacked, s, t});
  std::vector<std::string> both;
  for (const std::vector<Dim>& side : {s, other})
    for (const Dim& d : side) both.push_back(d.name);
  x = x / (sqrt(reduce_sum(tessera::square(x), both)) + kEps);
  for (int64_t i = 0; i < iterations; ++i) {
    Tensor gram = einsum({x, renamed(x, s, t)}, square);  // [s, t], symmetric
    Tensor left = renamed(gram, t, u);                    // [s, u]
    Tensor again = einsum({left, renamed(left, s, t)}, square);
    Tensor polynomial = gram * b + again * c;
    x = x * a + einsum({polynomial, renamed(x, s, t)}, matrix);
  }
  return x;
}

void require_options(const MuonOptions& o, Loc at) {
  optim::require_in("muon", "mu", o.mu, 0, 1, at);
  optim::require_in("muon", "weight_decay", o.weight_decay, 0, INFINITY, at);
  TESSERA_REQUIRE(o.iterations >= 1 && o.iterations <= 100,
                  "[muon] {} iterations of Newton-Schulz; there are 1 to 100 ({})", o.iterations,
                  where(at));
}

void require_matrices(Graph& g, const MuonOptions& o, Loc at) {
  optim::require_matches(g, "muon", "matrices", o.matrices, at);
  const std::vector<Tensor> all = g.parameters();
  TESSERA_REQUIRE(
      std::any_of(all.begin(), all.end(), [&](const Tensor& p) { return is_matrix(o, p); }),
      "[muon] no parameter named like '{}' is a matrix with the rows '{}'; name the dims of one "
      "side of the matrices in MuonOptions::rows ({})",
      fmt::join(o.matrices, ", "), fmt::join(o.rows, ", "), where(at));
}

}  // namespace

Optimizer muon(const MuonOptions& o, const Optimizer& others, Loc at) {
  require_options(o, at);
  TESSERA_REQUIRE(static_cast<bool>(others),
                  "[muon] the optimizer of the other parameters is an empty function ({})",
                  where(at));
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor step) {
    require_matrices(g, o, at);
    if (!is_matrix(o, p)) return others(g, p, grad, lr, step);
    const Sides sides = sides_of(o, p);
    Tensor m = state_of(p, "muon_m"), next = m * o.mu + grad * (1 - o.mu);
    g.update(m, next);
    Tensor change = o.nesterov ? grad * (1 - o.mu) + next * o.mu : next;
    change = orthogonalized(change, sides, o.iterations);
    const auto larger = std::max(Sides::size(sides.rows), Sides::size(sides.columns));
    change = change * (0.2 * std::sqrt(static_cast<double>(larger)));
    const double decay = optim::decay_of(p, o.weight_decay, {}, true);
    if (decay != 0) change = change + wide(p) * decay;
    g.update(p, wide(p) - change * lr);
  };
}

}  // namespace tessera
