// The JSON files beside a tokenizer: tokenizer_config.json and, where that has no
// added_tokens_decoder, special_tokens_map.json and added_tokens.json, as transformers reads them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"

namespace tessera {

struct TokenizerSettings {
  bool is_there = false;                     ///< some of them is
  std::string path;                          ///< of tokenizer_config.json
  std::map<std::string, std::string> named;  ///< "eos_token": "</s>"
  std::vector<AddedToken> added;             ///< with ids or, where only their text is given, -1
  /// What stands around a text, where they say it of a SentencePiece model.
  std::optional<bool> adds_bos, adds_eos;
  /// Where a SentencePiece model puts a space in front: of the whole text, and of what follows an
  /// added token.
  bool prefix = true, prefix_behind_tokens = false;
  std::string chat_template;
};

/// What the files beside `file` (".../tokenizer.json" or ".../tokenizer.model") say; nothing for
/// files of other names. Throws io errors that name file and key, for keys that are not known, too.
TokenizerSettings read_settings(const std::string& file);

/// Adds a token to `all`, or changes what `all` has of it. Its id is that of the vocabulary, else
/// the next one, as tokenizers counts them. Throws an io error for another id, and for a token
/// without one that the vocabulary lacks. `file` names the vocabulary, which has `size` tokens.
void add_token(AddedToken token, std::vector<AddedToken>& all, const std::string& file,
               int64_t size,
               const std::function<std::optional<int32_t>(const std::string& text)>& id_of);

}  // namespace tessera
