#include "cli/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "base/env.h"
#include "base/printable.h"

namespace tessera::cli {

namespace {

struct Range {
  char32_t first, last;
};

// Of Unicode 15: EastAsianWidth.txt (W and F), with whole blocks where only unassigned characters
// lie between; and the blocks of combining marks, joiners and variation selectors.
constexpr Range kWide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},
    {0x2614, 0x2615},   {0x26AA, 0x26AB},   {0x26BD, 0x26BE},   {0x2705, 0x2705},
    {0x270A, 0x270B},   {0x2728, 0x2728},   {0x274C, 0x274C},   {0x2E80, 0x303E},
    {0x3041, 0x33FF},   {0x3400, 0x4DBF},   {0x4E00, 0xA4CF},   {0xA960, 0xA97F},
    {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE10, 0xFE19},   {0xFE30, 0xFE6F},
    {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x16FE0, 0x18DFF}, {0x1AFF0, 0x1B2FF},
    {0x1F300, 0x1F320}, {0x1F32D, 0x1F335}, {0x1F337, 0x1F37C}, {0x1F37E, 0x1F393},
    {0x1F3A0, 0x1F3CA}, {0x1F3E0, 0x1F3F0}, {0x1F3F8, 0x1F43E}, {0x1F440, 0x1F4FC},
    {0x1F4FF, 0x1F53D}, {0x1F550, 0x1F567}, {0x1F5FB, 0x1F64F}, {0x1F680, 0x1F6C5},
    {0x1F6EB, 0x1F6EC}, {0x1F6F4, 0x1F6FC}, {0x1F7E0, 0x1F7EB}, {0x1F90C, 0x1F9FF},
    {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD}};
constexpr Range kNone[] = {{0x0300, 0x036F},   {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x064B, 0x065F},
                           {0x1AB0, 0x1AFF},   {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x2060, 0x2064},
                           {0x20D0, 0x20FF},   {0x3099, 0x309A}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F},
                           {0xE0100, 0xE01EF}, {0xFEFF, 0xFEFF}};

template <size_t N>
bool lies_in(const Range (&ranges)[N], char32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const Range& r) { return r.first <= c && c <= r.last; });
}

bool continues(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

/// Bytes of the character at `at`.
size_t bytes_of(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && continues(text[end])) ++end;
  return end - at;
}

int width_of(std::string_view character) {
  constexpr uint8_t kBits[] = {0x7F, 0x7F, 0x1F, 0x0F, 0x07};  // of the first byte, by length
  if (character.size() >= std::size(kBits)) return 1;
  char32_t c = static_cast<uint8_t>(character[0]) & kBits[character.size()];
  for (const char byte : character.substr(1)) c = c << 6 | (static_cast<uint8_t>(byte) & 0x3F);
  return lies_in(kNone, c) ? 0 : lies_in(kWide, c) ? 2 : 1;
}

}  // namespace

int columns(std::string_view text) {
  int sum = 0;
  for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
    bytes = bytes_of(text, at);
    sum += width_of(text.substr(at, bytes));
  }
  return sum;
}

namespace {

constexpr size_t kLabel = 8;  ///< columns of the label of a line, as "layout  "

bool is_number(std::string_view word) {
  return word.find_first_of("0123456789") != word.npos &&
         word.find_first_not_of("0123456789.,+-") == word.npos;
}

/// The end of the word at `word`; a number and what it counts, "65.5 kB", are one if `room` columns
/// hold them.
size_t end_of_word(std::string_view line, size_t word, int room) {
  const auto next = [&](size_t at) { return std::min(line.find(' ', at), line.size()); };
  const size_t end = next(word);
  const bool counts =
      is_number(line.substr(word, end - word)) && end + 1 < line.size() && line[end + 1] != ' ';
  const size_t unit = counts ? next(end + 1) : end;
  return columns(line.substr(word, unit - word)) <= room ? unit : end;
}

/// Adds a line in parts of at most `width` columns.
void add_wrapped(std::string_view line, int width, std::string& to) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const bool has_label = line.size() > kLabel && begin == 0 && line[kLabel] != ' ' &&
                         line.substr(kLabel - 2, 2) == "  ";
  const size_t deep = has_label ? kLabel : begin + 2;
  const std::string indent(std::min(deep, static_cast<size_t>(width) / 2), ' ');
  size_t copied = line.size();
  for (const std::string_view first : {"--mesh ", "tessera "}) {
    const size_t at = line.find(first);
    if (at != line.npos && (at == 0 || line[at - 1] == ' ')) copied = std::min(copied, at);
  }
  int used = 0;
  bool has_word = false;  // on the line that is being filled
  for (size_t at = 0; at < line.size();) {
    // The blanks in front of a word belong to it, but not at the beginning of a line.
    const size_t word = std::min(line.find_first_not_of(' ', at), line.size()),
                 end = word >= copied
                           ? line.size()
                           : end_of_word(line, word, width - static_cast<int>(indent.size()));
    const int more = columns(line.substr(at, end - at));
    const bool fits_nowhere =
        word >= copied && more + static_cast<int>(indent.size()) > width;  // the terminal breaks it
    if (has_word && used + more > width && !fits_nowhere) {
      to += '\n' + indent;
      used = static_cast<int>(indent.size());
      at = word;
      has_word = false;
      continue;
    }
    to += line.substr(at, end - at);
    used += more;
    at = end;
    has_word = true;
  }
}

}  // namespace

