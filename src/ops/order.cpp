// argmax, top_k, cumsum, linear_scan: ops that need a dim whole. If it is split, each slice is
// processed alone; then only the candidates or the total of each slice are combined.
#include <algorithm>

#include "base/identity.h"
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/bounded.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sliced.h"
#include "ops/sum_to.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kArgmax, kTopK;

namespace {

using Types = std::vector<ValueType>;
using Tensors = std::vector<Tensor>;

TopK extreme(Tensor x, const std::string& dim, const Dim& k, bool smallest,
             Loc at = Loc::current()) {
  const std::vector<Tensor> out = x.graph().add(
      kTopK, {x},
      {{"dim", dim}, {"k_name", k.name}, {"k", k.size}, {"smallest", int64_t{smallest}}}, at);
  return {out[0], out[1]};
}

/// By name, with role `whole` for `dim` and the k dim. Padding must be the identity of `combiner`.
IndexSpace whole_space(const OpCall& call, Combiner combiner) {
  IndexSpace space = index_space_by_name(call);
  for (Factor& f : space.factors) {
    const bool is_k = call.attrs.has("k_name") && f.name == call.attrs.get<std::string>("k_name");
    if (f.name == dim_of(call.attrs) || is_k) f.role = Role::whole, f.combiner = combiner;
  }
  return space;
}

Types infer_argmax(const OpCall& call) {
  require_dims(call.in[0].shape, {dim_of(call.attrs)}, "reduced");
  const Shape rest = call.in[0].shape.without({dim_of(call.attrs)});
  return {{rest, call.in[0].dtype}, {rest, DType::int32}};
}

void emit_argmax(EmitCall& call) {
  const std::vector<int> factors = all_factors(call);
  const int dim = call.factor(dim_of(call.call.attrs));
  Step& step = call.step;
  step.combiner = Combiner::max;
  step.in = {align(call, call.in[0], call.space.in[0], factors)};
  for (int i : {0, 1})
    step.out.push_back(align(call, call.out[i], call.space.out[i], factors, true));
  step.spec = ArgReduceSpec{dim};
  step.exprs = {AffineExpr{}};
}

Types infer_top_k(const OpCall& call) {
  const Dim k(call.attrs.get<std::string>("k_name"), call.attrs.get<int64_t>("k"));
  require_dims(call.in[0].shape, {dim_of(call.attrs)}, "reduced");
  TESSERA_REQUIRE(k.size <= call.in[0].shape.dim(dim_of(call.attrs)).size,
                  "k = {} is larger than dim '{}' of size {}", k.size, dim_of(call.attrs),
                  call.in[0].shape.dim(dim_of(call.attrs)).size);
  std::vector<Dim> dims = call.in[0].shape.without({dim_of(call.attrs)}).dims();
  dims.push_back(k);
  return {{Shape(dims), call.in[0].dtype}, {Shape(dims), DType::int32}};
}

/// The k dim takes the position of the reduced dim in the results.
void emit_top_k(EmitCall& call) {
  std::vector<int> in_factors, out_factors;
  const int dim = call.factor(dim_of(call.call.attrs)),
            k = call.factor(call.call.attrs.get<std::string>("k_name"));
  for (const auto& d : call.space.in[0]) {
    in_factors.push_back(d[0]);
    out_factors.push_back(d[0] == dim ? k : d[0]);
  }
  Step& step = call.step;
  step.in = {align(call, call.in[0], call.space.in[0], in_factors)};
  for (int i : {0, 1}) step.out.push_back(align(call, call.out[i], call.space.out[i], out_factors));
  const auto position = std::find(in_factors.begin(), in_factors.end(), dim) - in_factors.begin();
  for (View& view : step.out)
    view.sizes[position] = call.logical[k];  // padding of a split k is never read
  step.spec = ArgReduceSpec{position, call.call.attrs.get<int64_t>("smallest") != 0};
  step.exprs = {AffineExpr{}};
}

std::vector<Tensor> top_k_gradient(const GradCall& c) {
  if (c.grads[0].empty()) return {Tensor()};
  const std::string dim = dim_of(c.attrs), k = c.attrs.get<std::string>("k_name");
  const auto apart = [&](Tensor x) { return k == dim ? rename(x, k, dim + "_first") : x; };
  // What exceeds the size of the run has indices beyond it, and no gradient.
  const bool may_exceed = c.in[0].dim(dim).is_bounded;
  return {scatter_add(apart(c.out[1]), apart(c.grads[0]), c.in[0].shape(), dim,
                      may_exceed ? OutOfRange::zero : OutOfRange::error)};
}

/// x [..., slices, inner] with the dim that was divided, as it was.
Tensor merged_slices(Tensor x, const Sliced& sliced, const Dim& whole) {
  std::vector<Dim> room;
  for (const Dim& d : x.shape()) {
    if (d.name == whole.name) room.emplace_back(whole.name, d.size * sliced.inner.size);
    if (d.name != whole.name && d.name != sliced.inner.name) room.push_back(d);
  }
  Tensor result = reshape(x, Shape(room));
  if (result.dim(whole.name).size != whole.size) result = slice(result, whole.name, 0, whole.size);
  return whole.is_bounded ? with_bound(result, whole, Loc::current()) : result;
}

Types infer_cumsum(const OpCall& call) {
  require_number(call.in[0].dtype);
  require_dims(call.in[0].shape, {dim_of(call.attrs)}, "summed");
  return {call.in[0]};
}

void emit_cumsum(EmitCall& call) {
  emit_aligned(call);
  const Attrs& attrs = call.call.attrs;
  call.step.spec = ScanSpec{call.factor(dim_of(attrs)), attrs.get<int64_t>("exclusive", 0) != 0,
                            attrs.get<int64_t>("reverse") != 0};
}

std::vector<Tensor> cumsum_gradient(const GradCall& c) {
  return {cumsum(c.grads[0], dim_of(c.attrs), c.attrs.get<int64_t>("exclusive") != 0,
                 c.attrs.get<int64_t>("reverse") == 0)};
}

IndexSpace scanned_space(const OpCall& call) { return whole_space(call, Combiner::sum); }

Types infer_linear_scan(const OpCall& call) {
  TESSERA_REQUIRE(is_floating(call.in[0].dtype) && call.in[1].dtype == call.in[0].dtype,
                  "x is {} and decay {}; both are of one floating type, use cast()",
                  to_string(call.in[0].dtype), to_string(call.in[1].dtype));
  require_dims(call.in[0].shape, {dim_of(call.attrs)}, "scanned");
  return {call.in[0]};
}

Tensor next_of(Tensor x, const std::string& dim, bool reverse) {
  return x.shape().has(dim) ? shift(x, dim, reverse ? 1 : -1) : x;
}

/// The recurrence runs the other way, with the decay of the element that follows.
Tensors linear_scan_gradient(const GradCall& c) {
  const std::string dim = dim_of(c.attrs);
  const bool reverse = c.attrs.get<int64_t>("reverse") != 0;
  const Tensor dx = linear_scan(c.grads[0], next_of(c.in[1], dim, reverse), dim, !reverse);
  return {dx, sum_to(dx * next_of(c.out[0], dim, !reverse), c.in[1].shape())};
}

/// A slice begins with nothing. What the slices before it leave, the recurrence of their totals,
/// arrives at each element multiplied by the decays up to there.
Tensors linear_scan_sharded(const OpCall& call, const Tensors& in, const std::string& dim,
                            const std::string&, int64_t slices) {
  const bool reverse = call.attrs.get<int64_t>("reverse") != 0;
  const Sliced x(wide(in[0]), dim, slices, 0),
      decay(broadcast(wide(in[1]), in[0].shape()), dim, slices, 1);
  const std::string inner = x.inner.name, all = dim + "/slices";  // a name that no rule splits
  const Tensor own = linear_scan(x.x, decay.x, inner, reverse);
  const int64_t first = reverse ? x.inner.size - 1 : 0, last = x.inner.size - 1 - first;
  const Tensor begin = equal(iota(x.x.graph(), x.inner), static_cast<double>(first));
  const Tensor decays =
      linear_scan(where(broadcast(begin, decay.x.shape()), decay.x, zeros_like(decay.x)), decay.x,
                  inner, reverse);
  const auto total = [&](Tensor t) {
    return rename(reduce_sum(slice(t, inner, last, 1), inner), dim, all);
  };
  const Tensor states = linear_scan(total(own), total(decays), all, reverse);
  const Tensor before = rename(next_of(states, all, !reverse), all, dim);
  return {
      merged_slices(narrow(own + decays * before, in[0].dtype()), x, call.in[0].shape.dim(dim))};
}

/// The `k` extreme elements of each slice, in order, and their global indices: [..., candidates].
struct Candidates {
  Tensor values, indices;
  std::string dim;
};
Candidates candidates(const Sliced& s, TopK of_slices, const std::string& dim, int64_t k) {
  Graph& g = s.x.graph();
  const Dim slices = s.x.dim(dim);
  const Tensor each = constant(g, static_cast<double>(s.inner.size), DType::int32);
  const Tensor indices = of_slices.indices + iota(g, slices) * each;
  const Dim all(dim + "/candidates", slices.size * k);
  std::vector<Dim> by_slice = s.x.shape().without({dim, s.inner.name}).dims();
  std::vector<Dim> merged = by_slice;
  merged.push_back(all);
  by_slice.push_back(slices);
  for (const Dim& d : of_slices.values.shape()) {
    if (!s.x.shape().has(d.name)) by_slice.push_back(d);  // k
  }
  auto merge = [&](Tensor t) { return reshape(transpose(t, Shape(by_slice)), Shape(merged)); };
  return {merge(of_slices.values), merge(indices), all.name};
}

/// True if `k` candidates per slice with their indices have fewer bytes than the slices.
bool worth(const ValueType& x, const std::string& dim, int64_t slices, int64_t k) {
  const int64_t size = size_of(x.dtype);
  return slices * k * (size + size_of(DType::int32)) < x.shape.dim(dim).size * size;
}

std::vector<Tensor> argmax_sharded(const OpCall& call, const Tensors& in, const std::string& dim,
                                   const std::string&, int64_t slices) {
  if (!worth(call.in[0], dim, slices, 1)) return {};
  const Sliced s(in[0], dim, slices, last_in_order(in[0].dtype(), false));
  auto largest = [](Tensor t, const std::string& along) -> TopK {
    const std::vector<Tensor> out = t.graph().add(kArgmax, {t}, {{"dim", along}}, Loc::current());
    return {out[0], out[1]};
  };
  const Candidates c = candidates(s, largest(s.x, s.inner.name), dim, 1);
  const TopK best = largest(c.values, c.dim);
  return {best.values, gather(c.indices, best.indices, c.dim, OutOfRange::clamp)};
}

std::vector<Tensor> top_k_sharded(const OpCall& call, const Tensors& in, const std::string& dim,
                                  const std::string&, int64_t slices) {
  const Dim k(call.attrs.get<std::string>("k_name"), call.attrs.get<int64_t>("k"));
  const bool smallest = call.attrs.get<int64_t>("smallest") != 0;
  if (!worth(call.in[0], dim, slices, k.size)) return {};
  const Sliced s(in[0], dim, slices, last_in_order(in[0].dtype(), smallest));
  const Dim first(dim + "/first", std::min(k.size, s.inner.size));
  const Candidates c = candidates(s, extreme(s.x, s.inner.name, first, smallest), dim, first.size);
  const TopK best = extreme(c.values, c.dim, k, smallest);
  return {best.values, gather(c.indices, best.indices, c.dim, OutOfRange::clamp)};
}

/// Cumulative sums within each slice plus the totals of the slices before it.
std::vector<Tensor> cumsum_sharded(const OpCall& call, const Tensors& in, const std::string& dim,
                                   const std::string&, int64_t slices) {
  const bool exclusive = call.attrs.get<int64_t>("exclusive") != 0,
             reverse = call.attrs.get<int64_t>("reverse") != 0;
  const Sliced s(wide(in[0]), dim, slices, 0);
  const std::string all = dim + "/slices";  // a name that no rule splits
  const Tensor totals = rename(reduce_sum(s.x, s.inner.name), dim, all);
  const Tensor before = rename(cumsum(totals, all, true, reverse), all, dim);
  const Tensor sums =
      narrow(add(cumsum(s.x, s.inner.name, exclusive, reverse), before), in[0].dtype());
  return {merged_slices(sums, s, call.in[0].shape.dim(dim))};
}

}  // namespace

