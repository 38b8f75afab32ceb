#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

namespace tessera {

int nesting_of(std::string_view text) {
  int depth = 0, most = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) {
      i += c == '\\' ? 1 : 0;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return most;
}

nlohmann::json parse_json(std::string_view text, std::string* twice) {
  using nlohmann::json;
  if (nesting_of(text) > kMostNesting) return json::value_t::discarded;
  if (twice == nullptr) return json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto note = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      *twice = value.get<std::string>();
    return true;
  };
  return json::parse(text, note, /*allow_exceptions=*/false);
}

std::string json_fault(std::string_view text) {
  if (nesting_of(text) > kMostNesting)
    return fmt::format("it nests deeper than {} brackets", kMostNesting);
  std::string why;
  try {
    // "[json.exception.parse_error.101] parse error at line 2, column 20: syntax error while
    // parsing object key - unexpected ','; expected string literal"
    why = nlohmann::json::parse(text).type_name();
  } catch (const nlohmann::json::out_of_range&) {
    return "it has a number that no double holds";
  } catch (const nlohmann::json::exception& e) {
    why = e.what();
  }
  const size_t place = why.find("line "), colon = why.find(": ", place),
               dash = why.find(" - ", colon);
  if (place == why.npos || colon == why.npos || dash == why.npos) return why;
  return why.substr(place, colon - place) + ": " + why.substr(dash + 3);
}

std::string text_of(const nlohmann::json& value) {
  using nlohmann::json;
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace tessera
