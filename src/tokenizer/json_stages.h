// The stages that a tokenizer.json describes besides its model.
#pragma once

#include "tokenizer/json_reader.h"
#include "tokenizer/pipeline.h"

namespace tessera {

/// Appends the normalizer, with those of a Sequence in order. Throws unsupported errors that name
/// what is not known.
void add_normalizer(JsonPart part, std::vector<std::unique_ptr<Normalizer>>& list);
/// Appends the pre-tokenizer. Sets `over_bytes` if it is or ends with ByteLevel.
void add_splitter(JsonPart part, std::vector<std::unique_ptr<Splitter>>& list, bool& over_bytes);

/// How decoding turns tokens into text.
struct DecodingRules {
  bool bytes_visible = false;     ///< ByteLevel
  bool marks_are_spaces = false;  ///< Metaspace, or Replace of the mark
  bool drops_first_space = false;
  bool byte_tokens = false;  ///< <0xXX> are bytes
  bool are_words = false;    ///< WordPiece: a token without `inner` in front begins a word
  std::string inner = {};
  bool cleans_up = false;  ///< WordPiece: no space in front of punctuation and endings like 's
};
void add_decoder(JsonPart part, DecodingRules& rules);

/// What the post-processor puts around a text. `id_of` gives the id of a token by its name.
struct Surroundings {
  std::vector<int32_t> before, after;
};
void add_post_processor(JsonPart part, Surroundings& around);

inline constexpr const char* kMark = "\xE2\x96\x81";  ///< U+2581, a space in SentencePiece

}  // namespace tessera
