// The bind functions that table.cpp lists.
#pragma once

#include "kernels/kernel.h"

namespace tessera::cpu {

std::unique_ptr<Kernel> bind_pointwise(const KernelArgs& args);
Sharing share_pointwise(const Step& step, int threads);
std::unique_ptr<Kernel> bind_contract(const KernelArgs& args);
int64_t contract_workspace(const Step& step);
Sharing share_contract(const Step& step, int threads);
std::unique_ptr<Kernel> bind_copy(const KernelArgs& args);
Sharing share_copy(const Step& step, int threads);
std::unique_ptr<Kernel> bind_fill(const KernelArgs& args);
std::unique_ptr<Kernel> bind_reduce(const KernelArgs& args);
Sharing share_reduce(const Step& step, int threads);
std::unique_ptr<Kernel> bind_gather(const KernelArgs& args);
Sharing share_gather(const Step& step, int threads);
std::unique_ptr<Kernel> bind_scatter_add(const KernelArgs& args);
int64_t scatter_add_workspace(const Step& step);
std::unique_ptr<Kernel> bind_cumsum(const KernelArgs& args);
std::unique_ptr<Kernel> bind_arg_reduce(const KernelArgs& args);
std::unique_ptr<Kernel> bind_top_k(const KernelArgs& args);
std::unique_ptr<Kernel> bind_window(const KernelArgs& args);
std::unique_ptr<Kernel> bind_fold(const KernelArgs& args);
std::unique_ptr<Kernel> bind_conv(const KernelArgs& args);
int64_t conv_workspace(const Step& step);
Sharing share_conv(const Step& step, int threads);

/// An op with a function of the user's: see tessera/host.h.
std::unique_ptr<Kernel> bind_host(const KernelArgs& args);

/// "attention" and its gradient, the same of a part of the keys: attributes and results tell them
/// apart.
std::unique_ptr<Kernel> bind_attention(const KernelArgs& args);
int64_t attention_workspace(const Step& step);
Sharing share_attention(const Step& step, int threads);

}  // namespace tessera::cpu
