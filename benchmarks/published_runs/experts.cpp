// Mixtures of experts: how tokens reach their experts, and what the host launches for them.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/fail.h"
#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

/// What the host takes for one launch: PyTorch's and Transformer Engine's modules, autograd, the
/// quantizers. Fitted on no run: a Linear of PyTorch, which is one kernel, takes an x86 host
/// 13.5 us, and one of Transformer Engine 2.7 times as long as PyTorch's (99.66 and 37.08 us,
/// 90.53 and 33.17 us; TransformerEngine, issue 2053).
constexpr double kLaunchHost = 3.65e-5;
/// The router, the order of the tokens, sending and adding up: kernels of a pass, of which the
/// router has these. With them a layer has 151 kernels, as counted in Megatron-Bridge's guide to
/// overlapping expert parallelism (463,348 in 64 microbatches of 48 layers).
constexpr double kRoutingLaunches = 37, kRouterLaunches = 20;
/// Launches of a part of a layer that is a CUDA graph.
constexpr double kGraphLaunches = 1;
/// What HybridEP's kernels take for a token that goes to a rank, with 32 multiprocessors on GB200:
/// its bytes at 0.9 of NVLink's rate (1.125 of the machine's, which is that of NCCL's largest
/// collectives), and 0.155 ns for each rank of the group. 8, 16, 24, 32 and 36 ranks take 18.8,
/// 20.3, 21.5, 22.3 and 22.7 ns for 14,336 bytes, 10.4, 11.4, 12.8, 13.7 and 15.1 for 7,392, and
/// 19.5, 21.5, 22.4, 23.7 and 24.0 to bring 14,336 back (DeepEP's README_Hybrid-EP, kernels alone).
constexpr double kHybridNear = 1.125, kHybridRank = 1.55e-10;
/// Of an adapter: 31 to 38 of 45 GB/s between two hosts of H100 and 43 between four and eight (same
/// source; bytes to other hosts).
constexpr double kHybridTwo = 0.78, kHybridFar = 0.96;
/// A dispatch takes so long even if it sends nothing (HybridEP on B200, calls and kernels alone:
/// DeepEP's README_Hybrid-EP).
constexpr double kDispatchStart = 6e-5;

/// Of `places`, which hold as many experts each, how many a token goes to.
double distinct(const Run& run, const Experts& experts, double places) {
  const int64_t held =
      std::max<int64_t>(1, std::llround(static_cast<double>(run.experts) / places));
  if (!experts.consecutive) {  // `topk` of all, each once
    double none = 1;           // of a place is chosen
    for (int64_t k = 0; k < run.topk; ++k)
      none *= std::max(0.0, static_cast<double>(run.experts - held - k)) /
              static_cast<double>(run.experts - k);
    return places * (1 - none);
  }
  // Token i has the experts i * topk, i * topk + 1, ..., modulo their number.
  int64_t seen = 0;
  for (int64_t token = 0; token < run.experts; ++token) {
    std::set<int64_t> own;
    for (int64_t k = 0; k < run.topk; ++k) own.insert((token * run.topk + k) % run.experts / held);
    seen += static_cast<int64_t>(own.size());
  }
  return static_cast<double>(seen) / static_cast<double>(run.experts);
}

}  // namespace

double send_seconds(const Run& run, const Experts& experts, const Machine& machine, double tokens) {
  const double token = 2.0 * static_cast<double>(run.hidden), topk = static_cast<double>(run.topk),
               ranks = static_cast<double>(run.ep);
  const Mesh mesh = Mesh::parse(fmt::format("others:{};expert:{}", run.gpus / run.ep, run.ep));
  if (!experts.unique) {
    const double slots = tokens * token * topk;
    const double sorted = run.experts > run.ep ? 2 * slots : 0;  // by sender, then by expert
    // The rows of an expert are padded for the scales' blocks, in copies.
    const double padded = precision_of(run.dtype).reads > 0 ? 2 * slots : 0;
    const Costs costs(machine, mesh);  // NCCL's ranks send to each other in pairs
    const double sent =
        collective_seconds(CollectiveKind::all_to_all, Algorithm::ring, slots, costs.hops({1}));
    return sent + (sent > 0 ? machine.links.back().start : 0) +
           machine.memory_seconds(tokens * token + slots + sorted + padded);
  }
  const auto &node = machine.links.front(), &network = machine.links.back();
  const double near = std::min(ranks, static_cast<double>(node.devices)), hosts = ranks / near;
  const double copies = tokens * token * distinct(run, experts, ranks);
  const double away = copies * (1 - 1 / near);
  const double inside = away / (kHybridNear * node.bandwidth) + away / token * kHybridRank * near,
               outside = tokens * token * distinct(run, experts, hosts) * (1 - 1 / hosts) /
                         ((hosts > 2 ? kHybridFar : kHybridTwo) * network.bandwidth);
  const double sent = ranks > 1 ? std::max(inside, outside) + kDispatchStart : 0;
  return sent + machine.memory_seconds(2 * copies) +
         machine.memory_seconds(copies + tokens * token * topk);
}

