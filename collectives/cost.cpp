// Ring: of the n - 1 steps, prod(ranks from t on) - prod(ranks beyond t) cross tier t. All ranks
// below a tier share its links, so its bandwidth counts once per rank. Trees reach less than the
// full bandwidth, because not all ranks send all the time (NCCL's tuning model: 0.92 for the double
// binary tree, 0.75 for halving and doubling).
#include "collectives/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

namespace {

constexpr double kTreeShare = 0.92, kDoublingShare = 0.75;

int64_t size_of_group(std::span<const LinkHop> hops) {
  int64_t n = 1;
  for (const LinkHop& hop : hops) n *= hop.ranks;
  return n;
}

/// Bytes/s of one rank if the ranks below each tier share the links that cross it.
double shared_bandwidth(std::span<const LinkHop> hops) {
  double least = std::numeric_limits<double>::infinity();
  int64_t below = 1;
  for (const LinkHop& hop : hops) {
    if (hop.ranks > 1) least = std::min(least, static_cast<double>(below) * hop.bandwidth);
    below *= hop.ranks;
  }
  return least;
}

double ring_latency(std::span<const LinkHop> hops) {
  double seconds = 0;
  int64_t beyond = size_of_group(hops);
  for (const LinkHop& hop : hops) {
    const int64_t from = beyond;
    beyond /= hop.ranks;
    seconds += static_cast<double>(from - beyond) * hop.latency;
  }
  return seconds;
}

double tree_latency(std::span<const LinkHop> hops) {
  double seconds = 0;
  for (const LinkHop& hop : hops)
    seconds += std::ceil(std::log2(static_cast<double>(hop.ranks))) * hop.latency;
  return seconds;
}

/// Every rank sends bytes / n to every other. What crosses a tier goes through each rank's own
/// share of its links.
double pairwise_transfer(double bytes, std::span<const LinkHop> hops) {
  const auto n = static_cast<double>(size_of_group(hops));
  double most = 0, below = 1;
  for (const LinkHop& hop : hops) {
    if (hop.ranks > 1) most = std::max(most, bytes * (n - below) / n / hop.bandwidth);
    below *= static_cast<double>(hop.ranks);
  }
  return most;
}

double one_step(double bytes, std::span<const LinkHop> hops) {
  for (size_t t = hops.size(); t-- > 0;) {
    if (hops[t].ranks > 1) return hops[t].latency + bytes / hops[t].bandwidth;
  }
  return 0;
}

double ring(CollectiveKind kind, double bytes, std::span<const LinkHop> hops) {
  const auto n = static_cast<double>(size_of_group(hops));
  if (kind == CollectiveKind::all_to_all)
    return ring_latency(hops) + pairwise_transfer(bytes, hops);
  if (kind == CollectiveKind::broadcast) return ring_latency(hops) + bytes / shared_bandwidth(hops);
  const double passes = kind == CollectiveKind::all_reduce ? 2 : 1;
  return passes * (ring_latency(hops) + bytes * (n - 1) / n / shared_bandwidth(hops));
}

double tree(CollectiveKind kind, double bytes, std::span<const LinkHop> hops) {
  const auto n = static_cast<double>(size_of_group(hops));
  const double bandwidth = shared_bandwidth(hops);
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (tree_latency(hops) + bytes / (kTreeShare * bandwidth));
    case CollectiveKind::broadcast:
      return tree_latency(hops) + bytes / (kTreeShare * bandwidth);
    case CollectiveKind::all_to_all:
      return tree_latency(hops) + bytes / 2 * std::ceil(std::log2(n)) / bandwidth;
    default:
      return tree_latency(hops) + bytes * (n - 1) / n / (kDoublingShare * bandwidth);
  }
}

double hierarchical(CollectiveKind kind, double bytes, std::span<const LinkHop> hops) {
  if (hops.size() <= 1) return ring(kind, bytes, hops);
  if (kind == CollectiveKind::all_to_all) return ring(kind, bytes, hops);
  const auto inner = hops.first(1), outer = hops.subspan(1);
  if (kind == CollectiveKind::broadcast)
    return hierarchical(kind, bytes, outer) + ring(kind, bytes, inner);
  const double part = bytes / static_cast<double>(hops[0].ranks);
  if (kind == CollectiveKind::all_reduce) {
    return ring(CollectiveKind::reduce_scatter, bytes, inner) +
           std::min(hierarchical(kind, part, outer), tree(kind, part, outer)) +
           ring(CollectiveKind::all_gather, bytes, inner);
  }
  return ring(kind, bytes, inner) +
         std::min(hierarchical(kind, part, outer), tree(kind, part, outer));
}

}  // namespace

const char* to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::ring:
      return "ring";
    case Algorithm::tree:
      return "tree";
    case Algorithm::hierarchical:
      return "hierarchical";
  }
  return "";
}

double collective_seconds(CollectiveKind kind, Algorithm algorithm, double bytes,
                          std::span<const LinkHop> hops) {
  if (size_of_group(hops) <= 1) return 0;
  if (kind == CollectiveKind::exchange) return one_step(bytes, hops);
  if (kind == CollectiveKind::barrier) return 2 * tree_latency(hops);
  switch (algorithm) {
    case Algorithm::ring:
      return ring(kind, bytes, hops);
    case Algorithm::tree:
      return tree(kind, bytes, hops);
    case Algorithm::hierarchical:
      return hierarchical(kind, bytes, hops);
  }
  return 0;
}

CollectiveChoice fastest(CollectiveKind kind, double bytes, std::span<const LinkHop> hops) {
  CollectiveChoice best{Algorithm::ring, collective_seconds(kind, Algorithm::ring, bytes, hops)};
  for (Algorithm algorithm : {Algorithm::tree, Algorithm::hierarchical}) {
    const double seconds = collective_seconds(kind, algorithm, bytes, hops);
    if (seconds < best.seconds) best = {algorithm, seconds};
  }
  return best;
}

}  // namespace tessera
