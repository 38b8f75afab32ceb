// Kinds of characters that BERT's normalizer and pre-tokenizer treat in their own ways.
#pragma once

namespace tessera {

/// A nonspacing mark, such as an accent.
bool is_bert_mark(char32_t point);
/// Punctuation, and the symbols of ASCII.
bool is_bert_punctuation(char32_t point);
/// What cleaning a text removes: control characters but tab, line feed and carriage return, format
/// characters, those for private use, and U+FFFD.
bool is_bert_control(char32_t point);
/// An ideograph of the blocks that a space is put around.
bool is_bert_ideograph(char32_t point);

}  // namespace tessera
