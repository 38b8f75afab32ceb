// Which of the library's algorithms a matmul uses: measured once on a GPU, then kept, in this
// process and on disk, so that later runs and other ranks compute the same bits.
//
// A choice is a file of its own in cache_folder(), named by a hash of the problem: GPU, versions
// of driver and library, sizes, types, alignments. Written whole and never replaced: of several
// ranks that measure at once the first one's choice counts, for all.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

class GemmAlgorithmCache {
 public:
  /// In cache_folder().
  GemmAlgorithmCache();
  explicit GemmAlgorithmCache(const std::string& folder);

  /// The choice for `problem`, a text of one line: what is known, else what `measure` returns,
  /// which is kept; an empty text is not. One thread at a time measures.
  std::string choose(const std::string& problem, const std::function<std::string()>& measure);
  /// Why choices last no longer than this process; empty if they do.
  std::string why_not_kept() const;

 private:
  std::string path_of(const std::string& problem) const;
  std::string read(const std::string& problem) const;
  void write(const std::string& problem, const std::string& choice);

  mutable std::mutex mutex_;
  std::string folder_, why_not_;
  std::map<std::string, std::string> known_;
};

/// Those of this process.
GemmAlgorithmCache& gemm_algorithm_cache();
/// For tests: what gemm_algorithm_cache() returns from now on; null undoes it.
void replace_gemm_algorithm_cache(GemmAlgorithmCache* choices);

}  // namespace tessera
