// Where the time of a job's steps went, and which of its ranks were slow.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/json.h"
#include "base/median.h"
#include "cli/plain_charts.h"
#include "cli/run_log.h"
#include "cli/slow_ranks.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

}  // namespace

std::vector<std::pair<std::string, int64_t>> hosts_of(const Json& head) {
  std::vector<std::pair<std::string, int64_t>> hosts;
  const auto list = head.find("hosts");
  if (list == head.end() || !list->is_array()) return {};
  for (const Json& host : *list) {
    const bool is_host = host.is_array() && host.size() == 2 && host[0].is_string();
    const double ranks = is_host && host[1].is_number() ? host[1].get<double>() : 0;
    if (!(ranks >= 1 && ranks < 1e6)) return {};
    hosts.emplace_back(host[0].get<std::string>(), static_cast<int64_t>(ranks));
  }
  return hosts;
}

namespace {

/// "" if there is but one, or none is known.
std::string host_of(const Json& head, int64_t rank) {
  const auto hosts = hosts_of(head);
  for (const auto& [name, ranks] : hosts) {
    if (hosts.size() > 1 && rank < ranks) return name;
    rank -= ranks;
  }
  return "";
}

/// Seconds that the first rank waited for data over each axis, as a job with a profile measured it.
std::map<std::string, double> waits_by_axes(const RunLog& log) {
  std::map<std::string, double> waiting;
  for (const Json& bucket : log.buckets) {
    const double exposed = number_of(bucket, "exposed_ms");
    if (exposed > 0 && bucket.contains("axes"))
      waiting["waiting for " + text_of(bucket["axes"])] += exposed / 1e3;
  }
  return waiting;
}

/// The mean measured step by cause, without the first one, which warms up.
struct MeasuredStep {
  double seconds = 0, reading = 0, working = 0, saving = 0;
  int64_t steps = 0;
  std::map<std::string, double> waits;  ///< by axes, if these are known

  Causes causes() const;
};

MeasuredStep measured_step(const RunLog& log) {
  const std::vector<double> ms = log.column("ms"), data = log.column("data_ms"),
                            own = log.column("median_ms");
  MeasuredStep m;
  for (size_t i = ms.size() > 1 ? 1 : 0; i < ms.size(); ++i) {
    if (!(ms[i] > 0) || !(data[i] >= 0) || !(own[i] > 0)) continue;
    m.seconds += ms[i];
    m.reading += data[i];
    m.working += std::min(ms[i], own[i]);
    ++m.steps;
  }
  if (m.steps == 0) return m;
  for (const auto& [step, record] : log.saves) {
    for (const char* field : {"save_ms", "save_wait_ms"}) {
      if (const double paid = number_of(record, field); paid > 0) m.saving += paid;
    }
  }
  for (double* sum : {&m.seconds, &m.reading, &m.working, &m.saving})
    *sum *= 1e-3 / static_cast<double>(m.steps);
  double waited = 0;
  const std::map<std::string, double> waits = waits_by_axes(log);
  for (const auto& [axes, seconds] : waits) waited += seconds;
  if (waited + m.reading < m.seconds) m.waits = waits;
  return m;
}

Causes MeasuredStep::causes() const {
  const double waiting = seconds - working;
  if (waits.empty())
    return {{"compute", working - reading},
            {"reading data", reading},
            {"waiting for other ranks", waiting},
            {"saving", saving}};
  double waited = 0;
  for (const auto& [axes, wait] : waits) waited += wait;
  // What is measured of a transfer begins when its last rank has come.
  const double for_slower = std::max(0.0, waiting - waited);
  Causes causes = {{"compute", seconds - reading - waited - for_slower}, {"reading data", reading}};
  causes.insert(causes.end(), waits.begin(), waits.end());
  causes.emplace_back("waiting for slower ranks", for_slower);
  causes.emplace_back("saving", saving);
  return causes;
}

}  // namespace

