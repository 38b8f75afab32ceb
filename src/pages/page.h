// The one look of every page: a page is one HTML file with its style, its data and the script that
// draws them. It fetches nothing, and its policy forbids it to.
//
//   pages::Page page("gpt: explain", "on data:2;model:2");
//   page.section("time", "Time");
//   page.chart({{"kind", "xy"}, {"title", "loss"}, ...});
//   write_text_file("page.html", page.html());
//
// All texts are escaped here; callers give them as they are.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::pages {

using Json = nlohmann::json;

/// Text for use between tags and in attributes.
std::string escape(const std::string& text);

/// A column of a table: `key` in its rows. Units: "" is text; "@" a place in code, "model.cpp:41",
/// shown with its line (Page::code()); "#" a number; "%" a share of 1; "s", "B", "B/s", "FLOP",
/// "FLOP/s" numbers that are shown with a prefix.
struct Column {
  std::string key, heading, unit = "";
  bool is_number() const { return !unit.empty() && unit != "@"; }
};

/// "axes: over | bytes: sent by a rank [B]": columns with keys, headings and units.
std::vector<Column> columns(const std::string& text);

/// A number as tables and cards show it: (0.0012, "s") is "1.2 ms".
std::string with_unit(double value, const std::string& unit);
inline std::string bytes_text(int64_t n) { return with_unit(static_cast<double>(n), "B"); }

class Page {
 public:
  Page(std::string title, std::string subtitle);

  /// Begins a section; `id` is its anchor.
  void section(const std::string& id, const std::string& heading);
  void text(const std::string& paragraph);
  /// Something to look into first: a warning, or what is missing and how to get it.
  void note(const std::string& paragraph);
  /// A command with a button that copies it.
  void command(const std::string& command);
  /// Numbers that stand out: (value, what it is).
  void cards(const std::vector<std::pair<std::string, std::string>>& cards);
  /// Names and values of an object.
  void pairs(const Json& object);
  /// A table that sorts, and filters if it is long. Rows are objects; what is missing is "-". Only
  /// the first kMostRows are shown, and a line says so. Without rows: `empty`.
  static constexpr size_t kMostRows = 2000;
  void table(const std::vector<Column>& columns, const Json& rows, const std::string& empty);
  void table(const char* columns, const Json& rows, const std::string& empty) {
    table(pages::columns(columns), rows, empty);
  }
  /// A picture that the script draws. `kind` says what the other fields are (page.js lists them):
  /// "xy" curves and points, "bars", "rects" (time lines, memory, heat maps), "cut" (a tensor over
  /// a mesh).
  void chart(const Json& spec);
  /// The charts between begin_grid() and end_grid() stand beside each other where there is room.
  void begin_grid() { body_ += "<div class=\"grid\">"; }
  void end_grid() { body_ += "</div>\n"; }
  /// The text of lines of code, {"model.cpp": {"41": "x = ..."}}: what "model.cpp:41" says,
  /// wherever a table or a chart names it.
  void code(Json lines) { code_ = std::move(lines); }
  /// The browser loads the page again every so often: it is rewritten while something runs.
  void refresh(int seconds) { refresh_ = seconds; }

  std::string html() const;

 private:
  std::string title_, subtitle_, nav_, body_;
  Json code_;
  bool open_ = false;
  int refresh_ = 0;
};

/// A curve thinned to at most `most` points: the smallest and the largest of equal stretches, in
/// order. `xs` and `ys` have equal length; values that are not finite are left out.
void thin(std::vector<double>& xs, std::vector<double>& ys, size_t most = 6000);

/// Numbers with `digits` significant digits, as short JSON.
Json numbers(const std::vector<double>& values, int digits = 6);

}  // namespace tessera::pages
