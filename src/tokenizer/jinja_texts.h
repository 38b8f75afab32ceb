// Texts, as Python changes them, for filters and methods.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja_values.h"

namespace tessera::jinja {

/// `text` without characters of `set` at its ends; without white space if that is no text.
std::string stripped(const std::string& text, const Value& set, bool begin, bool end);
/// The first `most` times; < 0: everywhere.
std::string replaced(const std::string& text, const std::string& old, const std::string& now,
                     int64_t most);
/// With `fill` up to `width` characters, in front or behind.
std::string padded(const std::string& text, int64_t width, char fill, bool front);
bool is_case(std::string_view name);
/// "lower", "upper", "capitalize", "title" or "swapcase". Throws an unsupported error for letters
/// beyond ASCII.
std::string changed_case(std::string text, const std::string& name);
/// "{}, {0} and {name}" with arguments, without format specifications.
std::string formatted(const std::string& text, const Arguments& args);

}  // namespace tessera::jinja
