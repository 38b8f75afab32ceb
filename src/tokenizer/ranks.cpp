#include "tokenizer/ranks.h"

#include "base/fail.h"

namespace tessera {

PipelineStages stages_of_ranks(const std::string& path,
                               const std::vector<std::pair<std::string, int32_t>>& ranks,
                               int32_t first_id, const std::string& pattern) {
  BpeRules rules;
  rules.whole_first = true;
  rules.ids.reserve(ranks.size());
  for (const auto& [bytes, rank] : ranks) rules.ids[bytes] = first_id + rank;
  for (int b = 0; b < 256; ++b) {
    if (rules.ids.contains(std::string(1, static_cast<char>(b)))) continue;
    fail(ErrorKind::io,
         "[tokenizer] '{}' has {} tokens but none for the byte 0x{:02X}; the file is truncated, or "
         "no vocabulary of tiktoken",
         path, ranks.size(), b);
  }
  rules.merges.reserve(3 * ranks.size());
  for (const auto& [bytes, rank] : ranks) {
    const std::string_view all = bytes;
    for (size_t cut = 1; cut < all.size(); ++cut) {
      const auto left = rules.ids.find(all.substr(0, cut));
      if (left == rules.ids.end()) continue;
      const auto right = rules.ids.find(all.substr(cut));
      if (right == rules.ids.end()) continue;
      rules.merges.add(left->second, right->second, static_cast<uint32_t>(rank), first_id + rank);
    }
  }
  PipelineStages stages;
  stages.splitters.push_back(std::make_unique<PatternSplitter>(
      "'" + path + "'", pattern, SplitBehavior::isolated, false, Dialect::rust));
  stages.model = std::make_unique<Bpe>(std::move(rules));
  return stages;
}

}  // namespace tessera
