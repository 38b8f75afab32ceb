#include "tessera/machine.h"

#include <algorithm>
#include <cmath>

#include "base/env.h"
#include "base/fail.h"
#include "base/files.h"
#include "cost/machine_files.h"
#include "program/kernels.h"

namespace tessera {

namespace {

constexpr int kNearest = 4;  ///< number of measured matmuls that correct a prediction

/// Libraries choose smaller tiles if waves would be half empty. These read more operand bytes per
/// product and run at `share` of the rate.
struct SmallerTile {
  double rows, columns, share;
};
constexpr SmallerTile kSmallerTiles[] = {{1, 2, 0.95}, {2, 2, 0.85}, {2, 4, 0.7}};

/// Seconds with tiles of rows x columns at `share` of the rate.
double tiled_seconds(const MatmulRate& r, double rows, double columns, double share, int64_t m,
                     int64_t n, int64_t k, int64_t batch) {
  const double tiles = std::ceil(static_cast<double>(m) / rows) *
                       std::ceil(static_cast<double>(n) / columns) * static_cast<double>(batch),
               units = static_cast<double>(r.units);
  // Split-K: with fewer tiles than units, k is cut into parts, each longer than `depth`.
  double parts = 1;
  if (tiles < units && r.depth > 0)
    parts = std::clamp(std::floor(units / tiles), 1.0,
                       std::max(1.0, static_cast<double>(k) / (4 * r.depth)));
  // The last wave leaves units idle, but idle units leave their power budget to the others: half of
  // the loss remains.
  double waves = std::ceil(tiles * parts / units);
  if (waves > 1) waves = (waves + tiles * parts / units) / 2;
  return waves * units * 2 * rows * columns * (static_cast<double>(k) / parts + r.depth) /
         (r.flops * share);
}

double rate_seconds(const MatmulRate& r, int64_t m, int64_t n, int64_t k, int64_t batch) {
  const auto rows = static_cast<double>(r.tile_rows), columns = static_cast<double>(r.tile_columns);
  double seconds = tiled_seconds(r, rows, columns, 1, m, n, k, batch);
  if (r.units > 1) {
    for (const auto& [cut_rows, cut_columns, share] : kSmallerTiles)
      seconds = std::min(
          seconds, tiled_seconds(r, std::max(1.0, rows / cut_rows),
                                 std::max(1.0, columns / cut_columns), share, m, n, k, batch));
    seconds = std::min(seconds, tiled_seconds(r, columns, rows, 1, m, n, k, batch));
  }
  seconds *= (1 + r.m_half / static_cast<double>(m)) * (1 + r.n_half / static_cast<double>(n));
  return n % 8 != 0 || k % 8 != 0 ? seconds * r.misaligned : seconds;
}

/// The distance of two matmuls: the sum of |log2| of their size ratios.
double distance(const MatmulSample& s, double m, double n, double k) {
  return std::abs(std::log2(static_cast<double>(s.m) / m)) +
         std::abs(std::log2(static_cast<double>(s.n) / n)) +
         std::abs(std::log2(static_cast<double>(s.k) / k));
}

/// The time of the nearest measured matmuls, relative to what the formula predicts for them.
double correction(const std::vector<MatmulSample>& samples, const MatmulRate& rate, int64_t m,
                  int64_t n, int64_t k) {
  std::vector<std::pair<double, double>> near;  // distance, log(measured / predicted)
  for (const MatmulSample& s : samples) {
    if (s.dtype != rate.dtype) continue;
    near.emplace_back(
        distance(s, static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)),
        std::log(s.seconds / (rate.launch + rate_seconds(rate, s.m, s.n, s.k, 1))));
  }
  if (near.empty()) return 1;
  std::sort(near.begin(), near.end());
  near.resize(std::min<size_t>(near.size(), kNearest));
  double sum = 0, weights = 0;
  for (const auto& [far, ratio] : near) {
    const double weight = 1 / (far * far + 1e-3);
    sum += weight * ratio;
    weights += weight;
  }
  return std::exp(sum / weights);
}

}  // namespace

std::vector<std::string> Machine::names() {
  std::vector<std::string> names;
  for (const MachineFile& file : machine_files()) names.push_back(file.name);
  return names;
}

