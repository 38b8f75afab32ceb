// The nodes of a loop: the values with which iterations begin, and the loop itself, whose operands
// are the results of each iteration. They have no kernels; the partitioner handles them.
#include "ir/loop.h"

#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"

namespace tessera {

namespace {

std::vector<ValueType> infer_slice(const OpCall& call) {
  const ValueType& whole = call.in[0];
  return {{whole.shape.without({call.attrs.get<std::string>("dim")}), whole.dtype}};
}

std::vector<ValueType> infer_loop(const OpCall& call) {
  const Dim over(call.attrs.get<std::string>("dim"), call.attrs.get<int64_t>("iterations"));
  const auto& results = call.attrs.get<std::vector<int64_t>>("results");
  std::vector<ValueType> types;
  for (size_t i = 0; i < call.in.size(); ++i) {
    types.push_back(call.in[i]);
    if (results[i] == static_cast<int64_t>(Loop::Result::stack))
      types.back().shape = Shape{over}.united(call.in[i].shape);
  }
  return types;
}

void emit_loop_index(EmitCall& call) {
  AffineExpr counter;
  counter.scalar = call.counters.at(static_cast<size_t>(call.call.attrs.get<int64_t>("loop")));
  call.step.pointwise.code.back().expr = static_cast<int>(call.step.exprs.size());
  call.step.exprs.push_back(counter);
}

}  // namespace

extern const Op kLoop = {.name = "loop", .infer = infer_loop};
extern const Op kLoopCarry = {.name = "loop_carry", .infer = [](const OpCall& call) {
                                return std::vector<ValueType>{call.in[0]};
                              }};
extern const Op kLoopSlice = {.name = "loop_slice", .infer = infer_slice};
extern const Op kLoopIndex = {.name = "loop_index",
                              .infer =
                                  [](const OpCall&) {
                                    return std::vector<ValueType>{{Shape{}, DType::int32}};
                                  },
                              .pointwise = true,
                              .code = PointwiseOp::value,
                              .emit = emit_loop_index};

}  // namespace tessera
