// To the compile half it is x, with a note for the next move (partition.cpp): no step is made of
// it.
#include "tessera/ragged.h"

#include "ir/source_ops.h"
#include "ops/capacity.h"
#include "ops/infer.h"
#include "program/program.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

std::vector<ValueType> infer(const OpCall& call) {
  const Shape &x = call.in[0].shape, &counts = call.in[1].shape;
  const auto& dim = call.attrs.get<std::string>("dim");
  TESSERA_REQUIRE(call.in[1].dtype == DType::int32, "the counts are {}; they are int32",
                  to_string(call.in[1].dtype));
  require_dims(x, {dim}, "row");
  TESSERA_REQUIRE(!counts.has(dim), "the counts {} have the dim '{}', whose elements they count",
                  counts.to_string(), dim);
  for (const Dim& d : counts)
    TESSERA_REQUIRE(x.has(d.name), "dim '{}' of the counts {} is not in x {}", d.name,
                    counts.to_string(), x.to_string());
  require_same_sizes(call);
  return {call.in[0]};
}

std::vector<Tensor> gradient(const GradCall& c) {
  const PreferScope back(c.graph, c.in[0]);  // blocks return to where they came from
  return {ragged(c.grads[0], c.in[1], c.attrs.get<std::string>("dim"), c.attrs.get<double>("used")),
          Tensor()};
}

}  // namespace

extern const Op kGather;
extern const Op kRagged = {.name = "ragged",
                           .infer = infer,
                           .linear = {1u},
                           .gradient = gradient,
                           .pointwise = true,
                           .code = PointwiseOp::copy,
                           .counts_rows = true};

Tensor ragged(Tensor x, Tensor counts, const std::string& dim, double used, Loc at) {
  return on_behalf_of("ragged", at, [&] {
    TESSERA_REQUIRE(used > 0 && used <= 1, "used {}; it is a share of the rows, in (0, 1]", used);
    return one(kRagged, {x, counts}, {{"dim", dim}, {"used", used}}, at);
  });
}

namespace {

// A gather of 0, 1, 2... finds counts that are too large, on every device, as it finds any index
// out of range; they become 0.
Tensor within(Tensor counts, int64_t bound, const char* what, Loc at) {
  const Dim known("rows/bound", bound + 1);
  return one(kGather, {iota(counts.graph(), known), counts},
             {{"dim", known.name}, {"out_of_range", std::string("error")}, {what, bound}}, at);
}

}  // namespace

Tensor within_bound(Tensor counts, int64_t bound, Loc at) {
  return on_behalf_of("within_bound", at, [&] {
    TESSERA_REQUIRE(bound >= 0 && counts.dtype() == DType::int32,
                    "counts of {} within {}; counts are int32, and a bound is 0 or more",
                    to_string(counts.dtype()), bound);
    return within(counts, bound, "bound", at);
  });
}

Tensor within_capacity(Tensor counts, int64_t capacity) {
  return within(counts, capacity, "capacity", Loc::current());
}

}  // namespace tessera
