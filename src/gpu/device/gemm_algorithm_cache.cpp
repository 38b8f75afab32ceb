#include "gpu/device/gemm_algorithm_cache.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/cache_file.h"
#include "base/env.h"
#include "base/fail.h"
#include "base/hash.h"

namespace tessera {

namespace {

constexpr const char* kFormat = "tessera-product 2";

constexpr size_t kMostChoice = 256;

}  // namespace

std::string text_of_gemm_choice(const std::string& problem, const std::string& choice) {
  return cache_entry(kFormat, problem, choice);
}

std::string parse_gemm_choice(const std::string& text, const std::string& problem) {
  std::string choice = cached_value(text, kFormat, problem);
  const bool is_word =
      std::all_of(choice.begin(), choice.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (choice.empty() || choice.size() > kMostChoice || !is_word)
    fail(ErrorKind::io, "its choice, of {} bytes, is no text of 1 to {} characters", choice.size(),
         kMostChoice);
  return choice;
}

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

std::vector<std::string> GemmAlgorithmCache::ignored() const {
  const std::lock_guard lock(mutex_);
  return {ignored_.begin(), ignored_.end()};
}

/// Empty if there is no file; also if it is incomplete, damaged, or of another problem or format,
/// which is noted. Such a file is removed, since it would block all later ones.
std::string GemmAlgorithmCache::read(const std::string& problem) {
  if (folder_.empty()) return "";
  const std::string path = path_of(problem);
  constexpr size_t kMostBytes = size_t{64} << 10;
  try {
    const std::optional<std::string> text = read_cache_file(path, kMostBytes);
    if (!text) return "";
    try {
      return parse_gemm_choice(*text, problem);
    } catch (const Error& e) {
      ignored_.insert(fmt::format("'{}': {}", path, e.what()));
    }
  } catch (const Error& e) {
    ignored_.insert(e.what());
  }
  std::error_code error;
  std::filesystem::remove(path, error);
  return "";
}

/// If another rank was first, its file stays.
void GemmAlgorithmCache::write(const std::string& problem, const std::string& choice) {
  try {
    add_cache_file(path_of(problem), text_of_gemm_choice(problem, choice));
  } catch (const Error& e) {
    why_not_ = e.what();
  }
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
