#include "program/buffer_names.h"

#include <fmt/format.h>

#include <string_view>

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
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-*+'";
  const bool is_plain = !name.empty() && name.find_first_not_of(kPlain) == std::string::npos;
  return is_plain ? name : quoted(name);
}

BufferNames::BufferNames(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) add(buffer);
}

const std::string& BufferNames::add(const Buffer& buffer) {
  const int n = ++seen_[buffer.name];
  return texts_.emplace_back(name_text(buffer.name) + (n > 1 ? fmt::format("~{}", n) : ""));
}

}  // namespace tessera
