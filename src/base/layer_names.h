#pragma once

#include <cctype>
#include <string>

namespace tessera {

/// `name` without the number of its layer, so that tensors of all layers have one name:
/// "gpt.block*.mlp.up.w" of "gpt.block3.mlp.up.w". The number is that of the first scope that ends
/// in one. A name without such a scope stays as it is.
inline std::string without_layer(const std::string& name) {
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    size_t first = dot;
    while (first > 0 && is_digit(name[first - 1])) --first;
    const bool is_scope =
        first < dot && first > 0 && std::isalpha(static_cast<unsigned char>(name[first - 1])) != 0;
    if (is_scope) return name.substr(0, first) + '*' + name.substr(dot);
  }
  return name;
}

}  // namespace tessera
