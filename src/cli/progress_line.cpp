#include "cli/progress_line.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/columns.h"

namespace tessera::cli {

namespace {

constexpr int kBar = 16;

}  // namespace

std::string whole_line(const std::vector<LinePart>& parts) {
  std::string line;
  for (const LinePart& part : parts) line += (line.empty() ? "" : "  ") + part.text;
  return line;
}

std::string fitted_line(const std::vector<LinePart>& parts, double done, int width) {
  const std::string all = whole_line(parts);
  if (width <= 0 || columns(all) + kBar + 3 <= width) {
    const int full = static_cast<int>(std::lround(std::floor(kBar * std::clamp(done, 0.0, 1.0))));
    return "[" + std::string(full, '=') + std::string(kBar - full, ' ') + "] " + all;
  }
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parts[a].rank < parts[b].rank; });
  std::vector<bool> fits(parts.size());
  int used = 0;
  for (const size_t i : order) {
    const int more = columns(parts[i].text) + (used > 0 ? 2 : 0);
    if (used + more > width) break;
    fits[i] = true;
    used += more;
  }
  if (used == 0) return parts.empty() ? "" : first_columns(parts[order[0]].text, width);
  std::vector<LinePart> chosen;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (fits[i]) chosen.push_back(parts[i]);
  }
  return whole_line(chosen);
}

int terminal_width(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace tessera::cli
