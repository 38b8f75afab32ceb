#include "program/contract_kinds.h"

#include "program/program.h"

namespace tessera::contract_kinds {

bool adds_to_result(const Step& step) {
  const auto& code = step.pointwise.code;
  if (step.in.size() != 3 || step.out.size() != 1 || code.size() != 3) return false;
  const View &sum = step.in[2], &result = step.out[0];
  return code[0].code == Code::load && code[1].code == Code::load &&
         code[0].slot + code[1].slot == 1 && code[2].code == Code::add &&
         code[2].a + code[2].b == 1 && code[2].a != code[2].b && step.pointwise.outputs[0] == 2 &&
         sum.buffer == result.buffer && sum.dtype == result.dtype && sum.sizes == result.sizes &&
         sum.strides == result.strides && sum.offset == result.offset && sum.shift == result.shift;
}

}  // namespace tessera::contract_kinds