extern const Op kArgmax = {
    .name = "argmax",
    .infer = infer_argmax,
    .factors = [](const OpCall& call) { return whole_space(call, Combiner::max); },
    .kernel = KernelKind::arg_reduce,
    .emit = emit_argmax,
    .sharded_body = argmax_sharded};
extern const Op kTopK = {.name = "top_k",
                         .infer = infer_top_k,
                         .factors =
                             [](const OpCall& call) {
                               const bool smallest = call.attrs.get<int64_t>("smallest") != 0;
                               return whole_space(call, smallest ? Combiner::min : Combiner::max);
                             },
                         .gradient = top_k_gradient,
                         .kernel = KernelKind::top_k,
                         .emit = emit_top_k,
                         .sharded_body = top_k_sharded};
extern const Op kCumsum = {.name = "cumsum",
                           .infer = infer_cumsum,
                           .factors = scanned_space,
                           .linear = {1u},
                           .gradient = cumsum_gradient,
                           .kernel = KernelKind::cumsum,
                           .emit = emit_cumsum,
                           .sharded_body = cumsum_sharded};
extern const Op kLinearScan = {.name = "linear_scan",
                               .infer = infer_linear_scan,
                               .factors = scanned_space,
                               .linear = {1u},
                               .gradient = linear_scan_gradient,
                               .kernel = KernelKind::cumsum,
                               .emit = emit_cumsum,
                               .sharded_body = linear_scan_sharded};

