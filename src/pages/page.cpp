#include "pages/page.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/json.h"
#include "pages/assets.h"

namespace tessera::pages {

std::string escape(const std::string& text) {
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

std::string with_unit(double value, const std::string& unit) {
  if (!std::isfinite(value)) return "-";
  if (unit == "%") return fmt::format("{:.1f} %", 100 * value);
  const double size = std::abs(value);
  if (unit == "s") {
    if (size == 0) return "0 s";
    return size < 1e-3  ? fmt::format("{:.4g} us", 1e6 * value)
           : size < 1   ? fmt::format("{:.4g} ms", 1e3 * value)
           : size < 600 ? fmt::format("{:.4g} s", value)
                        : fmt::format("{:.1f} min", value / 60);
  }
  if (unit == "#" || unit.empty())
    return size < 1e15 && (size >= 1e4 || value == std::floor(value))
               ? fmt::format("{:.0f}", value)
               : fmt::format("{:.4g}", value);
  static const char* const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t p = 0;
  double scaled = value;
  while (std::abs(scaled) >= 1000 && p + 1 < std::size(prefixes)) scaled /= 1000, ++p;
  return fmt::format("{:.4g} {}{}", scaled, prefixes[p], unit);
}

std::vector<Column> columns(const std::string& text) {
  std::vector<Column> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(" | ", at), text.size());
    Column& column = all.emplace_back();
    const size_t colon = text.find(": ", at), unit = text.find(" [", colon);
    column.key = text.substr(at, colon - at);
    column.heading = text.substr(colon + 2, std::min(unit, end) - colon - 2);
    if (unit < end) column.unit = text.substr(unit + 2, end - unit - 3);
    at = end + 3;
  }
  return all;
}

