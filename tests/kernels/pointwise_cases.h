// Fused pointwise steps for tests of their kernel.
#pragma once

#include "kernels/cpu/pointwise.h"
#include "kernels/kernels_cases.h"
#include "support/catch.h"

namespace tessera::test {

inline Instr make(PointwiseOp code, DType t, int a = -1, int b = -1, int c = -1, int slot = -1) {
  Instr i;
  i.code = code;
  i.dtype = t;
  i.a = a;
  i.b = b;
  i.c = c;
  i.slot = slot;
  return i;
}

inline Instr load(DType t, int slot) { return make(PointwiseOp::load, t, -1, -1, -1, slot); }

inline Step program(std::vector<Instr> code, std::vector<int> outputs,
                    std::vector<AffineExpr> exprs = {}) {
  Step step;
  step.pointwise.code = std::move(code);
  step.pointwise.outputs = std::move(outputs);
  step.exprs = std::move(exprs);
  return step;
}

/// Runs under every usable instruction set; fails unless all outputs have the same bits (any NaN is
/// one NaN).
inline void run_everywhere(const Step& step, const std::vector<Box*>& in,
                           const std::vector<Box*>& out) {
  std::vector<Box> first;
  for (const cpu::BlockOps* ops : cpu::usable_block_ops()) {
    run_kernel(KernelKind::pointwise, step, in, out,
               [&](const KernelArgs& args) { return cpu::bind_pointwise_with(args, *ops); });
    for (size_t k = 0; k < out.size() && first.size() == out.size(); ++k) {
      if (out[k]->memory == first[k].memory) continue;
      each(out[k]->sizes, [&](const Sizes& i) {
        const double x = out[k]->get(i), y = first[k].get(i);
        if (std::memcmp(&x, &y, sizeof x) != 0 && !(std::isnan(x) && std::isnan(y))) {
          FAIL("other bits under " << ops->name << ": " << x << " and " << y);
        }
      });
    }
    if (first.empty()) {
      for (Box* b : out) first.push_back(*b);
    }
  }
}

}  // namespace tessera::test