Tensor argmax(Tensor x, const std::string& dim, Loc at) {
  return on_behalf_of("argmax", at, [&] {
    return x.graph().add(kArgmax, {x}, {{"dim", dim}}, at)[1];
  });
}

namespace {

/// All elements in order, along `dim`.
Tensor sorted(Tensor x, const std::string& dim, bool descending, bool indices, Loc at) {
  const Dim whole = x.dim(dim), all(dim + "_sorted", whole.size);
  const TopK top = extreme(x, dim, all, !descending, at);
  Tensor result = rename(indices ? top.indices : top.values, all.name, dim, at);
  if (whole.is_bounded) result = with_bound(result, whole, at);
  return result.shape() == x.shape() ? result : transpose(result, x.shape(), at);
}

/// Element n of the k extreme ones, without `dim`.
Tensor nth(Tensor x, const std::string& dim, int64_t n, bool smallest, bool indices, Loc at) {
  const int64_t size = x.dim(dim).size;
  TESSERA_REQUIRE(n >= 0 && n < size,
                  "element {} in order of dim '{}' of size {}; they are 0 .. {}", n, dim, size,
                  size - 1);
  const Dim k(dim + "_first", n + 1);
  const TopK top = extreme(x, dim, k, smallest, at);
  return reshape(slice(indices ? top.indices : top.values, k.name, n, 1, at),
                 x.shape().without({dim}), at);
}

}  // namespace

