// Text as a TOML string.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace tessera {

/// `text` (UTF-8) as a quoted TOML basic string.
inline std::string toml_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      quoted += fmt::format("\\u{:04x}", code);
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace tessera