/// Megatron-Core adds a bias to what an expert gives (TEGroupedMLP._apply_bias) one by one: a
/// product with the token's weight and a sum, in float32, then all are put together and converted.
/// Backward: conversions, the gradient of the bias and of the weight. Bytes of an element, and
/// kernels of an expert.
constexpr double kBias = 28, kBiasBack = 40, kBiasLaunches = 3, kBiasLaunchesBack = 8;
/// It clamps both branches of a gated activation, each with a kernel, and puts them together
/// (fused_bias_geglu.py). Backward compares and selects (PyTorch's clamp_backward: 8 bytes of an
/// element if it has one bound, 14 if two), and puts both together.
constexpr double kClamp = 8, kClampBack = (8.0 + 14) / 2 + 4, kClampLaunches = 3,
                 kClampLaunchesBack = 8;

BlockTimes biases_of(const Run& run, const Experts& experts, const Machine& machine, double tokens,
                     bool again) {
  const double slots = tokens * static_cast<double>(run.topk),
               elements = slots * static_cast<double>(run.hidden),
               branches = experts.clamps ? 2 * slots * static_cast<double>(run.ffn) : 0,
               groups = static_cast<double>(run.experts / run.ep),
               clamps = experts.clamps ? kClampLaunches : 0, times = again ? 1 : 0;
  BlockTimes biases;
  biases.forward = machine.memory_seconds(kBias * elements + kClamp * branches);
  biases.backward =
      machine.memory_seconds(kBiasBack * elements + (kClampBack + times * kClamp) * branches);
  biases.launches_forward = kBiasLaunches * groups + clamps;
  biases.launches_backward =
      kBiasLaunchesBack * groups + times * clamps + (experts.clamps ? kClampLaunchesBack : 0);
  return biases;
}

BlockTimes routed_layer(const Experts& experts, const BlockTimes& dense, const BlockTimes& own,
                        const BlockTimes& sent) {
  BlockTimes layer = dense + own + sent;
  if (experts.overlaps) {
    const double hidden = experts.hidden,
                 forward = hidden * std::min(sent.forward, dense.forward + own.forward),
                 backward = hidden * std::min(sent.backward, dense.backward + own.backward);
    layer.forward -= forward, layer.transfer_forward -= std::min(forward, sent.transfer_forward);
    layer.backward -= backward,
        layer.transfer_backward -= std::min(backward, sent.transfer_backward);
  }
  if (experts.graphs == Graphs::step) return layer;
  const double routing = kRoutingLaunches - (experts.graphs == Graphs::none ? 0 : kRouterLaunches);
  const bool is_graph = experts.graphs == Graphs::attention;
  const double rest = is_graph ? kGraphLaunches : dense.launches_forward,
               rest_back = is_graph ? kGraphLaunches : dense.launches_backward;
  // Forward: the host reads how many tokens each expert has, so its launches begin when the router
  // is done. First those of the experts, then those until the next router.
  const double first = kLaunchHost * (routing + own.launches_forward),
               host = first + kLaunchHost * rest;
  const double busy = std::max(layer.forward - dense.forward, first);
  layer.forward = std::max(layer.forward, std::max(busy + dense.forward, host));
  layer.backward =
      std::max(layer.backward, kLaunchHost * (routing + own.launches_backward + rest_back));
  return layer;
}

}  // namespace tessera::runs
