#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

namespace {

void choose_loop(BoundInstr& op, const PointwisePlan& plan, const KernelArgs& args,
                 const BlockOps& ops) {
  const Instr& instr = op.instr;
  if (is_positional(instr.code) || is_still(instr.code)) {
    if (op.arg != nullptr) {
      TESSERA_CHECK(stored_as(op.arg->dtype) == stored_as(instr.dtype),
                    "a pointwise load of {} from a {} tensor", to_string(instr.dtype),
                    to_string(op.arg->dtype));
    }
    return;
  }
  if (reduces_row(instr.code)) {
    op.row_fn = ops.find_row(instr.code, instr.dtype);
    if (op.row_fn == nullptr) {
      fail(ErrorKind::unsupported, "[{}] {} is not defined for {}", args.step->origin.name,
           to_string(instr.code), to_string(instr.dtype));
    }
    return;
  }
  const int typed_by = instr.code == PointwiseOp::where ? instr.b : instr.a;
  const DType operand = plan.code.at(typed_by).instr.dtype;
  const bool boolean = instr.dtype == DType::bool_;
  TESSERA_CHECK(converts(instr.code) || boolean || stored_as(operand) == stored_as(instr.dtype),
                "the pointwise operation {} has operands of {} and a result of {}",
                to_string(instr.code), to_string(operand), to_string(instr.dtype));
  if (op.fn != nullptr) return;
  op.fn = ops.find(instr.code, operand, instr.dtype);
  if (op.fn == nullptr) {
    fail(ErrorKind::unsupported, "[{}] the pointwise operation {} is not defined for {}",
         args.step->origin.name, to_string(instr.code), to_string(instr.dtype));
  }
}

}  // namespace

void choose_loops(PointwisePlan& plan, const KernelArgs& args, const BlockOps& ops) {
  for (size_t i = 0; i < plan.code.size(); ++i) {
    BoundInstr& op = plan.code[i];
    choose_loop(op, plan, args, ops);
    if (!op.unused && !is_still(op.instr.code)) plan.order.push_back(static_cast<int>(i));
  }
}

PointwisePlan plan_pointwise(const KernelArgs& args, const BlockOps& ops) {
  PointwisePlan plan = bind_operands(args);
  if (plan.nest.elements() == 0) return plan;
  plan_broadcasts(plan, ops);
  join_chains(plan, ops);
  plan_row_passes(plan);
  plan_outputs(plan, args);
  allocate_registers(plan, args);
  choose_loops(plan, args, ops);
  return plan;
}

}  // namespace tessera::cpu
