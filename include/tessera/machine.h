// The planner's model of a machine: how fast one device computes and how fast devices communicate.
// It is read from a TOML profile: shipped (Machine::names()), written by hand, or measured by
// `tessera calibrate`. Units: seconds, bytes, FLOP/s. Rates are sustained rates, not data-sheet
// peaks. A "device" is what one rank computes on: a GPU, or a rank's share of the cores.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Matmuls of one dtype. A matmul [m, k] x [k, n] is divided into tiles; `units` tiles are
/// computed at a time (a wave):
///   tiles = ceil(m / tile_rows) * ceil(n / tile_columns)
///   waves = ceil(tiles / units) if that is 1; else the mean of it and of tiles / units, as the
///           busy units of the last wave get the power of the idle ones
///   seconds = waves * units * 2 tile_rows tile_columns (k + depth) / flops
/// A tile may be a single element; then m_half and n_half are the m and n at which a matmul runs
/// at half speed. If units > 1, smaller tiles are also tried (half the columns at 0.95 of the rate,
/// a quarter of the area at 0.85, an eighth at 0.7), and if there are few waves, k is split.
struct MatmulRate {
  /// "bfloat16", "float32", or one that is no DType: "float8"; "ordered": under strict numerics on
  /// a GPU, of 32 bits and fewer.
  std::string dtype;
  double flops = 0;  ///< sustained, with all units busy and large k
  int64_t tile_rows = 1, tile_columns = 1, units = 1;
  double depth = 0, m_half = 0, n_half = 0;
  double launch = 0;      ///< per matmul, in addition to Machine::launch
  double misaligned = 1;  ///< factor of the time if n or k is not a multiple of 8
};

/// One measured matmul. If there are any, predictions are corrected by the nearest ones.
struct MatmulSample {
  std::string dtype;
  int64_t m = 0, n = 0, k = 0;
  double seconds = 0;
};

/// Kernels other than matmuls: seconds = launch + max(flops / rate, bytes / bandwidth).
/// "pointwise" and "pointwise_hard" count instructions (exp, tanh, ... are hard), "attention"
/// counts the matmuls of all query-key pairs, "*" is for any kernel not listed.
struct KernelRate {
  std::string kernel, dtype;  ///< dtype "": any dtype
  double flops = 0;           ///< 0: only bytes count
  double bandwidth = 0;       ///< 0: Machine::memory_seconds()
};

/// The slowdown of a kernel when it runs among others, as a factor of the time above (matrix
/// matmuls: "matmul").
struct KernelContext {
  std::string kernel;
  double slower = 1;
};

/// Memory bandwidth of a step that touches at most `up_to` bytes (0: any number).
struct MemoryRate {
  double up_to = 0, bandwidth = 0;
};

/// One tier of links, listed from the innermost: "node" connects 8 devices, "network" any number
/// (0). A mesh axis uses the tier on which its ranks lie, with the last axis fastest, or the tier
/// that it names ("model:8@node"). bandwidth: of one device in each direction, while all devices
/// send.
struct LinkTier {
  std::string name;
  int64_t devices = 0;
  double latency = 0;  ///< of one step of a collective algorithm
  double bandwidth = 0;
  double start = 0;  ///< once per collective whose group reaches this tier
};

/// A measured collective: seconds as a function of the bytes that a rank sends, interpolated. For
/// groups of `ranks` whose outermost tier is `link` it is used instead of the formulas of
/// collectives/cost.h.
struct CollectiveRate {
  std::string kind, link;
  int64_t ranks = 0;
  double latency = 0, bandwidth = 0;                ///< linear fit, for display
  std::vector<std::pair<double, double>> measured;  ///< (bytes sent, seconds), ascending
};

/// Slowdown of compute and transfers while both run. compute, transfer: factors, at least 1.
struct Overlap {
  bool possible = true;  ///< false: the compute cores also do the transfers
  double compute = 1, transfer = 1;
  /// Minimum time, in seconds, that an exchange holds up compute even if it is hidden (or its whole
  /// duration, if shorter): a thread has to post its messages.
  double posting = 0;
};

struct Machine {
  std::string name, device, date, source;
  std::string device_type = "cpu";  ///< what a device is: "cpu" or "cuda", as in CompileOptions
  int64_t memory = 0;               ///< bytes of a device
  /// Bytes of these that programs and libraries take beside a plan: CUDA's context, NCCL's buffers.
  int64_t reserve = 0;
  double launch = 0;  ///< seconds per step, besides its work
  std::vector<MemoryRate> memory_rates;
  std::vector<MatmulRate> matmuls;
  std::vector<MatmulSample> samples;
  std::vector<KernelRate> kernels;
  std::vector<KernelContext> context;
  std::vector<LinkTier> links;
  std::vector<CollectiveRate> collectives;
  Overlap overlap;
  std::vector<std::pair<std::string, double>> residuals;  ///< mean relative errors of the fits

  /// Loads a shipped profile by name, or a TOML file. Throws usage errors (unknown name, with the
  /// nearest; missing or wrong key, with its table) and io errors (unreadable file, bad TOML with
  /// line).
  static Machine load(const std::string& name_or_path);
  static Machine parse(const std::string& toml, const std::string& source);
  /// Names of the shipped profiles.
  static std::vector<std::string> names();
  /// The profile that `tessera calibrate` wrote for this machine; "" if there is none.
  static std::string calibrated_path();
  std::string to_toml() const;

  /// True if the parts of a piece of work may take less time than the whole: they fit into caches,
  /// or were measured so.
  bool has_caches() const;
  /// Bytes of a device that a plan may use; 0: not known.
  int64_t usable_memory() const { return memory - reserve; }
  /// Seconds of `batch` matmuls of [m, k] by [k, n], without launch. Throws a usage error if the
  /// profile has no rate for that dtype. Other missing rates count as infinite.
  double matmul_seconds(const std::string& dtype, int64_t m, int64_t n, int64_t k,
                        int64_t batch = 1) const;
  /// KernelContext::slower of a kernel, or 1.
  double slower_in_context(const std::string& kernel) const;
  /// Seconds to read and write `bytes` bytes, without launch.
  double memory_seconds(double bytes) const;
  /// The rate of a kernel for a dtype: the most specific entry, or one of zeros.
  KernelRate kernel(const std::string& kernel, const std::string& dtype) const;
  /// Index of a link class in `links`. Throws a usage error that lists the classes if it is
  /// missing.
  int find_link(const std::string& link) const;
};

}  // namespace tessera
