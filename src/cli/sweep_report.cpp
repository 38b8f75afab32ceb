// The output of a sweep: CSV (from which a later sweep continues), JSON, a plot, a page.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/fail.h"
#include "base/files.h"
#include "cli/report.h"
#include "cli/sweep.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

const char* const kHeader =
    "set,mesh,layout,program,memory_bytes,predicted_s,measured_s,least_s,failure";

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) result += c == '"' ? "\"\"" : std::string(1, c == '\n' ? ' ' : c);
  return result + "\"";
}

/// The fields of a CSV line with the columns of kHeader; text fields are quoted.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields = {""};
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && inside && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      inside = !inside;
    } else if (line[i] == ',' && !inside) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

/// A plot of measured times as bars, fastest first, and of predictions as dots.
std::string plot(std::vector<SweepRow> rows) {
  std::erase_if(rows, [](const SweepRow& r) { return r.measured == 0; });
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.measured < b.measured; });
  double most = 1e-12;
  for (const SweepRow& r : rows) most = std::max({most, r.measured, r.predicted});
  const int left = 360, width = 520, height = 18;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"11\">\n",
      left + width + 90, height * static_cast<int>(rows.size()) + 30);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SweepRow& r = rows[i];
    const int y = 20 + height * static_cast<int>(i);
    const auto at = [&](double seconds) { return left + width * seconds / most; };
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} {}</text>\n", left - 6, y + 9,
                    pages::escape(r.mesh), pages::escape(r.layout.empty() ? "-" : r.layout));
    svg +=
        fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"11\" fill=\"#7aa6c2\"/>\n",
                    left, y, at(r.measured) - left);
    if (r.predicted > 0)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{}\" r=\"4\" fill=\"#b23b3b\"/>\n",
                         at(r.predicted), y + 5);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\">{:.2f} ms</text>\n",
                       std::max(at(r.measured), at(r.predicted)) + 8, y + 9, 1e3 * r.measured);
  }
  return svg + "<text x=\"6\" y=\"12\">step time: bars measured, dots predicted</text></svg>\n";
}

std::string name_of(const SweepRow& r) {
  return fmt::format("{}{}{} {}", r.sets, r.sets.empty() ? "" : " ", r.mesh,
                     r.layout.empty() ? "nothing split" : r.layout);
}

/// Measured over predicted, with the diagonal on which both agree.
pages::Json agreement(const std::vector<SweepRow>& rows) {
  std::vector<double> x, y, line;
  pages::Json tips = pages::Json::array();
  for (const SweepRow& r : rows) {
    if (r.measured == 0 || r.predicted == 0) continue;
    x.push_back(r.predicted);
    y.push_back(r.measured);
    tips.push_back(name_of(r));
  }
  line = {*std::min_element(x.begin(), x.end()), *std::max_element(x.begin(), x.end())};
  return {
      {"kind", "xy"},
      {"title", "measured over predicted"},
      {"about", "On the line both agree; below it a layout was faster than predicted."},
      {"xs", {{{"key", "p"}, {"label", "predicted"}, {"unit", "s"}}}},
      {"square", true},
      {"y", {{"label", "measured"}, {"unit", "s"}, {"log", false}}},
      {"series",
       {{{"name", "layout"}, {"points", true}, {"x", {{"p", x}}}, {"y", y}, {"tips", tips}},
        {{"name", "agree"}, {"quiet", true}, {"dash", true}, {"x", {{"p", line}}}, {"y", line}}}}};
}

/// "a=1 b=2" as a map.
std::map<std::string, std::string> values_of(const std::string& sets) {
  std::map<std::string, std::string> values;
  std::istringstream in(sets);
  for (std::string word; in >> word;)
    values[word.substr(0, word.find('='))] = word.substr(std::min(word.size(), word.find('=') + 1));
  return values;
}

