// BERT's rules: how its texts are cleaned, and how they are cut into words.
#pragma once

#include "tokenizer/normalizers.h"
#include "tokenizer/splitters.h"

namespace tessera {

struct BertRules {
  bool clean_text = true;  ///< control characters go, white space becomes spaces
  bool spaces_around_ideographs = true;
  bool strip_accents = true;
  bool lower_case = true;
};

class BertNormalizer : public Normalizer {
 public:
  /// Throws an unsupported error if accents are stripped or letters made small and this build has
  /// no utf8proc.
  explicit BertNormalizer(const BertRules& rules);
  std::string normalize(std::string_view text, MatchSpace& space) const override;

 private:
  BertRules rules_;
  std::unique_ptr<UnicodeNormalizer> decompose_;
};

/// Cuts at white space, which goes, and around every punctuation character.
class BertSplitter : public Splitter {
 public:
  void split(std::string_view text, bool first, MatchSpace& space, PieceSink& sink) const override;
};

}  // namespace tessera