void add_steps(Page& page, const std::vector<RunLog>& logs) {
  std::vector<std::pair<const RunLog*, MeasuredStep>> steps;
  bool by_axes = true;
  for (const RunLog& log : logs) {
    const MeasuredStep step = measured_step(log);
    if (step.steps == 0) continue;
    steps.emplace_back(&log, step);
    by_axes = by_axes && !step.waits.empty();
  }
  if (steps.empty()) return;
  Json chart;
  std::string differences;
  for (auto& [log, step] : steps) {
    if (!by_axes) step.waits.clear();
    const std::string label = fmt::format("{}mean of {} steps, of which the median takes {}",
                                          steps.size() > 1 ? log->name + ": " : "", step.steps,
                                          pages::with_unit(median(log->column("ms")) / 1e3, "s"));
    Json bar = bar_chart("a measured step by cause", "s", label, step.causes());
    if (chart.is_null()) {
      chart = std::move(bar);
      continue;
    }
    chart["rows"].push_back(bar["rows"][0]);
    differences += fmt::format(
        "{}{}", differences.empty() ? "" : " ",
        verdict(steps[0].first->name, steps[0].second.causes(), log->name, step.causes()));
  }
  chart["about"] = by_axes ? "Waiting for axes is that of the first rank, as it was profiled, from "
                             "when the last rank has come. What ranks wait for that one before is "
                             "apart."
                           : "Waiting is the time in which the median rank did no work of its own; "
                             "with --profile it is shown by axes.";
  page.section("step", "Where the time of a step went");
  if (!differences.empty()) page.text(differences);
  page.chart(chart);
}

void add_ranks(Page& page, const RunLog& log, const std::string& which) {
  constexpr size_t kStretches = 120, kMostRanks = 64;
  const std::vector<double> steps = log.step_numbers(), rank = log.column("slowest_rank"),
                            slowest = log.column("slowest_ms"), median = log.column("median_ms");
  std::map<int64_t, std::map<size_t, double>> by_rank;  // then by stretch
  std::map<int64_t, double> total;
  std::vector<SlowestRank> seen;
  const size_t stretches = std::min(kStretches, steps.size());
  const auto begin_of = [&](size_t stretch) {  // the first step i with i * stretches / steps here
    return (stretch * steps.size() + stretches - 1) / stretches;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const double excess = slowest[i] / median[i] - 1;
    if (!std::isfinite(excess) || !(rank[i] >= 0) || rank[i] > 1e9) continue;
    const auto r = static_cast<int64_t>(rank[i]);
    seen.push_back({steps[i], r, excess + 1});
    const size_t s = i * stretches / steps.size();
    by_rank[r][s] += excess / static_cast<double>(begin_of(s + 1) - begin_of(s));
    total[r] += excess;
  }
  if (by_rank.empty()) return;
  const double ranks = number_of(log.head, "ranks");
  const bool is_alone = std::isfinite(ranks) ? ranks < 2 : by_rank.rbegin()->first == 0;
  if (is_alone) return;
  std::vector<int64_t> order;
  for (const auto& [r, values] : by_rank) order.push_back(r);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return total[a] > total[b]; });
  const size_t left_out = order.size() - std::min(order.size(), kMostRanks);
  order.resize(order.size() - left_out);
  Json labels = Json::array(), rects = Json::array(), names = Json::array();
  for (const int64_t r : order) {
    const auto& values = by_rank[r];
    const size_t y = labels.size();
    const std::string host = host_of(log.head, r);
    labels.push_back(fmt::format("rank {}", r));
    names.push_back(
        fmt::format("rank {}{} was slowest", r, host.empty() ? "" : fmt::format(" ({})", host)));
    for (const auto& [s, excess] : values) {
      const size_t first = begin_of(s), last = begin_of(s + 1);
      rects.push_back({steps[first], last < steps.size() ? steps[last] : steps.back() + 1, y, y + 1,
                       excess, y});
    }
  }
  page.section("ranks" + which, "Slow ranks" + (which.empty() ? "" : ": " + log.name));
  page.text(slow_ranks_text(seen, [&](int64_t r) { return host_of(log.head, r); }));
  page.chart(
      {{"kind", "rects"},
       {"title", "the slowest rank by step"},
       {"about",
        "How much more work of its own than the median rank the slowest one had, on average "
        "over the steps of a cell. The rank that lost most time stands first; a row that is "
        "dark throughout is a slow machine." +
            (left_out > 0 ? fmt::format(" {} ranks that lost less are left out.", left_out) : "")},
       {"x", {{"label", "step"}, {"unit", "#"}}},
       {"y", {{"labels", labels}}},
       {"heat", "%"},
       {"low", 0},
       {"high", 1},  // the same colours in all reports
       {"names", names},
       {"rects", rects}});
}

}  // namespace tessera::cli
