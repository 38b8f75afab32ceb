// Curves as SVG text, for pages that need nothing from a network.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x ascending; what is not finite is a gap
};

/// A chart of curves over one x axis, 560 x 240. `log_scale`: of y, where all values are positive.
/// At most 500 points of a curve are drawn: of more, the least and greatest of each stretch.
std::string svg_chart(const std::string& title, const std::vector<Curve>& curves,
                      bool log_scale = false);

/// For text between tags and in attributes.
std::string html_escape(const std::string& text);
/// A colour for the n-th thing.
std::string html_colour(size_t n);

}  // namespace tessera::cli
