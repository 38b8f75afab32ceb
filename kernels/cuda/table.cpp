// The kernels of a GPU.
#include <algorithm>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/conv_plan.h"
#include "kernels/cuda/epilogue.h"
#include "kernels/cuda/generate.h"
#include "kernels/cuda/matmul_plan.h"

namespace tessera::cuda {

namespace {

/// Wraps a generator of one kernel as one of several.
template <Source (*generate)(const KernelArgs& args)>
std::vector<Source> one(const KernelArgs& args) {
  return {generate(args)};
}

template <auto plan>
int64_t workspace_of(const Step& step) {
  return plan(step).workspace;
}

constexpr GpuKernel kTable[] = {
#define GPU(f) .generate = one<f>,
#define GPU_PASSES(f) .generate = f,
#define ONLY_IF(f) .can = f,
#define CLEARS_RESULT .clears_result = true,
#define LIBRARY(name) .library = GpuLibrary::name,
#define WORKSPACE(f) .workspace_bytes = f,
#define PLAN(f) .library_bytes = workspace_of<f>,
#define NO_GPU .generate = nullptr,
#define KERNEL(id, ops, info, cpu, gpu) {.kind = KernelKind::id, gpu},
#include "program/kernel_table.inc"
};

}  // namespace

int64_t matmul_workspace(const Step& step) {
  const std::optional<Step> sums = sums_of_epilogue(step);
  return std::max(plan_matmul(step).workspace, plan_float8(step).workspace) +
         (sums ? reduce_workspace(*sums) : 0);
}

int64_t workspace_bytes(const Step& step, bool has_library) {
  if (step.order.is_strict()) return ordered_workspace(step);
  const GpuKernel& kernel = gpu_kernel(step.kernel);
  const int64_t own = kernel.workspace_bytes ? kernel.workspace_bytes(step) : 0;
  return has_library && kernel.library_bytes ? std::max(own, kernel.library_bytes(step)) : own;
}

const GpuKernel& gpu_kernel(KernelKind kind) { return kTable[static_cast<size_t>(kind)]; }

}  // namespace tessera::cuda