/// The best measured time by the values of the two keys of --set that were swept; null unless two
/// were.
pages::Json by_keys(const std::vector<SweepRow>& rows) {
  std::map<std::string, std::set<std::string>> swept;
  for (const SweepRow& r : rows) {
    for (const auto& [key, value] : values_of(r.sets)) swept[key].insert(value);
  }
  std::erase_if(swept, [](const auto& key) { return key.second.size() < 2; });
  if (swept.size() != 2) return {};
  const std::string first_key = swept.begin()->first, second_key = swept.rbegin()->first;
  const std::set<std::string>& seconds = swept.rbegin()->second;
  std::map<std::string, std::map<std::string, double>> best;  // by the first, then by the second
  for (const SweepRow& r : rows) {
    if (r.measured == 0) continue;
    auto values = values_of(r.sets);
    double& least =
        best[values[first_key]].try_emplace(values[second_key], r.measured).first->second;
    least = std::min(least, r.measured);
  }
  pages::Json labels = pages::Json::array(), rects = pages::Json::array(),
              names = pages::Json::array();
  for (const auto& [first, line] : best) {
    const size_t y = labels.size();
    labels.push_back(first_key + "=" + first);
    size_t x = 0;
    for (const std::string& second : seconds) {
      if (line.contains(second)) {
        names.push_back(fmt::format("{}={} {}={}", first_key, first, second_key, second));
        rects.push_back({x, x + 1, y, y + 1, line.at(second), names.size() - 1});
      }
      ++x;
    }
  }
  return {{"kind", "rects"},
          {"title", fmt::format("best measured time by {} and {}", first_key, second_key)},
          {"x", {{"label", second_key}, {"labels", seconds}}},
          {"y", {{"labels", labels}}},
          {"heat", "s"},
          {"names", names},
          {"rects", rects}};
}

std::string page(const std::string& title, const std::vector<SweepRow>& rows) {
  constexpr size_t kMostBars = 40;
  const SweepSummary summary = summarize(rows);
  pages::Page page("Layouts of " + title,
                   fmt::format("{} layouts, {} programs", rows.size(), summary.programs));
  std::vector<SweepRow> sorted = rows;
  std::stable_sort(sorted.begin(), sorted.end(), [](const SweepRow& a, const SweepRow& b) {
    return (a.measured > 0) != (b.measured > 0) ? a.measured > 0 : a.measured < b.measured;
  });
  const bool predicted =
      std::any_of(rows.begin(), rows.end(), [](const SweepRow& r) { return r.predicted > 0; });
  std::vector<std::pair<std::string, std::string>> cards = {
      {std::to_string(summary.ran), "layouts ran"}, {std::to_string(summary.failed), "failed"}};
  if (summary.ran > 0)
    cards.emplace_back(pages::with_unit(sorted[0].measured, "s"), "fastest, " + name_of(sorted[0]));
  if (summary.error >= 0) {
    cards.emplace_back(fmt::format("{:.2f}", summary.tau), "rank correlation (Kendall's tau)");
    cards.emplace_back(pages::with_unit(summary.error, "%"), "mean error of predictions");
    cards.emplace_back(pages::with_unit(summary.regret, "%"), "slower, if one trusts them");
  }
  page.cards(cards);
  if (summary.ran == 0) page.note("No layout ran; the table says why.");
  if (!predicted)
    page.note(
        "Nothing is predicted. Measure this machine with tessera calibrate, or give a profile with "
        "--machine; the sweep then shows predictions beside what it measured.");
  if (summary.ran > 0) {
    page.section("times", "Times of a step");
    page.begin_grid();
    if (summary.error >= 0) page.chart(agreement(sorted));
    const pages::Json heat = by_keys(rows);
    if (!heat.is_null()) page.chart(heat);
    page.end_grid();
    pages::Json bars = pages::Json::array();
    for (const SweepRow& r : sorted) {
      if (r.measured == 0 || bars.size() == kMostBars) break;
      pages::Json bar = {{"label", name_of(r)},
                         {"parts", pages::Json::array({{"median", r.measured}})}};
      if (r.least > 0) bar["range"] = {r.least, r.measured};
      if (r.predicted > 0) bar["dot"] = r.predicted;
      bars.push_back(bar);
    }
    page.chart({{"kind", "bars"},
                {"title", "measured, fastest first"},
                {"about", "From the least to the median of the steps of a layout."},
                {"unit", "s"},
                {"rows", bars}});
  }
  page.section("layouts", "Layouts");
  pages::Json table = pages::Json::array();
  for (const SweepRow& r : sorted) {
    pages::Json row = {{"set", r.sets},
                       {"mesh", r.mesh},
                       {"layout", r.layout.empty() ? "nothing split" : r.layout},
                       {"failure", r.failure},
                       {"program", r.program}};
    if (r.measured > 0) row["measured"] = r.measured;
    if (r.measured > 0 && r.least > 0) row["spread"] = r.measured / r.least - 1;
    if (r.predicted > 0) row["predicted"] = r.predicted;
    if (r.measured > 0 && r.predicted > 0) row["off"] = r.predicted / r.measured - 1;
    if (r.memory > 0) row["memory"] = r.memory;
    table.push_back(row);
  }
  page.table({{"set", "set"},
              {"mesh", "mesh"},
              {"layout", "layout"},
              {"measured", "measured", "s"},
              {"spread", "above the least", "%"},
              {"predicted", "predicted", "s"},
              {"off", "off by", "%"},
              {"memory", "memory", "B"},
              {"program", "program"},
              {"failure", "why it did not run"}},
             table, "The sweep has no layouts.");
  return page.html();
}

}  // namespace

