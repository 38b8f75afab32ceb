// Normalizers: rewrite a text before it is cut.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pattern.h"

namespace tessera {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Rewrites valid UTF-8 to valid UTF-8.
  virtual std::string normalize(std::string_view text, MatchSpace& space) const = 0;
};

/// Unicode's normal forms.
enum class NormalForm { nfc, nfd, nfkc, nfkd };

class UnicodeNormalizer : public Normalizer {
 public:
  /// Throws an unsupported error if this build has no utf8proc.
  explicit UnicodeNormalizer(NormalForm form);
  std::string normalize(std::string_view text, MatchSpace& space) const override;
  /// The version of utf8proc; "" if this build has none.
  static std::string library();

 private:
  NormalForm form_;
};

/// The small letter of a capital, or the character itself. Without utf8proc only ASCII has
/// capitals.
char32_t lower_case(char32_t point);

/// Puts a text in front of one that is not empty.
class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string normalize(std::string_view text, MatchSpace& space) const override;

 private:
  std::string prefix_;
};

/// Replaces the matches of a pattern by a text.
class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(const std::string& what, const std::string& expression, std::string content)
      : pattern_(what, expression), content_(std::move(content)) {}
  std::string normalize(std::string_view text, MatchSpace& space) const override;

 private:
  Pattern pattern_;
  std::string content_;
};

/// The same for a literal text, without a pattern.
class ReplaceText : public Normalizer {
 public:
  ReplaceText(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  std::string normalize(std::string_view text, MatchSpace& space) const override;

 private:
  std::string from_, to_;
};

/// Removes white space at the ends.
class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  std::string normalize(std::string_view text, MatchSpace& space) const override;

 private:
  bool left_, right_;
};

/// The map of characters that a SentencePiece model brings along, as Hugging Face tokenizers apply
/// it: grapheme by grapheme.
class CharsMap : public Normalizer {
 public:
  /// `map`: number of bytes of a double-array trie (uint32), the trie, and the texts that it points
  /// to, each ending with a zero byte. Throws an io error for a damaged map.
  explicit CharsMap(const std::string& map);
  std::string normalize(std::string_view text, MatchSpace& space) const override;

 private:
  /// The text that stands for the shortest prefix of `text` with an entry; nullptr: none.
  const char* find(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
  Pattern graphemes_;
};

}  // namespace tessera
