// A machine as the planner sees it: how fast one device computes and how fast the devices talk.
// Described by a TOML profile: shipped (Machine::names()), written by hand, or measured by
// `tessera calibrate`. Units: seconds, bytes, FLOP/s; a rate is what is sustained, not what a data
// sheet promises. A "device" is what one rank computes on: a GPU, or a rank's share of the cores.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Matrix products of one dtype. A product [m, k] x [k, n] is cut into tiles, `units` of which are
/// worked on at once (a wave):
///   tiles = ceil(m / tile_rows) * ceil(n / tile_columns), waves = ceil(tiles / units) if that is
///   1,
///           else the mean of it and of tiles / units (idle units lend their power to the others)
///   seconds = waves * units * 2 tile_rows tile_columns (k + depth) / flops
/// A tile may be as small as one element: then m_half and n_half say at which m and n a product
/// runs at half its speed. With several units smaller tiles are tried too (half the columns at 0.95
/// of the rate, a quarter of the area at 0.85, an eighth at 0.7), and where waves are few, k is
/// cut.
struct ProductRate {
  std::string dtype;  ///< "bfloat16", "float32", or one that Tessera has not yet: "float8"
  double flops = 0;   ///< sustained, all units busy, k large
  int64_t tile_rows = 1, tile_columns = 1, units = 1;
  double depth = 0, m_half = 0, n_half = 0;
  double launch = 0;      ///< of a product, beyond Machine::launch
  double misaligned = 1;  ///< time is multiplied by it where n or k is no multiple of 8
};

/// One measured product: where there are some, predictions are corrected by the nearest ones.
struct ProductSample {
  std::string dtype;
  int64_t m = 0, n = 0, k = 0;
  double seconds = 0;
};

/// Kernels of Program steps other than products: seconds = launch + max(flops / rate, bytes /
/// bandwidth). "pointwise" and "pointwise_hard" count instructions (exp, tanh, ... are hard);
/// "attention" counts the products of all pairs; "*" is for any kernel not listed.
struct KernelRate {
  std::string kernel, dtype;  ///< dtype "": any
  double flops = 0;           ///< 0: only bytes count
  double bandwidth = 0;       ///< 0: Machine::memory_seconds()
};

/// A kernel among others: so many times as long as all of the above says (products: "contract").
struct KernelContext {
  std::string kernel;
  double slower = 1;
};

/// Bandwidth of memory where a step touches at most `up_to` bytes (0: any number).
struct MemoryRate {
  double up_to = 0, bandwidth = 0;
};

/// One tier of links, from the innermost: "node" joins 8 devices, "network" any number (0). An axis
/// of a mesh lies where its ranks lie, the last axis fastest, or on the tier that it names
/// ("model:8@node"). bandwidth: of one device, each way, while all send.
struct LinkTier {
  std::string name;
  int64_t devices = 0;
  double latency = 0;  ///< of one step of an algorithm
  double bandwidth = 0;
  double start = 0;  ///< of a collective whose group reaches this tier, once
};

/// A collective as measured: seconds against bytes sent by a rank, interpolated; prevails over the
/// formulas of collectives/cost.h for groups of `ranks` whose outermost tier is `link`.
struct CollectiveRate {
  std::string kind, link;
  int64_t ranks = 0;
  double latency = 0, bandwidth = 0;                ///< the fit, for people
  std::vector<std::pair<double, double>> measured;  ///< (bytes sent, seconds), ascending
};

/// What a lane's work is slowed down by while the other lane is busy too.
struct Overlap {
  bool possible = true;  ///< false: transfers are done by the cores that compute
  double compute = 1, transfer = 1;
  /// Seconds that computing is held up by an exchange at least, hidden or not (unless it is shorter
  /// itself): by who posts its messages.
  double posting = 0;
};

struct Machine {
  std::string name, device, date, source;
  int64_t memory = 0;  ///< bytes of a device
  double launch = 0;   ///< seconds of a step beyond its work
  std::vector<MemoryRate> memory_rates;
  std::vector<ProductRate> products;
  std::vector<ProductSample> samples;
  std::vector<KernelRate> kernels;
  std::vector<KernelContext> context;
  std::vector<LinkTier> links;
  std::vector<CollectiveRate> collectives;
  Overlap overlap;
  std::vector<std::pair<std::string, double>> residuals;  ///< mean relative errors of the fits

  /// A shipped profile by name, or a TOML file. Throws usage (unknown name, with the nearest; a
  /// missing or wrong key, with its table) and io errors (unreadable file, bad TOML with line).
  static Machine load(const std::string& name_or_path);
  static Machine parse(const std::string& toml, const std::string& source);
  /// Names of the shipped profiles.
  static std::vector<std::string> names();
  /// The profile that `tessera calibrate` wrote for this machine; "" if there is none.
  static std::string calibrated_path();
  std::string to_toml() const;

  /// `batch` products of [m, k] by [k, n], without launch. Throws a usage error if the profile has
  /// no rate for that dtype. Other rates that it lacks count as infinite.
  double product_seconds(const std::string& dtype, int64_t m, int64_t n, int64_t k,
                         int64_t batch = 1) const;
  /// Of a kernel of Program steps; 1 if there is nothing to it.
  double slower_in_context(const std::string& kernel) const;
  /// Reading and writing so many bytes, without launch.
  double memory_seconds(double bytes) const;
  /// The rate of a kernel for a dtype: the most special entry, or one of zeros.
  KernelRate kernel(const std::string& kernel, const std::string& dtype) const;
  /// Throws a usage error, with the classes there are, for a link class that the profile lacks.
  int find_link(const std::string& link) const;
};

}  // namespace tessera