std::string Machine::calibrated_path() {
  if (cache_folder().empty()) return "";
  const std::string path = cache_folder() + "/machine.toml";
  return is_there(path) ? path : "";
}

Machine Machine::load(const std::string& name_or_path) {
  for (const MachineFile& file : machine_files()) {
    if (name_or_path == file.name) return parse(file.text, "profile " + name_or_path);
  }
  if (!name_or_path.ends_with(".toml") && !is_there(name_or_path))
    fail(ErrorKind::usage, "unknown machine '{}'; a profile of your own is a .toml file{}",
         name_or_path, suggestion(name_or_path, names()));
  return parse(read_machine_file(name_or_path), name_or_path);
}

double Machine::matmul_seconds(const std::string& dtype, int64_t m, int64_t n, int64_t k,
                               int64_t batch) const {
  if (m <= 0 || n <= 0 || k <= 0 || batch <= 0) return 0;
  for (const MatmulRate& rate : matmuls) {
    if (rate.dtype != dtype) continue;
    const double once = rate.launch + rate_seconds(rate, m, n, k, rate.units > 1 ? batch : 1);
    return once * (rate.units > 1 ? 1 : static_cast<double>(batch)) *
           correction(samples, rate, m, n, k);
  }
  // GPUs multiply both 16-bit types at the same rate.
  if (dtype == "float16") return matmul_seconds("bfloat16", m, n, k, batch);
  std::vector<std::string> known;
  for (const MatmulRate& rate : matmuls) known.push_back(rate.dtype);
  throw Error(ErrorKind::usage,
              fmt::format("machine '{}' has no [[matmul]] for dtype '{}'; it has {}", name, dtype,
                          known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))),
              ErrorCode::unknown_machine);
}

namespace {
/// The kernel whose measurements apply: attention over blocks of keys is rated as attention.
std::string measured_as(const std::string& kernel) {
  const std::optional<KernelKind> known = find_kernel(kernel);
  const KernelKind other = known ? info_of(*known).measured_as : KernelKind::none;
  return other == KernelKind::none ? kernel : std::string(info_of(other).name);
}
}  // namespace

double Machine::slower_in_context(const std::string& kernel) const {
  const std::string name = measured_as(kernel);
  for (const KernelContext& c : context) {
    if (c.kernel == name) return c.slower;
  }
  return 1;
}

bool Machine::has_caches() const {
  return !samples.empty() ||
         std::any_of(memory_rates.begin(), memory_rates.end(), [&](const MemoryRate& rate) {
           return rate.bandwidth > memory_rates.back().bandwidth;
         });
}

double Machine::memory_seconds(double bytes) const {
  for (const MemoryRate& rate : memory_rates) {
    if (rate.up_to <= 0 || bytes <= rate.up_to) return bytes / rate.bandwidth;
  }
  return memory_rates.empty() ? 0 : bytes / memory_rates.back().bandwidth;
}

KernelRate Machine::kernel(const std::string& kernel, const std::string& type) const {
  const bool own = std::any_of(kernels.begin(), kernels.end(),
                               [&](const KernelRate& rate) { return rate.dtype == type; });
  const std::string dtype = type == "float16" && !own ? "bfloat16" : type;
  const std::string name = measured_as(kernel);
  const KernelRate* best = nullptr;
  int most = -1;
  for (const KernelRate& rate : kernels) {
    const bool named = rate.kernel == name;
    if (!named && rate.kernel != "*") continue;
    if (!rate.dtype.empty() && rate.dtype != dtype) continue;
    const int special = (named ? 2 : 0) + (rate.dtype.empty() ? 0 : 1);
    if (special > most) most = special, best = &rate;
  }
  return best != nullptr ? *best : KernelRate{kernel, dtype, 0, 0};
}

int Machine::find_link(const std::string& link) const {
  std::vector<std::string> known;
  for (size_t t = 0; t < links.size(); ++t) {
    if (links[t].name == link) return static_cast<int>(t);
    known.push_back(links[t].name);
  }
  throw Error(
      ErrorKind::usage,
      fmt::format("machine '{}' has no link class '{}'{}", name, link, suggestion(link, known)),
      ErrorCode::unknown_machine);
}

}  // namespace tessera
