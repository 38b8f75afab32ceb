// The CPU's kernel functions, as program/kernel_table.inc names them.
#pragma once

#include "kernels/common/kernel.h"

namespace tessera::cpu {

#define CPU(f) std::unique_ptr<Kernel> f(const KernelArgs& args);
#define WORKSPACE(f) int64_t f(const Step& step);
#define SHARE(f) Sharing f(const Step& step, int threads);
#define ALIGNED_INPUTS(mask)
#define NO_CPU
#define KERNEL(id, ops, info, cpu, gpu) cpu
#include "program/kernel_table.inc"
#undef CPU
#undef WORKSPACE
#undef SHARE
#undef ALIGNED_INPUTS
#undef NO_CPU

}  // namespace tessera::cpu
