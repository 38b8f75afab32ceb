#include <algorithm>

#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

/// llm-foundry of 2023 uses the first FlashAttention in Triton: about half the rate of
/// FlashAttention-2 (Dao 2023, fig. 5).
constexpr double kTriton = 0.55;
/// Transformer Engine takes cuDNN's attention on Hopper: 1.6 times as fast as FlashAttention-2 at
/// head size 128 and 2,048 to 8,192 tokens (Shah et al. 2024, fig. 6: 518 and 318 TFLOP/s).
constexpr double kHopperAttention = 1.6;

/// FlexAttention has 0.9 and 0.85 of FlashAttention-2's rate forward and backward (PyTorch's
/// announcement, 2024).
constexpr double kFlexAttention = 0.87;

/// Facts about systems; the first match counts. Megatron's checkpointing runs a layer's forward
/// again (reruns); PyTorch's stops when it has what backward reads. Sources: the papers and
/// repositories named.
constexpr Framework kFrameworks[] = {
    // Of 2021 (Narayanan et al. 2021, section 5.2): the kernels of Megatron-LM; a layer is released
    // after each of forward, recomputed forward and backward, since stage3_max_reuse_distance is
    // less than a layer of 175 billion parameters; ring all_gathers of a tensor a time use one
    // adapter.
    {.match = "zero-3",
     .sharded = true,
     .releases = true,
     .adapters = 1,
     .reruns = true,
     .dropout = 0.1},
    // torch.compile fuses pointwise work; FSDP2 reduces gradients in float32 (torchtitan defaults);
    // float8 parameters are gathered as such; selective recompute is by op. The sequence is the
    // second dim of activations, so DTensor copies what it gathers and scatters.
    {.match = "compile",
     .fusion = Fusion::compiled,
     .flash = true,
     .sharded = true,
     .grad_bytes = 4,
     .float8_gather = true,
     .batch_first = true,
     .traced_context = true,
     .zero = 1,
     .selective = Recompute::Kind::per_op},
    {.match = "torchtitan",
     .fusion = Fusion::eager,
     .flash = true,
     .sharded = true,
     .grad_bytes = 4,
     .float8_gather = true,
     .batch_first = true,
     .zero = 1,
     .traffic = Constant::eager_traffic,
     .selective = Recompute::Kind::per_op},
    // The recipes of its performance summary (perf_recipes/_common.py): gradients in bfloat16,
    // userbuffers for tensor parallelism, parameters gathered in float8.
    {.match = "bridge",
     .gpu = "h",
     .flash = true,
     .interleaves = true,
     .float8_gather = true,
     .keeps_converted = true,
     .reruns = true,
     .overlaps = true,
     .overlaps_tensor = true,
     .zero = 1,
     .attention = kHopperAttention},
    {.match = "bridge",
     .flash = true,
     .interleaves = true,
     .float8_gather = true,
     .keeps_converted = true,
     .reruns = true,
     .overlaps = true,
     .overlaps_tensor = true,
     .zero = 1},
    // PyTorch's FSDP2 with the modules of Transformer Engine; layers of experts stay gathered
    // (examples/llm_benchmark of NeMo AutoModel).
    {.match = "automodel",
     .gpu = "h",
     .flash = true,
     .sharded = true,
     .keeps = true,
     .keeps_converted = true,
     .attention = kHopperAttention},
    {.match = "automodel", .flash = true, .sharded = true, .keeps = true, .keeps_converted = true},
    {.match = "shard_grad_op",
     .fusion = Fusion::eager,
     .flash = true,
     .sharded = true,
     .keeps = true,
     .traffic = Constant::eager_traffic,
     .attention = kTriton},
    {.match = "fsdp",
     .fusion = Fusion::eager,
     .flash = true,
     .sharded = true,
     .traffic = Constant::eager_traffic,
     .attention = kTriton},
    // Overlaps all of its communication, that of tensor parallelism in parts of a product (Jiang et
    // al. 2024, section 3.2).
    {.match = "megascale",
     .flash = true,
     .reruns = true,
     .overlaps = true,
     .overlaps_tensor = true,
     .zero = 1},
    {.match = "flash", .flash = true, .reruns = true, .zero = 1},
    {.match = "aleph", .flash = true, .reruns = true, .zero = 1},
    {.match = "megatron-core",
     .flash = true,
     .interleaves = true,
     .reruns = true,
     .overlaps = true,
     .zero = 1},
    // On Hopper as its successor, Megatron-Bridge (performance guide: userbuffers, cuDNN
    // attention).
    {.match = "nemo",
     .gpu = "h",
     .flash = true,
     .interleaves = true,
     .grad_bytes = 4,
     .float8_gather = true,
     .keeps_converted = true,
     .reruns = true,
     .overlaps = true,
     .overlaps_tensor = true,
     .zero = 1,
     .attention = kHopperAttention},
    {.match = "nemo",
     .flash = true,
     .interleaves = true,
     .grad_bytes = 4,
     .reruns = true,
     .overlaps = true,
     .zero = 1},
    {.match = "llama",
     .flash = true,
     .interleaves = true,
     .grad_bytes = 4,
     .reruns = true,
     .overlaps = true,
     .zero = 1},
    // Megatron-LM on Hopper is from 2023 or later (Narayanan et al. 2021 and Korthikanti et al.
    // 2022 had A100): FlashAttention, distributed optimizer, gradient reductions overlapped with
    // backward.
    {.match = "megatron",
     .gpu = "h",
     .flash = true,
     .interleaves = true,
     .grad_bytes = 4,
     .reruns = true,
     .overlaps = true,
     .zero = 1},
    // Megatron-LM until 2022: fused pointwise kernels, scores in memory, dropout, no overlap.
    {.match = "megatron", .reruns = true, .dropout = 0.1},
    {.match = "", .flash = true, .reruns = true, .overlaps = true, .zero = 1},
};

}  // namespace

Framework framework_of(const Run& run) {
  std::string system = run.system;
  for (const char* zero : {"zero3", "zero 3", "zero_3", "zero stage 3"}) {
    const size_t at = system.find(zero);
    if (at != std::string::npos) system.replace(at, std::string(zero).size(), "zero-3");
  }
  const auto says = [&](const char* word) { return system.find(word) != std::string::npos; };
  Framework result;
  for (const Framework& framework : kFrameworks) {
    if (!says(framework.match) || !lower_case(run.gpu_kind).starts_with(framework.gpu)) continue;
    result = framework;
    break;
  }
  // Megatron-LM accumulates and reduces gradients in float32 if it trains in bfloat16
  // (megatron/training/arguments.py).
  const bool is_bfloat16 = run.dtype.find("bf") != std::string::npos;
  if (std::string(result.match) == "megatron" && is_bfloat16) result.grad_bytes = 4;
  // NeMo AutoModel runs GPT-OSS with FlexAttention on Hopper.
  if (std::string(result.match) == "automodel" && run.biased && !is_blackwell(run))
    result.attention = kFlexAttention;
  result.sharded = result.sharded || says("fsdp");
  result.overlaps_tensor = result.overlaps_tensor || says("async");
  return result;
}

bool is_blackwell(const Run& run) {
  const std::string gpu = lower_case(run.gpu_kind);
  return gpu.starts_with("g") || gpu.starts_with("b");
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace tessera::runs
