#include "tokenizer/bert.h"

#include <algorithm>

#include "tokenizer/bert_characters.h"
#include "tokenizer/utf8.h"

namespace tessera {

namespace {

/// Calls visit(code point, its bytes) for each character.
template <class Visit>
void for_each_character(std::string_view text, Visit visit) {
  for (size_t at = 0, length; at < text.size(); at += length) {
    length = std::max<size_t>(1, utf8_length(text, at));
    visit(utf8_code_point(text, at, length), text.substr(at, length));
  }
}

}  // namespace

BertNormalizer::BertNormalizer(const BertRules& rules) : rules_(rules) {
  if (rules.strip_accents || rules.lower_case)
    decompose_ = std::make_unique<UnicodeNormalizer>(NormalForm::nfd);
}

std::string BertNormalizer::normalize(std::string_view text, MatchSpace& space) const {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](char32_t point, std::string_view bytes) {
    if (rules_.clean_text && (point == 0 || is_bert_control(point))) return;
    const bool is_apart = rules_.spaces_around_ideographs && is_bert_ideograph(point);
    if (rules_.clean_text && is_white_space(point)) bytes = " ";
    if (is_apart) result += ' ';
    result += bytes;
    if (is_apart) result += ' ';
  });
  if (rules_.strip_accents) {
    const std::string whole = decompose_->normalize(result, space);
    result.clear();
    for_each_character(whole, [&](char32_t point, std::string_view bytes) {
      if (!is_bert_mark(point)) result += bytes;
    });
  }
  if (!rules_.lower_case) return result;
  std::string small;
  small.reserve(result.size());
  for_each_character(result, [&](char32_t point, std::string_view bytes) {
    if (point == 0x130) {  // the one capital whose small letter has two characters
      small += "i\xCC\x87";
    } else if (const char32_t letter = lower_case(point); letter == point) {
      small += bytes;
    } else {
      append_utf8(letter, small);
    }
  });
  return small;
}

void BertSplitter::split(std::string_view text, bool first, MatchSpace&, PieceSink& sink) const {
  size_t begin = 0;
  const auto give = [&](size_t end) {
    if (end > begin) sink.take(text.substr(begin, end - begin), first && begin == 0);
    begin = end;
  };
  for (size_t at = 0, length; at < text.size(); at += length) {
    length = std::max<size_t>(1, utf8_length(text, at));
    const char32_t point = utf8_code_point(text, at, length);
    if (is_white_space(point)) {
      give(at);
      begin = at + length;
    } else if (is_bert_punctuation(point)) {
      give(at);
      give(at + length);
    }
  }
  give(text.size());
}

}  // namespace tessera
