#include "cli/excerpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "base/printable.h"
#include "cli/terminal.h"

namespace tessera::cli {

namespace {

constexpr int kMostColumns = 76;
constexpr auto kNowhere = std::string::npos;

/// The texts in single quotes, without what is suggested instead of them.
std::vector<std::string> quoted_in(std::string message) {
  for (const char* end : {"did you mean", "known:"})
    message.resize(std::min(message.size(), message.find(end)));
  std::vector<std::string> all;
  for (size_t at = message.find('\''); at != kNowhere; at = message.find('\'', at + 1)) {
    const size_t end = message.find('\'', at + 1);
    if (end == kNowhere) break;
    if (end > at + 1) all.push_back(message.substr(at + 1, end - at - 1));
    at = end;
  }
  return all;
}

bool is_of_word(char c) {
  return c == '_' || c == '-' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Where `word` stands in `text` with no other part of a word beside it, from `from` on.
size_t find_word(const std::string& text, const std::string& word, size_t from = 0) {
  for (size_t at = text.find(word, from); at != kNowhere; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_of_word(text[at - 1]) || !is_of_word(word.front());
    const bool ends = end == text.size() || !is_of_word(text[end]) || !is_of_word(word.back());
    if (begins && ends) return at;
  }
  return kNowhere;
}

struct Place {
  size_t argument = kNowhere, at = 0, size = 0;
};

/// The shortest of `words` that stands once in `arguments` (the values of options if
/// `values`, else the others).
Place place_of(const std::vector<std::string>& words, const std::vector<std::string>& arguments,
               const std::vector<bool>& is_value, bool values) {
  Place best;
  for (const std::string& word : words) {
    Place found;
    size_t times = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_value[i] != values) continue;
      for (size_t at = find_word(arguments[i], word); at != kNowhere;
           at = find_word(arguments[i], word, at + 1)) {
        found = {i, at, word.size()};
        ++times;
      }
    }
    if (times == 1 && (best.argument == kNowhere || found.size < best.size)) best = found;
  }
  return best;
}

/// `line` with carets under `size` bytes from `at` on; a long line is cut around them.
std::string with_carets(const std::string& line, size_t at, size_t size) {
  std::string before = printable(line.substr(0, at)), after = printable(line.substr(at + size));
  const std::string culprit = printable(line.substr(at, size));
  if (columns(before) + columns(culprit) > kMostColumns) {
    const int cut = columns(before) - kMostColumns / 2;
    if (cut > 0) before = "..." + before.substr(first_columns(before, cut).size());
  }
  const int room = std::max(0, kMostColumns - columns(before) - columns(culprit));
  if (columns(after) > room) after = first_columns(after, room) + "...";
  return fmt::format("    {}{}{}\n    {}{}\n", before, culprit, after,
                     std::string(static_cast<size_t>(columns(before)), ' '),
                     std::string(static_cast<size_t>(std::max(1, columns(culprit))), '^'));
}

/// The line of a message "FILE: ... line 7 ...".
std::string line_of_file(const std::string& message, const std::vector<std::string>& words) {
  const size_t colon = message.find(": "), named = message.find("line ", colon);
  if (colon == kNowhere || named == kNowhere) return "";
  size_t number = 0;
  const char* const digits = message.c_str() + named + 5;
  std::from_chars(digits, message.c_str() + message.size(), number);
  std::ifstream file(message.substr(0, colon));
  std::string line;
  for (size_t i = 0; i < number; ++i) {
    if (!std::getline(file, line)) return "";
  }
  if (number == 0 || line.find_first_not_of(" \t\r") == kNowhere) return "";
  std::replace(line.begin(), line.end(), '\t', ' ');
  if (line.back() == '\r') line.pop_back();
  for (const std::string& word : words) {
    if (const size_t at = find_word(line, word); at != kNowhere)
      return with_carets(line, at, word.size());
  }
  const size_t at = line.find_first_not_of(' ');
  return with_carets(line, at, line.size() - at);
}

}  // namespace

std::string excerpt(const std::string& message, const std::vector<std::string>& arguments) {
  const std::vector<std::string> words = quoted_in(message);
  if (std::string text = line_of_file(message, words); !text.empty()) return text;
  // Each argument behind an option is its value: --set takes several.
  std::vector<bool> is_value(arguments.size());
  size_t option = kNowhere;
  std::vector<size_t> option_of(arguments.size(), kNowhere);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("-")) {
      option = i;
      is_value[i] = arguments[i].find('=') != kNowhere;
    } else {
      option_of[i] = option;
      is_value[i] = option != kNowhere;
    }
  }
  Place place = place_of(words, arguments, is_value, true);
  if (place.argument == kNowhere) place = place_of(words, arguments, is_value, false);
  if (place.argument == kNowhere) return "";
  const size_t of = option_of[place.argument];
  const std::string before = of == kNowhere ? "" : arguments[of] + ' ';
  return with_carets(before + arguments[place.argument], before.size() + place.at, place.size);
}

}  // namespace tessera::cli
