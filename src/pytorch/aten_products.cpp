// Products: einsums over names.
#include <algorithm>
#include <sstream>

#include "pytorch/aten.h"
#include "tessera/experts.h"

namespace tessera::pytorch {

Tensor contract(const Tensor& a, const Tensor& b, const std::vector<Dim>& contracted,
                const std::vector<Dim>& out) {
  std::vector<Tensor> xs = {a, b};
  double factor = 1;
  for (const Dim& d : contracted) {
    const bool in_a = a.shape().has(d.name), in_b = b.shape().has(d.name);
    if (!in_a && !in_b) factor *= static_cast<double>(d.size);
    if (in_a != in_b) xs[in_a ? 0 : 1] = reduce_sum(xs[in_a ? 0 : 1], d);
  }
  std::vector<Dim> kept;
  for (const Dim& d : out)
    if (a.shape().has(d.name) || b.shape().has(d.name)) kept.push_back(d);
  const Tensor y = einsum(xs, shape_of(kept));
  return factor == 1 ? y : y * factor;
}

namespace {

using Optional = std::optional<Value>;

/// The last part of a module's path that is a name: "up" of "b.0.mlp.up".
std::string module_name(const std::string& path) {
  std::string name;
  for (size_t at = 0; at < path.size();) {
    const size_t dot = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, dot - at);
    if (part.find_first_not_of("0123456789") != std::string::npos) name = part;
    at = dot + 1;
  }
  return name;
}

/// `spec` of two operands in this order.
Value product(Call& c, const std::string& spec, const Value& a, const Value& b,
              const std::string& contracted) {
  return c.joined(spec, {a, b}, [&](const Joined& j) {
    std::vector<Dim> over;
    for (const char label : contracted)
      for (const Dim& d : j.of(label)) over.push_back(d);
    return contract(tessera::cast(j.x[0], c.dtype()), tessera::cast(j.x[1], c.dtype()), over,
                    j.out);
  });
}

std::vector<Value> linear(Call& c) {
  const Value x = c.value("input"), w = c.value("weight");
  c.role(w.axes[0], module_name(c.node().module), 20);
  c.projection(w.axes[1], w.axes[0]);
  return {c.joined("...i,oi,o->...o", {x, w, c.find("bias")}, [&](const Joined& j) {
    const Tensor y = contract(j.x[0], j.x[1], j.of('i'), j.out);
    return j.x[2].empty() ? y : y + j.x[2];
  })};
}

std::vector<Value> matmul(Call& c) {
  const Value a = c.value("self"), b = c.value(c.is_given("mat2") ? "mat2" : "other");
  if (a.axes.size() == 1 && b.axes.size() == 1) return {product(c, "k,k->", a, b, "k")};
  if (b.axes.size() == 1) return {product(c, "...k,k->...", a, b, "k")};
  if (a.axes.size() == 1) return {product(c, "k,...kj->...j", a, b, "k")};
  if (a.axes.size() == 2 && b.axes.size() == 2) c.projection(b.axes[0], b.axes[1]);
  return {product(c, "...ik,...kj->...ij", a, b, "k")};
}

std::vector<Value> outer(Call& c) {
  return {
      product(c, "i,j->ij", c.value("self"), c.value(c.is_given("vec2") ? "vec2" : "other"), "")};
}

/// beta self + alpha a b.
template <const char* first, const char* second>
std::vector<Value> added_product(Call& c) {
  const Value a = c.value(first), b = c.value(second);
  const double alpha = c.number("alpha", 1), beta = c.number("beta", 1);
  if (b.axes.size() == 2) {
    c.role(b.axes[1], module_name(c.node().module), 20);
    c.projection(b.axes[0], b.axes[1]);
  }
  const Value y = product(c, "...ik,...kj->...ij", a, b, "k");
  if (beta == 0) return {c.pointwise({y}, c.dtype(), [&](const auto& x) { return x[0] * alpha; })};
  return {c.pointwise({y, c.value("self")}, c.dtype(), [&](const auto& x) {
    return (alpha == 1 ? x[0] : x[0] * alpha) + (beta == 1 ? x[1] : x[1] * beta);
  })};
}

std::vector<Value> einsum_rule(Call& c) {
  std::string spec = c.text("equation", "");
  std::erase(spec, ' ');
  std::vector<Value> xs = c.values("tensors");
  if (spec.find("->") == std::string::npos) {  // letters that stand once, in order of the alphabet
    std::string once;
    for (char letter = 'A'; letter <= 'z'; ++letter)
      if (std::isalpha(letter) && std::count(spec.begin(), spec.end(), letter) == 1) once += letter;
    spec += "->" + std::string(spec.find("...") != std::string::npos ? "..." : "") + once;
  }
  const std::string result = spec.substr(spec.find("->") + 2);
  // Two at a time, from the left, so that an operand may lack dims.
  std::vector<std::string> parts;
  for (size_t at = 0; at < spec.size();) {
    const size_t end = std::min(spec.find(',', at), spec.find("->"));
    parts.push_back(spec.substr(at, end - at));
    at = spec[end] == ',' ? end + 1 : spec.size();
  }
  if (parts.size() != xs.size()) c.refuse("has another number of operands than its equation");
  std::string left = parts[0];
  Value y = xs[0];
  for (size_t i = 1; i < xs.size(); ++i) {
    std::string rest = result, both, gone;
    for (size_t k = i + 1; k < xs.size(); ++k) rest += parts[k];
    for (const char letter : left + parts[i]) {
      if (letter == '.' || both.find(letter) != std::string::npos ||
          gone.find(letter) != std::string::npos)
        continue;
      (rest.find(letter) != std::string::npos ? both : gone) += letter;
    }
    const bool leading = (left + parts[i]).find("...") != std::string::npos;
    const std::string out = i + 1 == xs.size() ? result : (leading ? "..." : "") + both;
    y = product(c, left + "," + parts[i] + "->" + out, y, xs[i], gone);
    left = out;
  }
  if (xs.size() == 1) {
    y = c.joined(spec, {y}, [&](const Joined& j) {
      std::vector<Dim> gone;
      for (const auto& [label, dims] : j.dims)
        if (result.find(static_cast<char>(label)) == std::string::npos && label > 0)
          gone.insert(gone.end(), dims.begin(), dims.end());
      return gone.empty() ? j.x[0] : reduce_sum(Call::having(j.x[0], gone), Axes(names_of(gone)));
    });
  }
  return {y};
}

std::vector<Value> bilinear_rule(Call& c) {
  const Value a = c.value("input1"), b = c.value("input2"), w = c.value("weight");
  c.role(w.axes[0], module_name(c.node().module), 20);
  return {c.joined("...i,...k,oik,o->...o", {a, b, w, c.find("bias")}, [&](const Joined& j) {
    std::vector<Dim> half = j.out, left = j.of('i');
    for (const Dim& d : j.of('k')) half.push_back(d);
    const Tensor y = contract(contract(j.x[0], j.x[2], left, half), j.x[1], j.of('k'), j.out);
    return j.x[3].empty() ? y : y + j.x[3];
  })};
}

/// The sum of a b c over some axes, where each may lack axes: core ATen's form of `bilinear`.
std::vector<Value> trilinear(Call& c) {
  std::vector<std::optional<Value>> xs;
  std::string spec;
  const std::vector<int64_t> gone = c.list("sumdim");
  const char* const names[] = {"i1", "i2", "i3"};
  const char* const missing[] = {"expand1", "expand2", "expand3"};
  std::string letters;
  for (size_t k = 0; k < 3; ++k) {
    Value x = c.value(names[k]);
    AxisList axes = x.axes;
    for (const int64_t d : c.list(missing[k])) axes.insert(axes.begin() + d, Axis());
    letters = std::string("abcdefghijklmnop").substr(0, axes.size());
    spec += (k == 0 ? "" : ",") + letters;
    xs.emplace_back(c.moved(x, axes));
  }
  std::string kept;
  for (size_t d = 0; d < letters.size(); ++d)
    if (std::find(gone.begin(), gone.end(), static_cast<int64_t>(d)) == gone.end())
      kept += letters[d];
  return {c.joined(spec + "->" + kept, xs, [&](const Joined& j) {
    std::vector<Dim> over;
    for (const int64_t d : gone)
      for (const Dim& dim : j.of(letters[static_cast<size_t>(d)])) over.push_back(dim);
    const Shape both = j.x[0].shape().united(j.x[1].shape()).united(j.x[2].shape());
    const Tensor y = einsum({j.x[0], j.x[1], j.x[2]}, both.without(names_of(over)));
    double count = 1;  // all three lack a dim
    for (const Dim& d : over)
      if (!both.has(d.name)) count *= static_cast<double>(d.size);
    return count == 1 ? y : y * count;
  })};
}

/// Distances of rows: (sum of |a - b|^p)^(1/p).
std::vector<Value> distances(Call& c) {
  const double p = c.number("p", 2);
  if (p != 1 && p != 2) c.refuse("has a p other than 1 and 2, which Tessera does not know");
  return {c.joined("...am,...bm->...ab", {c.value("x1"), c.value("x2")}, [&](const Joined& j) {
    const Tensor apart = Call::having(j.x[0] - j.x[1], j.of('m'));
    const Axes over(names_of(j.of('m')));
    return p == 1 ? reduce_sum(abs(apart), over) : sqrt(reduce_sum(square(apart), over));
  })};
}

/// Rows in the order of their groups, of which group e ends at offs[e]: each row by the matrix of
/// its own.
std::vector<Value> grouped_product(Call& c) {
  const bool is_atens = c.is_given("self");
  const Value x = c.value(is_atens ? "self" : "input"), w = c.value(is_atens ? "mat2" : "weight"),
              ends = c.value("offs");
  if (c.is_given("bias")) c.refuse("has a bias, which Tessera does not know");
  c.role(w.axes[0], "experts", 60);
  c.projection(w.axes[1], w.axes[2]);
  return {c.joined("rk,ekf,e->rf", {x, w, ends}, [&](const Joined& j) {
    std::vector<Dim> contracted = j.of('k'), rows = j.of('r');
    const Dim experts = merged(j.of('e'));
    const Tensor at = positions(c.graph(), rows);
    const Tensor is_behind = tessera::cast(
        less_equal(merge(Call::having(j.x[2], j.of('e')), j.of('e'), experts), at), DType::int32);
    const Tensor group = reduce_sum(is_behind, experts);
    const Tensor matrices = merge(Call::having(j.x[1], j.of('e')), j.of('e'), experts);
    return grouped_dot(Call::having(j.x[0], rows), matrices, group, experts.name, shape_of(j.out));
  })};
}

/// The gates of the choices that a mask has, summed for each token (rows.h).
std::vector<Value> chosen_gates(Call& c) {
  const bool turned = c.flag("turned", false);
  Value y = c.joined(turned ? "tk,kt->t" : "tk,tk->t", {c.value("self"), c.value("mask")},
                     [&](const Joined& j) {
                       const Tensor hits = j.x[0] * tessera::cast(j.x[1], j.x[0].dtype());
                       return reduce_sum(Call::having(hits, j.of('k')), Axes(names_of(j.of('k'))));
                     });
  if (c.meta().sizes.size() == 2) y.axes.push_back({});
  return {y};
}

/// Rows of chosen experts, weighted and summed (experts.h): the routed layer of tessera/experts.h.
std::vector<Value> chosen_experts(Call& c) {
  const Value x = c.value("x"), indices = c.value("indices"), gates = c.value("gates"),
              down = c.value("down");
  const bool turned = c.flag("up_turned", false), down_turned = c.flag("down_turned", false);
  const std::vector<int64_t> parts = c.list("parts"), part = c.list("part");
  std::string spec = std::string("...d,...k,...k,") + (down_turned ? "efd" : "edf");
  std::vector<std::optional<Value>> operands = {x, indices, gates, down};
  for (Value w : c.values("up")) {
    const size_t i = operands.size() - 4;
    if (parts[i] > 1)
      w = part_of(c, w, turned ? 2 : 1, parts[i], c.flag("strided", false), part[i]);
    operands.emplace_back(w);
    spec += turned ? ",edf" : ",efd";
  }
  c.role(down.axes[0], "experts", 60);
  if (const std::optional<Value> scores = c.find("scores")) {
    if (c.size(scores->axes.back()) != c.size(down.axes[0]))
      c.refuse("chooses among another number of experts than there are");
    c.unify(scores->axes.back(), down.axes[0]);
  }
  c.role(indices.axes.back(), "choices", 60);
  c.projection(x.axes.back(), down.axes[down_turned ? 1 : 2]);
  c.projection(down.axes[down_turned ? 1 : 2], x.axes.back());
  return {c.joined(spec + "->...d", operands, [&](const Joined& j) {
    const auto [d, e, f, k] = std::tuple{j.of('d'), j.of('e'), j.of('f'), j.of('k')};
    const auto matrix = [&](const Tensor& w) {
      std::vector<Dim> all = e;
      for (const auto* more : {&d, &f}) all.insert(all.end(), more->begin(), more->end());
      return merge(merge(merge(tessera::cast(Call::having(w, all), j.x[0].dtype()), e, merged(e)),
                         d, merged(d)),
                   f, merged(f));
    };
    const auto chosen = [&](const Tensor& of) { return merge(Call::having(of, k), k, merged(k)); };
    Experts weights;
    for (size_t i = 4; i < j.x.size(); ++i) weights.up.push_back(matrix(j.x[i]));
    std::stringstream names(c.text("activations", ""));
    weights.activations.clear();
    for (std::string name; names >> name;) weights.activations.push_back(name);
    weights.down = matrix(j.x[3]);
    weights.dim = merged(e).name, weights.choices = merged(k).name;
    std::vector<Dim> tokens;
    for (const Dim& dim : j.out)
      if (!shape_of(d).has(dim.name)) tokens.push_back(dim);
    const Tensor index = chosen(Call::having(j.x[1], tokens));
    const Tensor gate = chosen(Call::having(j.x[2], tokens));
    const Tensor rows = merge(Call::having(j.x[0], j.out), d, merged(d));
    return unmerge(experts(rows, index, gate, weights), merged(d), d);
  })};
}

constexpr char kMat1[] = "mat1", kMat2[] = "mat2", kBatch1[] = "batch1", kBatch2[] = "batch2";

const Row kProducts[] = {
    {"linear.default", linear},
    {"matmul.default mm.default bmm.default mv.default dot.default", matmul},
    {"outer.default ger.default", outer},
    {"addmm.default", added_product<kMat1, kMat2>},
    {"baddbmm.default", added_product<kBatch1, kBatch2>},
    {"einsum.default", einsum_rule},
    {"bilinear.default", bilinear_rule},
    {"_trilinear.default", trilinear},
    {"cdist.default _cdist_forward.default", distances},
    {"transformers.grouped_mm_fallback.default _grouped_mm.default", grouped_product},
    {"tessera.experts", chosen_experts},
    {"tessera.chosen_gates", chosen_gates},
};

}  // namespace

std::span<const Row> product_rows() { return kProducts; }

}  // namespace tessera::pytorch
