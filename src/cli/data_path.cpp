#include "cli/data_path.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "base/fail.h"

namespace tessera::cli {

namespace {

/// The weight and the path of "0.7:a.idx"; nullopt for another form.
std::optional<WeightedPath> weighted(const std::string& text) {
  WeightedPath result;
  const size_t colon = text.find(':');
  if (colon == text.npos || colon + 1 == text.size()) return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + colon, result.weight);
  if (error != std::errc() || stop != text.data() + colon) return std::nullopt;
  result.path = text.substr(colon + 1);
  return result;
}

}  // namespace

std::vector<WeightedPath> parse_data_path(const std::string& text) {
  std::vector<WeightedPath> parts;
  std::string without;  // an element that has no weight
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string element = text.substr(start, end - start);
    if (const auto part = weighted(element))
      parts.push_back(*part);
    else
      without = element.empty() ? "(nothing)" : element;
    start = end + 1;
  }
  if (parts.empty()) return {{1, text}};
  TESSERA_REQUIRE(without.empty(),
                  "'{}' of the blend '{}' has no weight; every element is weight:path, as in "
                  "0.7:a.idx,0.3:b.idx",
                  without, text);
  for (const WeightedPath& part : parts)
    TESSERA_REQUIRE(
        part.weight > 0 && std::isfinite(part.weight),
        "'{}' has weight {} in the blend '{}'; a weight is a number above 0 (leave out what is "
        "not wanted)",
        part.path, part.weight, text);
  return parts;
}

std::unique_ptr<DataSource> open_data(
    const std::string& text, bool held_out,
    const std::function<std::unique_ptr<DataSource>(const std::string& path)>& open) {
  const std::vector<WeightedPath> paths = parse_data_path(text);
  if (paths.size() == 1) return open(paths[0].path);
  std::vector<BlendPart> parts;
  for (const WeightedPath& p : paths) parts.push_back({p.weight, open(p.path), p.path});
  return std::make_unique<BlendData>(std::move(parts), !held_out);
}

}  // namespace tessera::cli
