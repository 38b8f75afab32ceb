// The cache of matmul algorithms. The algorithm of a matmul is measured once per GPU and kept in
// this process and on disk, so that later runs and other ranks compute the same bits.
//
// A choice is one file in cache_folder(), named by a hash of the problem: GPU, driver and library
// versions, sizes, dtypes, alignments. Files are written atomically and never replaced: if several
// ranks measure at once, the first one's choice is used by all.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tessera {

/// The text of the file with the choice for `problem`, and the reverse, which throws an io error if
/// the text is damaged, of another problem or version, or its choice is no short line.
std::string text_of_gemm_choice(const std::string& problem, const std::string& choice);
std::string parse_gemm_choice(const std::string& text, const std::string& problem);

class GemmAlgorithmCache {
 public:
  /// Uses cache_folder().
  GemmAlgorithmCache();
  explicit GemmAlgorithmCache(const std::string& folder);

  /// The choice for `problem`, a text of one line: the known one, else the result of `measure`,
  /// which is kept unless it is empty. One thread at a time measures.
  std::string choose(const std::string& problem, const std::function<std::string()>& measure);
  /// Why choices are only kept in this process; empty if they are kept on disk.
  std::string why_not_kept() const;
  /// Files that could not be used, each with the cause; their problems were measured again.
  std::vector<std::string> ignored() const;

 private:
  std::string path_of(const std::string& problem) const;
  std::string read(const std::string& problem);
  void write(const std::string& problem, const std::string& choice);

  mutable std::mutex mutex_;
  std::string folder_, why_not_;
  std::map<std::string, std::string> known_;
  std::set<std::string> ignored_;
};

/// The cache of this process.
GemmAlgorithmCache& gemm_algorithm_cache();
/// For tests: replaces the result of gemm_algorithm_cache(); null restores it.
void replace_gemm_algorithm_cache(GemmAlgorithmCache* choices);

}  // namespace tessera
