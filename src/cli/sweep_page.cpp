// The page of a sweep.
#include <algorithm>
#include <map>

#include "base/fail.h"
#include "cli/sweep.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

/// Measured over predicted, with the diagonal on which both agree.
pages::Json agreement(const std::vector<SweepRow>& rows, const SweptKeys& swept) {
  std::vector<double> x, y, line;
  pages::Json tips = pages::Json::array();
  for (const SweepRow& r : rows) {
    if (r.measured == 0 || r.predicted == 0) continue;
    x.push_back(r.predicted);
    y.push_back(r.measured);
    tips.push_back(name_of(r, swept));
  }
  line = {std::min(*std::min_element(x.begin(), x.end()), *std::min_element(y.begin(), y.end())),
          std::max(*std::max_element(x.begin(), x.end()), *std::max_element(y.begin(), y.end()))};
  return {
      {"kind", "xy"},
      {"title", "measured over predicted"},
      {"about", "On the line both agree; below it a layout was faster than predicted."},
      {"xs", {{{"key", "p"}, {"label", "predicted"}, {"unit", "s"}}}},
      {"square", true},
      {"same", true},
      {"y", {{"label", "measured"}, {"unit", "s"}, {"log", false}}},
      {"series",
       {{{"name", "layout"}, {"points", true}, {"x", {{"p", x}}}, {"y", y}, {"tips", tips}},
        {{"name", "agree"}, {"quiet", true}, {"dash", true}, {"x", {{"p", line}}}, {"y", line}}}}};
}

/// The best measured time by the values of the two keys of --set that were swept; null unless two
/// were.
pages::Json by_keys(const std::vector<SweepRow>& rows, const SweptKeys& swept) {
  if (swept.size() != 2) return {};
  const std::string first_key = swept.begin()->first, second_key = swept.rbegin()->first;
  const std::set<std::string>& seconds = swept.rbegin()->second;
  std::map<std::string, std::map<std::string, double>> best;  // by the first, then by the second
  for (const SweepRow& r : rows) {
    if (r.measured == 0) continue;
    auto values = values_of_sets(r.sets);
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

}  // namespace

std::string sweep_page(const std::string& title, const std::vector<SweepRow>& rows) {
  constexpr size_t kMostBars = 40;
  const SweepSummary summary = summarize(rows);
  const SweptKeys swept = swept_keys(rows);
  const std::string fixed = rows.empty() ? "" : sets_of(rows[0], swept, false);
  pages::Page page("Layouts of " + title,
                   fmt::format("{} layouts, {} programs{}", rows.size(), summary.programs,
                               fixed.empty() ? "" : "; all with " + fixed));
  const std::vector<SweepRow> sorted = fastest_first(rows);
  const bool predicted =
      std::any_of(rows.begin(), rows.end(), [](const SweepRow& r) { return r.predicted > 0; });
  std::vector<std::pair<std::string, std::string>> cards = {
      {std::to_string(summary.ran), "layouts ran"}, {std::to_string(summary.failed), "failed"}};
  if (summary.ran > 0)
    cards.emplace_back(pages::with_unit(sorted[0].measured, "s"),
                       "fastest, " + name_of(sorted[0], swept));
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
    if (summary.error >= 0) page.chart(agreement(sorted, swept));
    const pages::Json heat = by_keys(rows, swept);
    if (!heat.is_null()) page.chart(heat);
    page.end_grid();
    pages::Json bars = pages::Json::array();
    for (const SweepRow& r : sorted) {
      if (r.measured == 0 || bars.size() == kMostBars) break;
      pages::Json bar = {{"label", name_of(r, swept)},
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
    pages::Json row = {{"set", sets_of(r, swept, true)},
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
  const std::string columns =
      (swept.empty() ? "" : "set: set | ") +
      std::string(
          "mesh: mesh | layout: layout | measured: measured [s] | spread: above the least "
          "[%] | predicted: predicted [s] | off: off by [%] | memory: memory [B] | "
          "program: program") +
      (summary.failed > 0 ? " | failure: why it did not run" : "");
  page.table(pages::columns(columns), table, "The sweep has no layouts.");
  return page.html();
}

}  // namespace tessera::cli
