#include "program/buffer_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace tessera {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c == '\n' ? "\\n" : std::string(1, c);
  }
  return result + "\"";
}

std::string name_text(const std::string& name) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string("_./-*+'").find(static_cast<char>(c)) != std::string::npos;
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), is_plain) ? name : quoted(name);
}

BufferNames::BufferNames(const std::vector<Buffer>& buffers) {
  std::map<std::string, int> seen;
  for (const Buffer& buffer : buffers) {
    const int n = ++seen[buffer.name];
    texts_.push_back(name_text(buffer.name) + (n > 1 ? fmt::format("~{}", n) : ""));
  }
}

}  // namespace tessera
