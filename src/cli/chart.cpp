#include "cli/chart.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "cli/units.h"

namespace tessera::cli {

namespace {

constexpr double kWidth = 560, kHeight = 240, kLeft = 66, kRight = 10, kTop = 26, kBottom = 28;

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double v) {
    if (!std::isfinite(v)) return;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
  void widen() {
    if (low < high) return;
    const double by = low == 0 ? 1 : 0.1 * std::abs(low);
    low -= by;
    high += by;
  }
};

/// About `wanted` round numbers in the range; none if its values are too large or too close to each
/// other for that.
std::vector<double> ticks(const Range& range, int wanted) {
  const double raw = (range.high - range.low) / wanted;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power;
  for (const double times : {1.0, 2.0, 5.0, 10.0}) {
    step = times * power;
    if (step >= raw) break;
  }
  const double first = std::ceil(range.low / step);
  std::vector<double> all;
  for (int t = 0; t <= wanted; ++t) {
    const double v = (first + t) * step;
    if (!(v <= range.high + 1e-9 * step)) break;
    if (all.empty() || v > all.back()) all.push_back(std::abs(v) < 1e-9 * step ? 0 : v);
  }
  return all;
}

std::string short_number(double v) {
  const double size = std::abs(v);
  return size >= 1e4 ? with_unit(v, "") : fmt::format("{:.4g}", v);
}

/// Minimum and maximum of each of kStretches intervals, in order of x.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& all) {
  constexpr size_t kStretches = 250;
  if (all.size() <= 2 * kStretches) return all;
  std::vector<std::pair<double, double>> kept;
  for (size_t s = 0; s < kStretches; ++s) {
    const auto begin = all.begin() + static_cast<long>(s * all.size() / kStretches);
    const auto end = all.begin() + static_cast<long>((s + 1) * all.size() / kStretches);
    const auto [least, most] = std::minmax_element(
        begin, end, [](const auto& a, const auto& b) { return a.second < b.second; });
    kept.push_back(std::min(*least, *most));
    kept.push_back(std::max(*least, *most));
  }
  return kept;
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string html_colour(size_t n) {
  static const char* const colours[] = {"#2b6cb0", "#c05621", "#2f855a", "#6b46c1",
                                        "#b83280", "#718096", "#b7791f", "#319795"};
  return colours[n % std::size(colours)];
}

std::string svg_chart(const std::string& title, const std::vector<Curve>& curves, bool log_scale) {
  Range xs, ys;
  for (const Curve& c : curves) {
    for (const auto& [x, y] : c.points) {
      if (std::isfinite(y)) xs.add(x), ys.add(y);
    }
  }
  std::string svg = fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\"><title>{}</title>"
      "<text x=\"{}\" y=\"16\" class=\"title\">{}</text>",
      kWidth, kHeight, html_escape(title), kLeft, html_escape(title));
  if (xs.empty()) return svg + "<text x=\"200\" y=\"120\">no values</text></svg>";
  log_scale = log_scale && ys.low > 0 && ys.high > 10 * ys.low;
  if (log_scale) ys = {std::log10(ys.low), std::log10(ys.high)};
  xs.widen();
  ys.widen();
  const auto px = [&](double x) {
    return kLeft + (x - xs.low) / (xs.high - xs.low) * (kWidth - kLeft - kRight);
  };
  const auto py = [&](double y) {
    const double v = log_scale ? std::log10(y) : y;
    return kHeight - kBottom - (v - ys.low) / (ys.high - ys.low) * (kHeight - kTop - kBottom);
  };
  for (const double tick : ticks(ys, 5)) {
    const double value = log_scale ? std::pow(10, tick) : tick;
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>",
        kLeft, kWidth - kRight, py(value), py(value), kLeft - 5, py(value) + 4,
        short_number(value));
  }
  for (const double tick : ticks(xs, 6))
    svg += fmt::format(
        "<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", px(tick),
        kHeight - 10, short_number(tick));
  for (size_t i = 0; i < curves.size(); ++i) {
    std::string path;
    bool pen_up = true;
    for (const auto& [x, y] : thinned(curves[i].points)) {
      pen_up = pen_up || !std::isfinite(y);
      if (!std::isfinite(y)) continue;
      path += fmt::format("{}{:.1f} {:.1f}", pen_up ? "M" : "L", px(x), py(y));
      pen_up = false;
    }
    svg += fmt::format("<path d=\"{}\" stroke=\"{}\"/>", path, html_colour(i));
    if (curves.size() > 1)
      svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"16\" fill=\"{}\">{}</text>",
                         kWidth - 90.0 * static_cast<double>(curves.size() - i), html_colour(i),
                         html_escape(curves[i].name));
  }
  return svg + "</svg>";
}

}  // namespace tessera::cli
