// The kernels of the CPU device.
#include <algorithm>
#include <iterator>

#include "kernels/cpu/tables.h"

namespace tessera {

namespace cpu {
namespace {

constexpr KernelEntry kTable[] = {
#define CPU(f) .bind = f,
#define WORKSPACE(f) .workspace_bytes = f,
#define SHARE(f) .share = f,
#define ALIGNED_INPUTS(mask) .aligned_inputs = mask,
#define NO_CPU .bind = nullptr,
#define KERNEL(id, ops, info, cpu, gpu) {.kind = KernelKind::id, cpu},
#include "program/kernel_table.inc"
};

/// The rows again, with `true` for an address: addresses are no constants under UBSan.
struct Given {
  KernelKind kind;
  bool has_kernel;
};
constexpr Given kGiven[] = {
#undef CPU
#undef WORKSPACE
#undef SHARE
#undef ALIGNED_INPUTS
#undef NO_CPU
#define CPU(f) .has_kernel = true,
#define WORKSPACE(f)
#define SHARE(f)
#define ALIGNED_INPUTS(mask)
#define NO_CPU .has_kernel = false,
#define KERNEL(id, ops, info, cpu, gpu) {.kind = KernelKind::id, cpu},
#include "program/kernel_table.inc"
};

/// The CPU runs every kernel that a GPU lacks, so it must have them all.
static_assert(std::all_of(std::begin(kGiven), std::end(kGiven), [](const Given& g) {
  return g.has_kernel || g.kind == KernelKind::none || g.kind == KernelKind::loop;
}));

}  // namespace
}  // namespace cpu

const KernelEntry* find_cpu_kernel(KernelKind kind) {
  const KernelEntry& entry = cpu::kTable[static_cast<size_t>(kind)];
  return entry.bind == nullptr ? nullptr : &entry;
}

}  // namespace tessera
