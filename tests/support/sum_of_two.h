// The pointwise program of a sum, also that of a product and what its result holds.
#pragma once

#include "program/program.h"

namespace tessera::test {

/// {#0 + #1}
inline PointwiseProgram sum_of_two(DType t) {
  Instr first, second, sum;
  first.code = second.code = PointwiseOp::load;
  first.slot = 0;
  second.slot = 1;
  sum.code = PointwiseOp::add;
  sum.a = 0;
  sum.b = 1;
  for (Instr* instr : {&first, &second, &sum}) instr->dtype = t;
  return {{first, second, sum}, {2}};
}

}  // namespace tessera::test
