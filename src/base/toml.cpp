#include "base/toml.h"

#include <algorithm>
#include <string_view>

#include "base/fail.h"

namespace tessera {

namespace {

constexpr size_t kMostBytes = size_t{1} << 20;  // the library is quadratic in the number of tables
constexpr int kMostParts = 16;                  // of a key; the library is recursive over them

/// The position after the string that opens at `at`; the end of the line if it does not close.
size_t behind_string(const std::string& text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool is_long = text.compare(at, 3, three) == 0;
  for (at += is_long ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (!is_long && (text[at] == quote || text[at] == '\n')) {
      return at + 1;
    } else if (is_long && text.compare(at, 3, three) == 0) {
      for (int more = 0; more < 5 && at < text.size() && text[at] == quote; ++more) ++at;
      return at;
    }
  }
  return text.size();
}

void require_short_keys(const std::string& text, const std::string& source) {
  int parts = 1;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = behind_string(text, at);
      continue;
    }
    if (c == '#') at = std::min(text.find('\n', at), text.size() - 1);
    if (c == '.') {
      ++parts;
    } else if (std::string_view("\n=,{[#").find(c) != std::string_view::npos) {
      parts = 1;
    }
    if (parts > kMostParts)
      fail(ErrorKind::io,
           "{}: line {}: a key of more than {} parts (a.b.c has three); take a shorter one", source,
           1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'),
           kMostParts);
    ++at;
  }
}

}  // namespace

toml::table parse_toml(const std::string& text, const std::string& source) {
  if (text.size() > kMostBytes)
    fail(ErrorKind::io, "{}: {} bytes; TOML is read up to {}; is it another file?", source,
         text.size(), kMostBytes);
  require_short_keys(text, source);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    fail(ErrorKind::io, "{}: {} (line {})", source, e.description(), e.source().begin.line);
  }
}

}  // namespace tessera
