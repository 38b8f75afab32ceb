// What every kind of tokenizer file becomes: an encoder, and a table of tokens for decoding.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer.h"
#include "tokenizer/settings.h"

namespace tessera {

class TokenEncoder {
 public:
  virtual ~TokenEncoder() = default;
  /// Appends the ids of valid UTF-8, without those of options.add_special. Called by several
  /// threads at once.
  virtual void encode(std::string_view text, bool special_in_text,
                      std::vector<int32_t>& ids) const = 0;
};

/// One id.
struct TokenEntry {
  enum class Kind { none, normal, special };
  std::string bytes;  ///< what it decodes to
  Kind kind = Kind::none;
};

/// A tokenizer as it was read.
struct LoadedTokenizer {
  std::unique_ptr<TokenEncoder> encoder;
  std::vector<TokenEntry> tokens;                        ///< by id
  std::map<std::string, int32_t, std::less<>> specials;  ///< by name
  std::string kind;                                      ///< "byte-level BPE"
  std::vector<int32_t> before, after;                    ///< what add_special puts around a text
  bool drops_first_space = false;        ///< decoding drops a space at the beginning
  std::optional<int32_t> bos, eos, pad;  ///< as the file says; none: by the usual names

  /// Sets one entry; the last one counts.
  void set(int32_t id, std::string bytes);
  void set_special(int32_t id, std::string bytes, const std::string& name);
};

inline constexpr int32_t kMostTokens = 1 << 22;  ///< of a vocabulary

LoadedTokenizer load_tokenizer_json(const std::string& path, const nlohmann::json& json,
                                    const TokenizerSettings& settings);
LoadedTokenizer load_tekken(const std::string& path, const nlohmann::json& file);
LoadedTokenizer load_tiktoken(const std::string& path, const std::string& text,
                              const TokenizerOptions& options);
LoadedTokenizer load_sentencepiece(const std::string& path, const std::string& bytes,
                                   const TokenizerSettings& settings);

/// "0.1.97"; "" if this build has no SentencePiece.
std::string sentencepiece_version();
/// "PCRE2 10.42, utf8proc 2.8.0, SentencePiece 0.1.97, Unicode 16", or which package brings what
/// lacks.
std::string tokenizer_libraries();

/// The bytes of base64 text; nullopt if it is none.
std::optional<std::string> base64_decoded(std::string_view text);

}  // namespace tessera
