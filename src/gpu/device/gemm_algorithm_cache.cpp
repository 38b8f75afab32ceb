#include "gpu/device/gemm_algorithm_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/env.h"
#include "base/hash.h"

namespace tessera {

namespace {

constexpr const char* kFormat = "tessera-product 1";

std::string checksum(const std::string& problem, const std::string& choice) {
  return fmt::format("{:016x}", hash_of(choice, hash_of(problem)));
}

}  // namespace

GemmAlgorithmCache::GemmAlgorithmCache() : GemmAlgorithmCache(cache_folder()) {}

GemmAlgorithmCache::GemmAlgorithmCache(const std::string& folder)
    : folder_(folder), why_not_(why_no_cache(folder)) {}

std::string GemmAlgorithmCache::why_not_kept() const {
  const std::lock_guard lock(mutex_);
  return why_not_;
}

std::string GemmAlgorithmCache::choose(const std::string& problem,
                                       const std::function<std::string()>& measure) {
  const std::lock_guard lock(mutex_);
  if (const auto it = known_.find(problem); it != known_.end()) return it->second;
  std::string choice = read(problem);
  if (choice.empty()) {
    choice = measure();
    if (choice.empty()) return choice;
    if (why_not_.empty()) write(problem, choice);
    if (const std::string first = read(problem); !first.empty()) choice = first;
  }
  return known_[problem] = choice;
}

std::string GemmAlgorithmCache::path_of(const std::string& problem) const {
  return fmt::format("{}/{:016x}{:016x}.product", folder_, hash_of(problem),
                     hash_of(problem, hash_of(kFormat, 0)));
}

/// Empty if there is no file, or it is incomplete, damaged, or of another problem or format.
std::string GemmAlgorithmCache::read(const std::string& problem) const {
  if (folder_.empty()) return "";
  std::ifstream file(path_of(problem));
  std::string format, of, choice, sum;
  if (!std::getline(file, format) || !std::getline(file, of) || !std::getline(file, choice) ||
      !std::getline(file, sum))
    return "";
  return format == kFormat && of == problem && sum == checksum(problem, choice) ? choice : "";
}

/// Writes a temporary file and links it into place, which fails if another rank was first. An
/// unreadable file is removed before, since it would block all later ones.
void GemmAlgorithmCache::write(const std::string& problem, const std::string& choice) {
  const std::string path = path_of(problem), part = fmt::format("{}.{}", path, getpid());
  std::ofstream file(part);
  file << kFormat << '\n' << problem << '\n' << choice << '\n' << checksum(problem, choice) << '\n';
  file.close();
  std::error_code error;
  if (read(problem).empty()) std::filesystem::remove(path, error);
  bool stands = file && (link(part.c_str(), path.c_str()) == 0 || errno == EEXIST);
  if (file && !stands) {  // no hard links on this file system: rename instead
    std::filesystem::rename(part, path, error);
    stands = !error;
  }
  std::filesystem::remove(part, error);
  if (!stands) why_not_ = fmt::format("'{}' could not be written", path);
}

namespace {
std::atomic<GemmAlgorithmCache*> replacement{nullptr};
}  // namespace

GemmAlgorithmCache& gemm_algorithm_cache() {
  if (GemmAlgorithmCache* other = replacement) return *other;
  static GemmAlgorithmCache instance;
  return instance;
}

void replace_gemm_algorithm_cache(GemmAlgorithmCache* choices) { replacement = choices; }

}  // namespace tessera
