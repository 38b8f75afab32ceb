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

/// The CPU runs every kernel that a GPU lacks, so it must have them all.
static_assert(std::all_of(std::begin(kTable), std::end(kTable), [](const KernelEntry& e) {
  return e.bind != nullptr || e.kind == KernelKind::none || e.kind == KernelKind::loop;
}));

}  // namespace
}  // namespace cpu

const KernelEntry* find_cpu_kernel(KernelKind kind) {
  const KernelEntry& entry = cpu::kTable[static_cast<size_t>(kind)];
  return entry.bind == nullptr ? nullptr : &entry;
}

}  // namespace tessera
