// JSON from files that nobody vouches for.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera {

/// Brackets that may stand inside of each other: the library recurses over them.
inline constexpr int kMostNesting = 64;
/// The largest number of brackets of `text`, outside of strings, that are open at once.
int nesting_of(std::string_view text);
/// The value of `text`; discarded (is_discarded()) if it is no JSON or nests deeper than
/// kMostNesting. The last value of a key counts; `twice` gets a key that an object has twice.
nlohmann::json parse_json(std::string_view text, std::string* twice = nullptr);
/// Why parse_json() discards `text`: "line 2, column 20: unexpected ','; expected string literal".
std::string json_fault(std::string_view text);
/// A string as it is, any other value as JSON. Bytes that are no UTF-8 are replaced.
std::string text_of(const nlohmann::json& value);

}  // namespace tessera