SweepSummary summarize(const std::vector<SweepRow>& rows) {
  SweepSummary s;
  std::set<std::string> programs;
  std::vector<const SweepRow*> timed;
  double error = 0, best = 0;
  const SweepRow* chosen = nullptr;
  for (const SweepRow& r : rows) {
    s.failed += !r.failure.empty();
    if (r.measured == 0) continue;
    ++s.ran;
    if (!programs.insert(r.program + r.sets + r.mesh).second) continue;
    if (best == 0 || r.measured < best) best = r.measured;
    if (r.predicted == 0) continue;
    timed.push_back(&r);
    error += std::abs(r.predicted / r.measured - 1);
    if (chosen == nullptr || r.predicted < chosen->predicted) chosen = &r;
  }
  s.programs = static_cast<int>(programs.size());
  if (timed.empty()) return s;
  s.error = error / static_cast<double>(timed.size());
  s.regret = chosen->measured / best - 1;
  int agree = 0, pairs = 0;
  for (size_t i = 0; i < timed.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double a = timed[i]->measured, b = timed[j]->measured;
      if (std::max(a, b) < 1.05 * std::min(a, b)) continue;
      ++pairs;
      agree += (a < b) == (timed[i]->predicted < timed[j]->predicted) ? 1 : -1;
    }
  }
  s.tau = pairs > 0 ? static_cast<double>(agree) / pairs : 1;
  return s;
}

std::vector<SweepRow> parse_sweep(const std::string& text, const std::string& path) {
  if (text.empty()) return {};
  std::istringstream file(text);
  std::string line;
  std::getline(file, line);
  if (line != kHeader)
    fail(ErrorKind::io, "'{}' is not the table of a sweep: its first line is not '{}'", path,
         kHeader);
  std::vector<SweepRow> rows;
  for (int number = 2; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    if (file.eof()) break;  // an incomplete last line: that row runs again
    const std::vector<std::string> f = fields_of(line);
    if (f.size() != 9)
      fail(ErrorKind::io, "{}, line {}: {} fields instead of 9", path, number, f.size());
    rows.push_back({f[0], f[1], f[2], f[3], f[8], std::atoll(f[4].c_str()), std::atof(f[5].c_str()),
                    std::atof(f[6].c_str()), std::atof(f[7].c_str())});
  }
  return rows;
}

void write_sweep_csv(const std::string& path, const std::vector<SweepRow>& rows) {
  std::string text = std::string(kHeader) + "\n";
  for (const SweepRow& r : rows)
    text += fmt::format("{},{},{},{},{},{:.9g},{:.9g},{:.9g},{}\n", quoted(r.sets), quoted(r.mesh),
                        quoted(r.layout), r.program, r.memory, r.predicted, r.measured, r.least,
                        quoted(r.failure));
  write_text_file(path, text);
}

void write_sweep_report(const std::string& path, const std::string& title,
                        const std::vector<SweepRow>& rows) {
  const std::string stem = path.substr(0, path.size() - 4);
  const SweepSummary s = summarize(rows);
  nlohmann::json json = {
      {"layouts", s.ran},   {"programs", s.programs},
      {"failed", s.failed}, {"tau", s.tau},
      {"regret", s.regret}, {"error", s.error >= 0 ? nlohmann::json(s.error) : nlohmann::json()}};
  for (const SweepRow& r : rows)
    json["rows"].push_back({{"set", r.sets},
                            {"mesh", r.mesh},
                            {"layout", r.layout},
                            {"program", r.program},
                            {"memory", r.memory},
                            {"predicted", r.predicted},
                            {"measured", r.measured},
                            {"least", r.least},
                            {"failure", r.failure}});
  write_report(stem + ".json", json);
  write_text_file(stem + ".svg", plot(rows));
  write_text_file(stem + ".html", page(title, rows));
}

}  // namespace tessera::cli
