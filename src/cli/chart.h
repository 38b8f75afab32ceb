// Curves as SVG text, for pages without network access.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< x ascending; non-finite values are gaps
};

/// A chart of curves over one x axis, 560 x 240. `log_scale`: of y, if all values are positive.
/// Curves of more than 500 points are thinned to the minimum and maximum of each interval.
std::string svg_chart(const std::string& title, const std::vector<Curve>& curves,
                      bool log_scale = false);

/// Escapes text for use between tags and in attributes.
std::string html_escape(const std::string& text);
/// The n-th colour of a palette.
std::string html_colour(size_t n);

}  // namespace tessera::cli
