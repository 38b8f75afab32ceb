// How frameworks run experts. Megatron-Bridge's recipes give the dispatcher and the CUDA graphs of
// a model on a GPU, and both differ by release (scripts/performance/configs at the tags v0.2.1 to
// v0.5.1; containers 25.11 to 26.06.01). HybridEP and DeepEP send a token once to a rank and once
// to a host, an all_to_all once for each of its experts.
#include <algorithm>

#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

constexpr double kNewest = 99;

struct Recipe {
  const char *model, *gpu;  ///< how their names begin
  double first, next;       ///< releases: the first, and the first that is no longer
  bool unique, overlaps;    ///< as in Experts
  Graphs graphs;
};

constexpr Recipe kRecipes[] = {
    {"gpt", "gb300", 0, kNewest, false, false, Graphs::attention},
    {"gpt", "gb200", 0, 26.04, false, false, Graphs::none},
    {"gpt", "gb200", 26.04, 26.0401, true, true, Graphs::none},
    {"gpt", "gb200", 26.0401, kNewest, false, true, Graphs::none},
    {"gpt", "b300", 0, 26.0201, false, false, Graphs::attention},
    {"gpt", "b300", 26.0201, kNewest, true, false, Graphs::attention},
    {"gpt", "b200", 26.0201, 26.0401, true, false, Graphs::none},
    {"gpt", "", 0, kNewest, false, false, Graphs::none},
    {"qwen3 30b", "g", 0, kNewest, true, false, Graphs::router},
    {"qwen3 30b", "b300", 0, kNewest, true, false, Graphs::router},
    {"qwen3 30b", "b200", 0, 26.0201, false, false, Graphs::router},
    {"qwen3 30b", "b200", 26.0201, kNewest, true, false, Graphs::attention},
    {"qwen3 30b", "h100", 0, 26.0201, false, true, Graphs::none},
    {"qwen3 30b", "h100", 26.0201, kNewest, true, false, Graphs::none},
    {"qwen3 235b", "gb300", 0, 26.02, true, false, Graphs::router},
    {"qwen3 235b", "g", 0, kNewest, true, false, Graphs::attention},
    {"qwen3 235b", "b300", 0, 26.04, false, true, Graphs::none},
    {"qwen3 235b", "b300", 26.0401, kNewest, true, false, Graphs::none},
    {"qwen3 235b", "b200", 0, 26.02, false, true, Graphs::none},
    {"qwen3 235b", "h100", 0, kNewest, false, true, Graphs::none},
    {"qwen3 235b", "", 0, kNewest, false, false, Graphs::none},
};

/// Of the passes of a stage's chunks, those of which a forward and a backward run together: not
/// those that fill a stage, one more than without overlap, and those that drain it.
double paired(const Run& run) {
  const int64_t chunks = std::max<int64_t>(1, run.interleave);
  const int64_t passes = run.global_batch / run.dp / std::max<int64_t>(1, run.micro_batch) * chunks;
  const int64_t alone = run.pp + (chunks - 1) * run.pp;  // a mean over the stages
  return std::max(0.0, 1 - static_cast<double>(alone) / static_cast<double>(passes));
}

}  // namespace

/// A release that is not known is the newest.
Experts experts_of(const Run& run) {
  Experts result;
  // HybridEP on GB200, DeepEP on H100 (examples/llm_benchmark).
  result.unique = run.system.find("automodel") != std::string::npos;
  result.consecutive = result.unique;
  if (run.system.find("bridge") == std::string::npos) return result;
  const std::string gpu = lower_case(run.gpu_kind), model = lower_case(run.model);
  const bool is_wide = gpu.starts_with("g");  // NVLink joins the hosts of a rack
  const double release = run.release > 0 ? run.release : kNewest - 1;
  // From 26.06 with MXFP8: a graph of the whole step, products with activation and conversion in
  // them, and sending overlapped with the delayed products of weight gradients. GPT-OSS only where
  // NVLink joins hosts.
  const bool is_micro = std::string(precision_of(run.dtype).product) == "mxfp8";
  result.fused = is_blackwell(run) && is_micro && release >= 26.06 && (is_wide || !run.biased);
  const auto* recipe = std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const Recipe& r) {
    return model.starts_with(r.model) && gpu.starts_with(r.gpu) && release >= r.first &&
           release < r.next;
  });
  if (recipe != std::end(kRecipes)) {
    result.unique = recipe->unique, result.overlaps = recipe->overlaps;
    result.graphs = recipe->graphs;
  } else {  // as of most models
    result.unique = is_wide || run.pp == 1;
    result.graphs = result.unique ? Graphs::attention : Graphs::none;
  }
  if (result.fused) result.unique = result.overlaps = true, result.graphs = Graphs::step;
  result.hidden = value_of(Constant::hidden_sending, run) * paired(run);
  // GPT-OSS keeps all activations where they fit.
  if (run.biased && !result.fused && !gpu.ends_with("b300")) result.recompute = "layernorm+moe_act";
  result.clamps = run.biased && !result.fused;
  result.slow_gradient = result.fused && run.biased && release == 26.0601;
  return result;
}

}  // namespace tessera::runs
