#include "base/utf8.h"

#include <fmt/format.h>

namespace tessera {

std::string utf8_fault(std::string_view line) {
  const size_t valid = valid_utf8(line);
  if (valid == line.size()) return "";
  const bool is_utf16 = line.starts_with("\xFF\xFE") || line.starts_with("\xFE\xFF");
  return fmt::format(
      "has the byte 0x{:02x} at {}, so the file is not UTF-8{}; convert it: iconv -f {} -t UTF-8",
      static_cast<unsigned char>(line[valid]), valid + 1, is_utf16 ? " but UTF-16" : "",
      is_utf16 ? "UTF-16" : "WINDOWS-1252");
}

}  // namespace tessera
