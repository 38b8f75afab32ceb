#include "tokenizer/normalizers.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "base/fail.h"
#include "tokenizer/splitters.h"
#include "tokenizer/utf8.h"

#ifdef TESSERA_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

namespace tessera {

#ifdef TESSERA_HAVE_UTF8PROC

namespace {

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

/// Characters that a normal form changes or moves and that came after Unicode 9, whose tables
/// Hugging Face tokenizers use: to them, and so to vocabularies, these have no other form.
constexpr std::pair<char32_t, char32_t> kFormsAfter9[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0xECE, 0xECE},
    {0x1715, 0x1715},   {0x1ABF, 0x1AEB},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
    {0xA7F1, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C0, 0x105FF},
    {0x10780, 0x107BF}, {0x10D24, 0x10D6D}, {0x10EAB, 0x10EFF}, {0x10F46, 0x10F85},
    {0x11070, 0x11070}, {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x11380, 0x113FF},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11900, 0x11959}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D97}, {0x11F41, 0x11F42},
    {0x16100, 0x1613F}, {0x16D40, 0x16D7F}, {0x16FF0, 0x16FF1}, {0x1CCD6, 0x1CCF9},
    {0x1E030, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5EE, 0x1E6FF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_newer(char32_t point) {
  const auto* it = std::upper_bound(std::begin(kFormsAfter9), std::end(kFormsAfter9), point,
                                    [](char32_t p, const auto& range) { return p < range.first; });
  return it != std::begin(kFormsAfter9) && point <= (it - 1)->second;
}

/// Capitals that are newer than some versions of utf8proc, and the letter of the first one.
struct NewCapitals {
  char32_t first, last, small;
};
constexpr NewCapitals kNewCapitals[] = {{0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},
                                        {0xA7CC, 0xA7CC, 0xA7CD},    {0xA7CE, 0xA7CE, 0xA7CF},
                                        {0xA7D2, 0xA7D2, 0xA7D3},    {0xA7D4, 0xA7D4, 0xA7D5},
                                        {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},
                                        {0x10D50, 0x10D65, 0x10D70}, {0x16EA0, 0x16EB8, 0x16EBB}};

std::string mapped(std::string_view text, utf8proc_option_t options) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result, options);
  TESSERA_CHECK(bytes >= 0, "utf8proc: {}", bytes < 0 ? utf8proc_errmsg(bytes) : "");
  std::string copy(reinterpret_cast<const char*>(result), static_cast<size_t>(bytes));
  std::free(result);
  return copy;
}

}  // namespace

UnicodeNormalizer::UnicodeNormalizer(NormalForm form) : form_(form) {}

std::string UnicodeNormalizer::normalize(std::string_view text, MatchSpace&) const {
  if (is_ascii(text)) return std::string(text);
  const bool composes = form_ == NormalForm::nfc || form_ == NormalForm::nfkc;
  const bool compatible = form_ == NormalForm::nfkc || form_ == NormalForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compatible ? UTF8PROC_COMPAT : 0));
  std::string result;
  size_t done = 0;
  for (size_t at = 0, length; at < text.size(); at += length) {
    length = std::max<size_t>(1, utf8_length(text, at));
    if (length == 1 || !is_newer(utf8_code_point(text, at, length))) continue;
    (result += mapped(text.substr(done, at - done), options)) += text.substr(at, length);
    done = at + length;
  }
  return result += mapped(text.substr(done), options);
}

std::string UnicodeNormalizer::library() { return utf8proc_version(); }

char32_t lower_case(char32_t point) {
  for (const NewCapitals& c : kNewCapitals) {
    if (point >= c.first && point <= c.last) return c.small + (point - c.first);
  }
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point)));
}

#else

UnicodeNormalizer::UnicodeNormalizer(NormalForm form) : form_(form) {
  fail(ErrorKind::unsupported,
       "[tokenizer] this tokenizer uses a normal form of Unicode, but this build has no utf8proc; "
       "install libutf8proc-dev and configure again");
}

std::string UnicodeNormalizer::normalize(std::string_view text, MatchSpace&) const {
  return std::string(text);
}

std::string UnicodeNormalizer::library() { return ""; }

char32_t lower_case(char32_t point) {
  return point >= 'A' && point <= 'Z' ? point - 'A' + 'a' : point;
}

#endif

std::string PrependNormalizer::normalize(std::string_view text, MatchSpace&) const {
  return text.empty() ? "" : prefix_ + std::string(text);
}

std::string ReplaceNormalizer::normalize(std::string_view text, MatchSpace& space) const {
  std::string result;
  size_t done = 0;
  pattern_.for_each(text, space, [&](const TextRange& match) {
    (result += text.substr(done, match.begin - done)) += content_;
    done = match.end;
  });
  return result += text.substr(done);
}

std::string ReplaceText::normalize(std::string_view text, MatchSpace&) const {
  return replaced(text, from_, to_);
}

std::string StripNormalizer::normalize(std::string_view text, MatchSpace&) const {
  const auto length_at = [&](size_t at) { return std::max<size_t>(1, utf8_length(text, at)); };
  size_t begin = 0;
  while (left_ && begin < text.size() &&
         is_white_space(utf8_code_point(text, begin, length_at(begin))))
    begin += length_at(begin);
  size_t end = right_ ? begin : text.size();
  for (size_t at = begin; right_ && at < text.size(); at += length_at(at)) {
    if (!is_white_space(utf8_code_point(text, at, length_at(at)))) end = at + length_at(at);
  }
  return std::string(text.substr(begin, end - begin));
}

}  // namespace tessera
