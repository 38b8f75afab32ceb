// The output of a sweep: CSV (from which a later sweep continues), JSON, a plot, a page.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/fail.h"
#include "base/files.h"
#include "cli/report.h"
#include "cli/report_json.h"
#include "cli/sweep.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

const char* const kHeader =
    "set,mesh,layout,program,memory_bytes,predicted_s,measured_s,least_s,failure";

std::string csv_field(const std::string& text) {
  std::string result = "\"";
  for (char c : text) result += c == '"' ? "\"\"" : std::string(1, c == '\n' ? ' ' : c);
  return result + "\"";
}

/// The fields of a CSV line with the columns of kHeader; text fields are csv_field.
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

std::vector<SweepRow> fastest_first(std::vector<SweepRow> rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const SweepRow& a, const SweepRow& b) {
    return (a.measured > 0) != (b.measured > 0) ? a.measured > 0 : a.measured < b.measured;
  });
  return rows;
}

std::map<std::string, std::string> values_of_sets(const std::string& sets) {
  std::map<std::string, std::string> values;
  std::istringstream in(sets);
  for (std::string word; in >> word;)
    values[word.substr(0, word.find('='))] = word.substr(std::min(word.size(), word.find('=') + 1));
  return values;
}

SweptKeys swept_keys(const std::vector<SweepRow>& rows) {
  SweptKeys swept;
  for (const SweepRow& r : rows) {
    for (const auto& [key, value] : values_of_sets(r.sets)) swept[key].insert(value);
  }
  std::erase_if(swept, [](const auto& key) { return key.second.size() < 2; });
  return swept;
}

std::string sets_of(const SweepRow& row, const SweptKeys& swept, bool is_swept) {
  std::string text;
  for (const auto& [key, value] : values_of_sets(row.sets)) {
    if (swept.contains(key) == is_swept)
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  }
  return text;
}

std::string name_of(const SweepRow& row, const SweptKeys& swept) {
  const std::string sets = sets_of(row, swept, true);
  return fmt::format("{}{}{} {}", sets, sets.empty() ? "" : " ", row.mesh,
                     row.layout.empty() ? "nothing split" : row.layout);
}

std::string sweep_table(const std::vector<SweepRow>& rows) {
  if (rows.empty()) return "the sweep has no layouts; ";
  const SweptKeys swept = swept_keys(rows);
  const std::string fixed = sets_of(rows[0], swept, false);
  const bool predicts =
      std::any_of(rows.begin(), rows.end(), [](const SweepRow& r) { return r.predicted > 0; });
  const auto line = [&](const std::string& measured, const std::string& predicted,
                        const std::string& what) {
    return fmt::format("  {:>10}{}  {}\n", measured,
                       predicts ? fmt::format(" {:>10}", predicted) : "", what);
  };
  const auto ms = [](double seconds) {
    return seconds > 0 ? fmt::format("{:.3f}", 1e3 * seconds) : "";
  };
  std::string text =
      line("measured", "predicted",
           "ms a step, fastest first" + (fixed.empty() ? "" : "; all with " + fixed));
  for (const SweepRow& r : fastest_first(rows)) {
    const std::string name = name_of(r, swept);
    if (r.measured > 0) {
      text += line(ms(r.measured), ms(r.predicted), name);
    } else {
      text += line("-", ms(r.predicted),
                   name + (r.failure.empty() ? ": not run: the budget was spent"
                                             : ": failed: " + r.failure));
    }
  }
  const SweepSummary s = summarize(rows);
  text += fmt::format("{} layout{} ran as {} Program{}, {} failed", s.ran, s.ran == 1 ? "" : "s",
                      s.programs, s.programs == 1 ? "" : "s", s.failed);
  if (s.error >= 0)
    text += fmt::format("; predictions: error {:.1f} %, rank correlation {:.2f}, regret {:.1f} %",
                        100 * s.error, s.tau, 100 * s.regret);
  return text + "; ";
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
    text += fmt::format("{},{},{},{},{},{:.9g},{:.9g},{:.9g},{}\n", csv_field(r.sets),
                        csv_field(r.mesh), csv_field(r.layout), r.program, r.memory, r.predicted,
                        r.measured, r.least, csv_field(r.failure));
  write_text_file(path, text);
}

void write_sweep_report(const std::string& path, const std::string& title,
                        const std::vector<SweepRow>& rows) {
  const std::string stem = path.substr(0, path.size() - 4);
  const SweepSummary s = summarize(rows);
  nlohmann::json json = {{"layouts", s.ran},
                         {"error", s.error >= 0 ? nlohmann::json(s.error) : nlohmann::json()}};
  TESSERA_JSON_FIELDS(json, s, programs, failed, tau, regret)
  for (const SweepRow& r : rows) {
    nlohmann::json& row = json["rows"].emplace_back(nlohmann::json{{"set", r.sets}});
    TESSERA_JSON_FIELDS(row, r, mesh, layout, program, memory, predicted, measured, least, failure)
  }
  write_report(stem + ".json", json);
  write_text_file(stem + ".svg", plot(rows));
  write_text_file(stem + ".html", sweep_page(title, rows));
}

}  // namespace tessera::cli
