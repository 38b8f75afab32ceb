// The peak matmul rate for the log. If all ranks of an oversubscribed host measured at once, they
// would measure how they take turns. So one rank measures all cores that it may use, and the cores
// of the others are assumed to be equally fast. GPUs are measured by all ranks at once: those that
// share one share its rate.
#include <algorithm>
#include <cmath>
#include <thread>

#include "base/env.h"
#include "cli/training.h"

namespace tessera::cli {

namespace {

struct Measured {
  double rate = 0, seconds = 0;  ///< of all ranks together; of a run
};

/// The best run, of three at least and of as many as fit into `most` seconds.
Measured gemms_of_cores(int threads, int64_t n, double most) {
  Graph g;
  const Dim m("m", n), k("k", n), c("c", n);
  const Tensor a = g.input("a", {m, k}, DType::float32), b = g.input("b", {k, c}, DType::float32);
  const Tensor y = einsum({a, b}, {m, c}).named("y");
  Cluster alone = Cluster::threads(1);
  Session session(g, alone,
                  {Mesh::parse("one:1"), Layout::parse(""), {{"run", {y}, false}}, 0, threads});
  session.feed("a", Array(DType::float32, {"m", "k"}, {n, n}));
  session.feed("b", Array(DType::float32, {"k", "c"}, {n, n}));
  Measured best;
  const double start = host_seconds();
  for (int i = 0; i < 3 || (seconds_since(start) < most && i < 100); ++i) {
    const double begin = host_seconds();
    session.run("run");
    const double seconds = seconds_since(begin);
    if (i == 0 || seconds < best.seconds)
      best = {2.0 * static_cast<double>(n * n * n) / seconds, seconds};
  }
  return best;
}

/// Small matrices are multiplied in microseconds; where they are not, the device is paced, and
/// larger ones tell nothing more.
double gemm_rate(int threads) {
  const Measured small = gemms_of_cores(threads, 64, 0);
  return small.seconds > 1e-3 ? small.rate : gemms_of_cores(threads, 384, 0.02).rate;
}

/// Threads that wait for each other in turn may be scheduled on one core; if the rate suggests
/// that, it is measured again with new threads.
double gemm_rate_of_cores(int cores) {
  double best = gemm_rate(cores);
  const double alone = cores > 1 ? gemm_rate(1) : 0;
  for (int more = 0; more < 3 && best < 0.75 * cores * alone; ++more)
    best = std::max(best, gemm_rate(cores));
  return best;
}

/// Of a host whose ranks are processes or threads.
int cores_of_host(bool in_threads) {
  const int own = usable_cores();
  return in_threads ? own : std::max(own, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Each rank multiplies matrices of its own, one after the other, so that what a run costs the host
/// counts little.
Measured gemms_of_gpus(Cluster& cluster, const std::string& device, DType dtype, int64_t n) {
  Graph g;
  const int64_t ranks = cluster.size();
  constexpr int kProducts = 16;
  const Dim all("ranks", ranks), m("m", n), k("k", n), c("c", n);
  // Not zeros, on which GPUs are faster; products keep the size of their values.
  const double scale = 1 / std::sqrt(static_cast<double>(n));
  Tensor y = g.parameter("a", {all, m, k}, nn::normal(1), dtype);
  const Tensor b = g.parameter("b", {k, c}, nn::normal(scale), dtype);
  for (int i = 0; i < kProducts; ++i) y = rename(einsum({y, b}, {all, m, c}), "c", "k");
  CompileOptions options{Mesh::parse(fmt::format("one:{}", ranks)),
                         Layout::parse("ranks:one"),
                         {{"run", {y.named("y")}, false}}};
  options.device = device;
  Session session(g, cluster, options);
  Measured best;
  for (int i = 0; i < 5; ++i) {
    const double begin = host_seconds();
    session.run("run");
    const double seconds = seconds_since(begin),
                 flops = 2.0 * kProducts * static_cast<double>(n * n * n);
    if (i == 0 || seconds < best.seconds)
      best = {static_cast<double>(ranks) * flops / seconds, seconds};
  }
  return best;
}

/// A GPU multiplies small matrices in less than a millisecond; a rank that does not is emulated, or
/// so slow that larger ones tell nothing more. The slowest rank decides for all.
double gemm_rate_of_gpus(Cluster& cluster, const std::string& device, DType dtype) {
  constexpr int64_t kSmall = 64, kLarge = 4096;
  const Measured small = gemms_of_gpus(cluster, device, dtype, kSmall);
  std::vector<double> mine(static_cast<size_t>(cluster.local_ranks()), small.seconds);
  for (const double seconds : cluster.gather(mine)) {
    if (seconds > 1e-3) return small.rate;
  }
  return gemms_of_gpus(cluster, device, dtype, kLarge).rate;
}

}  // namespace

double measured_gemm_peak(Cluster& cluster, const std::vector<std::string>& hosts, int threads,
                          const std::string& device, DType dtype) {
  if (device != "cpu") return gemm_rate_of_gpus(cluster, device, dtype);
  const bool in_threads = cluster.local_ranks() == cluster.size();
  const auto me = hosts.begin() + (in_threads ? 0 : std::max(0, read_environment().rank));
  std::vector<double> mine(static_cast<size_t>(cluster.local_ranks()), 0.0);
  if (std::find(hosts.begin(), hosts.end(), *me) == me) {
    const int ranks = static_cast<int>(std::count(hosts.begin(), hosts.end(), *me));
    const int own = usable_cores();
    const int all = cores_of_host(in_threads);
    const int used = threads == 0 ? all : std::min(all, ranks * threads);
    const int measured = std::min(own, used);
    mine[0] = gemm_rate_of_cores(measured) * used / measured;
  }
  double sum = 0;
  for (const double rate : cluster.gather(mine)) sum += rate;
  return sum;
}

double gemm_peak_of_rank(double peak, const std::vector<std::string>& hosts, int threads,
                         const std::string& device) {
  const auto size = static_cast<double>(hosts.size());
  if (device != "cpu") return peak / size;
  const auto ranks = static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts[0]));
  const int cores = cores_of_host(launched_ranks() == 0),
            used = threads == 0 ? cores : std::min(cores, ranks * threads),
            own = threads == 0 ? std::max(1, cores / ranks) : std::min(cores, threads);
  return peak * (ranks / size) * own / used;
}

double raised_peak(StepRecord& r, double peak) {
  if (r.peak_share <= 1) return peak;
  r.peak_share = 1;
  return r.flops_per_s;
}

}  // namespace tessera::cli
