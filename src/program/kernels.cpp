#include "program/kernels.h"

namespace tessera {

namespace {

template <class T>
StepSpec with() {
  return T{};
}

constexpr KernelInfo kKernels[] = {
#define INFO(...) __VA_ARGS__
#define KERNEL(id, ops, info, ...) {.kind = KernelKind::id, .name = #id, info},
#include "program/kernel_table.inc"
#undef INFO
};

}  // namespace

const KernelInfo& info_of(KernelKind kind) { return kKernels[static_cast<size_t>(kind)]; }

std::optional<KernelKind> find_kernel(std::string_view name) {
  for (const KernelInfo& info : kKernels) {
    if (info.name == name) return info.kind;
  }
  return {};
}

}  // namespace tessera
