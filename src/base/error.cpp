#include "tessera/error.h"

#include <algorithm>
#include <numeric>

#include "base/fail.h"

namespace tessera {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::device:
      return "device";
    case ErrorKind::comm:
      return "comm";
    case ErrorKind::io:
      return "io";
    case ErrorKind::internal:
      return "internal";
  }
  return "unknown";
}

namespace {

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  if (known.empty()) return "";
  auto best = std::min_element(known.begin(), known.end(), [&](const auto& x, const auto& y) {
    return edit_distance(name, x) < edit_distance(name, y);
  });
  if (edit_distance(name, *best) <= std::max<size_t>(2, name.size() / 3)) {
    return fmt::format("; did you mean '{}'?", *best);
  }
  const size_t shown = std::min<size_t>(known.size(), 12);
  return fmt::format("; known: {}{}", fmt::join(known.begin(), known.begin() + shown, ", "),
                     shown < known.size() ? ", ..." : "");
}

}  // namespace tessera
