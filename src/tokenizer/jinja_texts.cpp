#include "tokenizer/jinja_texts.h"

#include <algorithm>
#include <cctype>

#include "base/fail.h"
#include "tokenizer/utf8.h"

namespace tessera::jinja {

std::string stripped(const std::string& text, const Value& set, bool begin, bool end) {
  const std::vector<std::string> all = characters(text);
  std::vector<std::string> gone;
  if (set.is_string()) gone = characters(set.get_ref<const std::string&>());
  const auto is_gone = [&](const std::string& c) {
    const char32_t point = utf8_code_point(c, 0, c.size());
    return set.is_string() ? std::find(gone.begin(), gone.end(), c) != gone.end()
                           : is_white_space(point) || (point >= 0x1C && point <= 0x1F);
  };
  size_t first = 0, last = all.size();
  while (begin && first < last && is_gone(all[first])) ++first;
  while (end && last > first && is_gone(all[last - 1])) --last;
  std::string result;
  for (size_t i = first; i < last; ++i) result += all[i];
  return result;
}

std::string replaced(const std::string& text, const std::string& old, const std::string& now,
                     int64_t most) {
  TESSERA_REQUIRE(!old.empty(), "[chat template] replace of an empty text");
  std::string result;
  size_t from = 0;
  for (size_t at; most-- != 0 && (at = text.find(old, from)) != text.npos; from = at + old.size()) {
    result.append(text, from, at - from).append(now);
    TESSERA_REQUIRE(result.size() <= kMostText, "[chat template] a text has more than {} bytes",
                    kMostText);
  }
  return result.append(text, from);
}

std::string padded(const std::string& text, int64_t width, char fill, bool front) {
  TESSERA_REQUIRE(width < int64_t{1} << 20, "[chat template] a text of {} characters", width);
  const int64_t more = width - std::ssize(characters(text));
  if (more <= 0) return text;
  const std::string space(static_cast<size_t>(more), fill);
  return front ? space + text : text + space;
}

bool is_case(std::string_view name) {
  return name == "lower" || name == "upper" || name == "capitalize" || name == "title" ||
         name == "swapcase";
}

std::string changed_case(std::string text, const std::string& name) {
  bool within = false;  // a word, or for "capitalize" the text
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) refuse("'" + name + "' of letters beyond ASCII");
    const bool is_upper = std::isupper(byte) != 0;
    const bool up = name == "upper" || (name == "swapcase" && !is_upper) ||
                    ((name == "title" || name == "capitalize") && !within);
    c = static_cast<char>(up ? std::toupper(byte) : std::tolower(byte));
    within = name == "capitalize" || std::isalpha(byte) != 0;
  }
  return text;
}

std::string formatted(const std::string& text, const Arguments& args) {
  std::string result;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c == '{' || c == '}') && text.compare(at, 2, std::string(2, c)) == 0) {
      result += text[at++];
    } else if (c == '{') {
      const size_t end = text.find('}', at);
      TESSERA_REQUIRE(end != text.npos, "[chat template] format(): '{{' is not closed");
      const std::string field = text.substr(at + 1, end - at - 1);
      at = end;
      const bool is_number =
          !field.empty() && field.size() < 4 && field.find_first_not_of("0123456789") == field.npos;
      TESSERA_REQUIRE(!is_number || next == 0, "[chat template] format(): '{}' behind '{{}}'",
                      field);
      if (field.find_first_of(":!.[") != field.npos) refuse("format() with '" + field + "'");
      const auto named = std::find_if(args.named.begin(), args.named.end(),
                                      [&](const auto& a) { return a.first == field; });
      const size_t i = is_number ? std::stoul(field) : field.empty() ? next++ : args.values.size();
      TESSERA_REQUIRE(named != args.named.end() || i < args.values.size(),
                      "[chat template] format() lacks '{}'", field);
      result += text_of(named != args.named.end() ? named->second : args.values[i]);
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace tessera::jinja
