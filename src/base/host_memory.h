// The limits of the memory that a process may have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct HostLimit {
  std::string of;      ///< "the cgroup '/job' (memory.max)"
  int64_t bytes = 0;   ///< that it allows
  int64_t used = 0;    ///< of them by this process, now
  bool shared = true;  ///< with other processes of the host
};

/// The limits that are known: of the address space (ulimit -v), of the cgroup of this process and
/// of those above it (versions 1 and 2), and what the host has. `root` stands before each path that
/// is read.
std::vector<HostLimit> memory_limits(const std::string& root = "");

/// The memory that each rank of a host needs.
struct RankNeeds {
  int64_t bytes = 0;
  std::string parts;  ///< "2.00 GB of parameters, 1.00 GB that a step uses"
  int ranks = 1;      ///< of the host
  int local = 1;      ///< of them, threads of this process
};
/// Throws an unsupported error if the ranks cannot have it.
void require_memory(const RankNeeds& needs, const std::vector<HostLimit>& limits);

/// For an error when memory has run out: the limits, and what this process uses of each.
std::string no_memory_text(const std::vector<HostLimit>& limits);

}  // namespace tessera
