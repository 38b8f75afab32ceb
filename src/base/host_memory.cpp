#include "base/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/fail.h"
#include "base/units.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

/// Address space that OpenBLAS and malloc reserve for a rank. OpenBLAS waits for ever where it gets
/// none.
constexpr int64_t kReserved = int64_t{200} << 20;

std::string text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

/// The number in a file; nothing if there is none, such as in "max".
std::optional<int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return {};
}

/// Pages of this process: of its address space, and in memory.
struct Pages {
  int64_t all = 0, resident = 0;
};

/// The limits of a cgroup and of those above it. `file` has the limit of each.
void add_groups(const std::string& mounted, const std::string& group, const char* file,
                int64_t used, int64_t most, std::vector<HostLimit>& limits) {
  for (fs::path at = group;; at = at.parent_path()) {
    const fs::path folder = mounted + at.string();
    if (const std::optional<int64_t> bytes = number_in(folder / file); bytes && *bytes < most)
      limits.push_back({fmt::format("the cgroup '{}' ({})", at.string(), file), *bytes, used});
    if (at == at.parent_path()) return;
  }
}

}  // namespace

std::vector<HostLimit> memory_limits(const std::string& root) {
  std::vector<HostLimit> limits;
  const int64_t page = sysconf(_SC_PAGESIZE);
  Pages pages;
  std::ifstream(root + "/proc/self/statm") >> pages.all >> pages.resident;
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    limits.push_back({"the address space (ulimit -v)", static_cast<int64_t>(space.rlim_cur),
                      pages.all * page, false});
  int64_t host = 0;
  std::ifstream memory(root + "/proc/meminfo");
  std::string key, unit;
  for (int64_t kib = 0; memory >> key >> kib; std::getline(memory, unit)) {
    if (key == "MemTotal:" || key == "SwapTotal:") host += kib << 10;
  }
  if (host == 0) return limits;
  const int64_t used = pages.resident * page;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/job", "0::/job"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1), mounted = root + "/sys/fs/cgroup";
    if (controllers == ",,") add_groups(mounted, group, "memory.max", used, host, limits);
    if (controllers.find(",memory,") != controllers.npos)
      add_groups(mounted + "/memory", group, "memory.limit_in_bytes", used, host, limits);
  }
  limits.push_back({"this host's memory with its swap space", host, used});
  return limits;
}

void require_memory(const RankNeeds& needs, const std::vector<HostLimit>& limits) {
  for (const HostLimit& limit : limits) {
    const int n = limit.shared ? needs.ranks : needs.local;
    const int64_t reserved = limit.shared ? 0 : kReserved;
    if (needs.bytes + reserved <= (limit.bytes - limit.used) / n) continue;
    fail(ErrorKind::unsupported,
         "{} {} ({}{}{}), but {} allows {}, of which this process uses {}; raise the limit, give "
         "more hosts or a smaller model, or --memory LIMIT to be told what would fit",
         n == 1 ? "a rank needs" : fmt::format("{} ranks need", n),
         text(n * (needs.bytes + reserved)), n == 1 ? "" : "each ", needs.parts,
         reserved == 0 ? "" : fmt::format(", {} that libraries reserve", text(reserved)), limit.of,
         text(limit.bytes), text(limit.used));
  }
}

std::string no_memory_text(const std::vector<HostLimit>& limits) {
  std::string all = "the system gives this process no more memory";
  for (const HostLimit& limit : limits)
    all += fmt::format("; {} allows {}, of which it uses {}", limit.of, text(limit.bytes),
                       text(limit.used));
  return all;
}

}  // namespace tessera