TopK top_1(Tensor x, const std::string& dim, Loc at) {
  return on_behalf_of("top_1", at, [&]() -> TopK {
    const TopK top = extreme(x, dim, Dim(dim + "_first", 1), false, at);
    const Shape rest = x.shape().without({dim});
    return {reshape(top.values, rest, at), reshape(top.indices, rest, at)};
  });
}

TopK top_k(Tensor x, const std::string& dim, const Dim& k, Loc at) {
  return on_behalf_of("top_k", at, [&]() -> TopK { return extreme(x, dim, k, false, at); });
}

Tensor sort(Tensor x, const std::string& dim, bool descending, Loc at) {
  return on_behalf_of("sort", at, [&] { return sorted(x, dim, descending, false, at); });
}

Tensor argsort(Tensor x, const std::string& dim, bool descending, Loc at) {
  return on_behalf_of("argsort", at, [&] { return sorted(x, dim, descending, true, at); });
}

Tensor nth_largest(Tensor x, const std::string& dim, int64_t n, Loc at) {
  return on_behalf_of("nth_largest", at, [&] { return nth(x, dim, n, false, false, at); });
}

Tensor nth_smallest(Tensor x, const std::string& dim, int64_t n, Loc at) {
  return on_behalf_of("nth_smallest", at, [&] { return nth(x, dim, n, true, false, at); });
}

Tensor argmin(Tensor x, const std::string& dim, Loc at) {
  return on_behalf_of("argmin", at, [&] {
    if (is_floating(x.dtype())) return argmax(neg(x, at), dim, at);  // NaN is chosen by both
    return nth(x, dim, 0, true, true, at);
  });
}

Tensor cumsum(Tensor x, const std::string& dim, bool exclusive, bool reverse, Loc at) {
  return on_behalf_of("cumsum", at, [&] {
    return one(kCumsum, {x},
               {{"dim", dim}, {"exclusive", int64_t{exclusive}}, {"reverse", int64_t{reverse}}},
               at);
  });
}

Tensor linear_scan(Tensor x, Tensor decay, const std::string& dim, bool reverse, Loc at) {
  return on_behalf_of("linear_scan", at, [&] {
    const Tensor whole = broadcast(x, x.shape().united(decay.shape()), at);
    return one(kLinearScan, {whole, decay}, {{"dim", dim}, {"reverse", int64_t{reverse}}}, at);
  });
}

}  // namespace tessera
