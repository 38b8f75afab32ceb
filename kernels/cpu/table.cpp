// The kernels of the CPU device.
#include <algorithm>

#include "kernels/cpu/tables.h"

namespace tessera {

std::span<const KernelEntry> cpu_kernels() {
  static constexpr KernelEntry kTable[] = {
      {"pointwise", cpu::bind_pointwise, nullptr, cpu::share_pointwise},
      {"contract", cpu::bind_contract, cpu::contract_workspace, cpu::share_contract},
      {"copy", cpu::bind_copy, nullptr, cpu::share_copy},
      {"fill", cpu::bind_fill},
      {"reduce", cpu::bind_reduce, nullptr, cpu::share_reduce},
      {"gather", cpu::bind_gather, nullptr, cpu::share_gather, ~1u},
      {"scatter_add", cpu::bind_scatter_add, cpu::scatter_add_workspace},
      {"cumsum", cpu::bind_cumsum},
      {"arg_reduce", cpu::bind_arg_reduce},
      {"top_k", cpu::bind_top_k},
      {"window", cpu::bind_window},
      {"fold", cpu::bind_fold},
      {"conv", cpu::bind_conv, cpu::conv_workspace, cpu::share_conv},
      {"host", cpu::bind_host},
      {"attention", cpu::bind_attention, cpu::attention_workspace, cpu::share_attention},
      {"attention_grad", cpu::bind_attention, cpu::attention_workspace, cpu::share_attention},
      {"attention_part", cpu::bind_attention, cpu::attention_workspace, cpu::share_attention},
  };
  return kTable;
}

const KernelEntry* find_cpu_kernel(std::string_view name) {
  const auto table = cpu_kernels();
  const auto it =
      std::find_if(table.begin(), table.end(), [&](const auto& e) { return e.name == name; });
  return it == table.end() ? nullptr : &*it;
}

}  // namespace tessera
