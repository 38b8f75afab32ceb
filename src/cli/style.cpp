#include "cli/style.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/env.h"

namespace tessera::cli {

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

}  // namespace tessera::cli