Page::Page(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void Page::section(const std::string& id, const std::string& heading) {
  if (open_) body_ += "</section>\n";
  open_ = true;
  body_ += fmt::format("<section id=\"{0}\"><h2>{1}</h2>\n", escape(id), escape(heading));
  nav_ += fmt::format("<a href=\"#{}\">{}</a>", escape(id), escape(heading));
}

void Page::text(const std::string& paragraph) {
  body_ += fmt::format("<p>{}</p>\n", escape(paragraph));
}

void Page::note(const std::string& paragraph) {
  body_ += fmt::format("<p class=\"note\">{}</p>\n", escape(paragraph));
}

void Page::command(const std::string& command) {
  body_ +=
      fmt::format("<div class=\"command\" tabindex=\"0\"><code>{}</code></div>\n", escape(command));
}

void Page::cards(const std::vector<std::pair<std::string, std::string>>& cards) {
  body_ += "<div class=\"cards\">";
  for (const auto& [value, what] : cards)
    body_ += fmt::format("<div><b>{}</b><span>{}</span></div>", escape(value), escape(what));
  body_ += "</div>\n";
}

void Page::pairs(const Json& object) {
  body_ += "<div class=\"table\" tabindex=\"0\"><table class=\"pairs\"><tbody>";
  for (const auto& [name, value] : object.items())
    body_ += fmt::format("<tr><th scope=\"row\">{}</th><td class=\"t\">{}</td></tr>", escape(name),
                         escape(text_of(value)));
  body_ += "</tbody></table></div>\n";
}

constexpr size_t kShort = 28;  ///< letters of a text that is not broken into lines

void Page::table(const std::vector<Column>& columns, const Json& rows, const std::string& empty) {
  if (rows.empty()) return text(empty);
  body_ += "<div class=\"table\" tabindex=\"0\"><table class=\"sorts\"><thead><tr>";
  for (const Column& c : columns)
    body_ += fmt::format("<th scope=\"col\"{}>{}</th>", c.is_number() ? " class=\"n\"" : "",
                         escape(c.heading));
  body_ += "</tr></thead><tbody>\n";
  size_t shown = 0;
  for (const Json& row : rows) {
    if (!row.is_object()) continue;
    if (++shown > kMostRows) break;
    body_ += "<tr>";
    for (const Column& c : columns) {
      const auto at = row.find(c.key);
      if (at == row.end() || at->is_null() || *at == "") {
        body_ += fmt::format("<td{}>-</td>", c.is_number() ? " class=\"n\"" : "");
      } else if (c.is_number() && at->is_number()) {
        const double value = at->get<double>();
        body_ +=
            fmt::format("<td class=\"n\" data-v=\"{}\">{}</td>", value, with_unit(value, c.unit));
      } else {
        const std::string text = text_of(*at);
        body_ += fmt::format("<td{}>{}</td>",
                             c.unit == "@"          ? " class=\"at\""
                             : text.size() > kShort ? " class=\"t\""
                                                    : "",
                             escape(text));
      }
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
  if (rows.size() > kMostRows)
    text(fmt::format("The first {} of {} rows.", kMostRows, rows.size()));
}

namespace {

/// A script that holds `value`. "</script>" in a name must not end it.
std::string data_script(const std::string& attributes, const Json& value) {
  const std::string data = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  for (const char c : data) safe += c == '<' ? "\\u003c" : std::string(1, c);
  return fmt::format("<script {}type=\"application/json\">{}</script>", attributes, safe);
}

}  // namespace

void Page::chart(const Json& spec) {
  body_ += fmt::format(
      "<figure><figcaption>{}</figcaption>{}{}</figure>\n", escape(spec.value("title", "")),
      spec.contains("about") ? "<p>" + escape(spec["about"].get<std::string>()) + "</p>" : "",
      data_script("", spec));
}

std::string Page::html() const {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">{}"
      "<title>{}</title><style>\n{}</style></head><body>\n"
      "<header><h1>{}</h1><p>{}</p></header>\n<nav aria-label=\"Sections\">{}</nav>\n"
      "<main>\n{}{}{}</main>\n<footer>Made by Tessera. This page is one file and fetches "
      "nothing.</footer>\n<script>\n{}</script></body></html>\n",
      refresh_ > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">", refresh_) : "",
      escape(title_), kStyle, escape(title_), escape(subtitle_), nav_, body_,
      open_ ? "</section>\n" : "", code_.empty() ? "" : data_script("id=\"code\" ", code_),
      kScript);
}

void thin(std::vector<double>& xs, std::vector<double>& ys, size_t most) {
  size_t n = 0;
  for (size_t i = 0; i < ys.size(); ++i) {
    if (!std::isfinite(ys[i]) || !std::isfinite(xs[i])) continue;
    xs[n] = xs[i];
    ys[n++] = ys[i];
  }
  xs.resize(n);
  ys.resize(n);
  if (n <= most) return;
  const size_t stretches = most / 2;
  std::vector<double> kept_x, kept_y;
  for (size_t s = 0; s < stretches; ++s) {
    const auto begin = ys.begin() + static_cast<long>(s * n / stretches),
               end = ys.begin() + static_cast<long>((s + 1) * n / stretches);
    auto [first, second] = std::minmax_element(begin, end);
    if (second < first) std::swap(first, second);
    for (const auto at : {first, second}) {
      kept_x.push_back(xs[static_cast<size_t>(at - ys.begin())]);
      kept_y.push_back(*at);
    }
  }
  xs = std::move(kept_x);
  ys = std::move(kept_y);
}

Json numbers(const std::vector<double>& values, int digits) {
  Json list = Json::array();
  for (const double v : values) {
    if (!std::isfinite(v)) {
      list.push_back(nullptr);
    } else if (v == std::floor(v) && std::abs(v) < 1e15) {
      list.push_back(static_cast<int64_t>(v));
    } else {
      list.push_back(std::strtod(fmt::format("{:.{}g}", v, digits).c_str(), nullptr));
    }
  }
  return list;
}

}  // namespace tessera::pages