std::string wrapped(std::string_view text, int width) {
  constexpr int kLeast = 20;
  if (width < kLeast) return std::string(text);
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (columns(line) <= width) {
      result += line;
    } else {
      add_wrapped(line, width, result);
    }
    if (end < text.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

std::string first_columns(std::string_view text, int width) {
  size_t at = 0;
  for (int used = 0; at < text.size();) {
    const size_t bytes = bytes_of(text, at);
    used += width_of(text.substr(at, bytes));
    if (used > width) break;
    at += bytes;
  }
  return std::string(text.substr(0, at));
}

bool is_coloured(int descriptor) { return isatty(descriptor) && may_colour(); }

std::string styled(std::string_view text, Colour colour, bool coloured) {
  if (!coloured || text.empty()) return std::string(text);
  const char* const codes[] = {"1", "2", "1;31", "1;33", "32"};
  return fmt::format("\033[{}m{}\033[0m", codes[static_cast<int>(colour)], text);
}

std::string with_label(const std::string& line, bool coloured) {
  struct Label {
    const char* begin;
    Colour colour;
    char end;  ///< the last character of the label
  };
  static constexpr Label kLabels[] = {
      {"error:", Colour::red, ':'},    {"warning:", Colour::yellow, ':'},
      {"eval at ", Colour::bold, ':'}, {"sample at ", Colour::bold, ':'},
      {"keys  ", Colour::bold, ' '},   {"mesh  ", Colour::bold, ' '},
      {"layout  ", Colour::bold, ' '}, {"batch  ", Colour::bold, ' '},
      {"memory  ", Colour::bold, ' '}, {"note  ", Colour::yellow, ' '},
      {"done  ", Colour::green, ' '},  {"saved  ", Colour::bold, ' '},
      {"log  ", Colour::bold, ' '},    {"next  ", Colour::bold, ' '}};
  for (const Label& label : kLabels) {
    if (!line.starts_with(label.begin)) continue;
    const size_t size = line.find(label.end) + (label.end == ':' ? 1 : 0);
    return styled(line.substr(0, size), label.colour, coloured) + line.substr(size);
  }
  return line;
}

namespace {

constexpr int kBar = 16;

}  // namespace

std::string whole_line(const std::vector<LinePart>& parts) {
  std::string line;
  for (const LinePart& part : parts) line += (line.empty() ? "" : "  ") + part.text;
  return line;
}

std::string fitted_line(const std::vector<LinePart>& parts, double done, int width) {
  const std::string all = whole_line(parts);
  if (width <= 0 || columns(all) + kBar + 3 <= width) {
    const int full = static_cast<int>(std::lround(std::floor(kBar * std::clamp(done, 0.0, 1.0))));
    return "[" + std::string(full, '=') + std::string(kBar - full, ' ') + "] " + all;
  }
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parts[a].rank < parts[b].rank; });
  std::vector<bool> fits(parts.size());
  int used = 0;
  for (const size_t i : order) {
    const int more = columns(parts[i].text) + (used > 0 ? 2 : 0);
    if (used + more > width) break;
    fits[i] = true;
    used += more;
  }
  if (used == 0) return parts.empty() ? "" : first_columns(parts[order[0]].text, width);
  std::vector<LinePart> chosen;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (fits[i]) chosen.push_back(parts[i]);
  }
  return whole_line(chosen);
}

int terminal_width(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool is_reader_gone(int descriptor) {
  pollfd pipe{descriptor, POLLOUT, 0};
  return poll(&pipe, 1, 0) > 0 && (pipe.revents & (POLLERR | POLLHUP)) != 0;
}

void write_safely(std::FILE* file, const std::string& text) {
  const std::string safe = wrapped(printable(text), terminal_width(fileno(file)));
  std::fwrite(safe.data(), 1, safe.size(), file);
}

}  // namespace tessera::cli
