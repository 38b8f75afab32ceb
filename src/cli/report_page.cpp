// tessera report: logs of training jobs as a page.
#include "cli/report_page.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/report_curves.h"
#include "cli/run_log.h"
#include "cli/say.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

/// Which rank was slowest, and by how much, over stretches of steps: a cell is the mean over the
/// steps of its stretch, 0 in those in which another rank was the slowest.
void add_ranks(Page& page, const RunLog& log, const std::string& job) {
  constexpr size_t kStretches = 120, kMostRanks = 64;
  const std::vector<double> steps = log.step_numbers(), rank = log.column("slowest_rank"),
                            slowest = log.column("slowest_ms"), median = log.column("median_ms");
  std::map<int64_t, std::map<size_t, double>> by_rank;  // then by stretch
  std::map<int64_t, double> total;
  const size_t stretches = std::min(kStretches, steps.size());
  const auto begin_of = [&](size_t stretch) {  // the first step i with i * stretches / steps here
    return (stretch * steps.size() + stretches - 1) / stretches;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const double excess = slowest[i] / median[i] - 1;
    if (!std::isfinite(excess) || !(rank[i] >= 0) || rank[i] > 1e9) continue;
    const auto r = static_cast<int64_t>(rank[i]);
    const size_t s = i * stretches / steps.size();
    by_rank[r][s] += excess / static_cast<double>(begin_of(s + 1) - begin_of(s));
    total[r] += excess;
  }
  if (by_rank.empty()) return;
  if (by_rank.size() < 2 && by_rank.begin()->first == 0) return;  // a job of one rank
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
    labels.push_back(fmt::format("rank {}", r));
    names.push_back(fmt::format("rank {} was slowest", r));
    for (const auto& [s, excess] : values) {
      const size_t first = begin_of(s), last = begin_of(s + 1);
      rects.push_back({steps[first], last < steps.size() ? steps[last] : steps.back() + 1, y, y + 1,
                       excess, y});
    }
  }
  page.chart(
      {{"kind", "rects"},
       {"title", "the slowest rank by step" + (job.empty() ? "" : ": " + job)},
       {"about",
        "How much more work of its own than the median rank the slowest one had, on average "
        "over the steps of a cell. The rank that lost most time stands first; a row that is "
        "dark throughout is a slow machine." +
            (left_out > 0 ? fmt::format(" {} ranks that lost less are left out.", left_out) : "")},
       {"x", {{"label", "step"}, {"unit", "#"}}},
       {"y", {{"labels", labels}}},
       {"heat", "%"},
       {"low", 0},
       {"names", names},
       {"rects", rects}});
}

void add_samples(Page& page, const RunLog& log) {
  Json rows = Json::array();
  for (const auto& [step, texts] : log.samples) {
    for (const Json& sample : texts) {
      if (sample.is_object())
        rows.push_back({{"step", step}, {"text", sample.value("text", Json(""))}});
    }
  }
  page.table({{"step", "step", "#"}, {"text", "text"}}, rows, "No samples.");
}

void add_memory(Page& page, const Json& memory) {
  Json parts = Json::array();
  for (const char* name : {"params", "state", "inputs", "transient", "staging"}) {
    const double bytes = number_of(memory, name);
    if (bytes > 0) parts.push_back({name, bytes});
  }
  if (parts.empty()) return page.text("The log has no plan.");
  page.chart({{"kind", "bars"},
              {"title", "memory of a rank"},
              {"unit", "B"},
              {"rows", {{{"label", "planned"}, {"parts", parts}}}}});
  if (memory.contains("at_peak"))
    page.table({{"tensor", "largest at the peak"}, {"bytes", "bytes", "B"}}, memory["at_peak"], "");
}

/// [name, op, milliseconds] of a step of the Program.
bool is_timed_step(const Json& s) {
  return s.is_array() && s.size() == 3 && s[0].is_string() && s[1].is_string() &&
         s[2].is_number() && s[2].get<double>() >= 0;
}

/// The steps of one run end to end.
void add_time_line(Page& page, const Json& steps) {
  Json rects = Json::array(), names = Json::array();
  double at = 0;
  for (const Json& s : steps) {
    if (!is_timed_step(s)) continue;
    const double seconds = s[2].get<double>() / 1e3;
    const std::string op = s[1];
    const bool waits = op == "wait" || find_collective(op).has_value();
    names.push_back(op + " " + s[0].get<std::string>());
    rects.push_back(
        {at, at + seconds, waits ? 1 : 0, waits ? 2 : 1, waits ? 1 : 0, names.size() - 1});
    at += seconds;
  }
  if (!(at > 0)) return page.text("Train with --profile to see where the time of a step goes.");
  page.chart({{"kind", "rects"},
              {"title", fmt::format("one step, {:.2f} ms on the first rank", 1e3 * at)},
              {"x", {{"label", "time"}, {"unit", "s"}}},
              {"y", {{"labels", {"kernels", "waits"}}}},
              {"classes", {"kernels", "transfers and waits"}},
              {"names", names},
              {"rects", rects}});
}

Json config_of(const RunLog& log) {
  return log.head.is_null() ? Json::object() : log.head.value("config", Json::object());
}

/// The keys whose values differ between the jobs.
void add_differences(Page& page, const std::vector<RunLog>& logs) {
  std::map<std::string, Json> rows;
  std::vector<pages::Column> columns = {{"key", "key"}};
  for (size_t r = 0; r < logs.size(); ++r) {
    columns.push_back({std::to_string(r), logs[r].name});
    const Json config = config_of(logs[r]);
    for (const auto& [key, value] : config.items()) rows[key][std::to_string(r)] = value;
  }
  Json differing = Json::array();
  for (auto& [key, row] : rows) {
    bool same = row.size() == logs.size();
    for (size_t r = 1; same && r < logs.size(); ++r)
      same = row[std::to_string(r)] == row[std::to_string(0)];
    if (same) continue;
    row["key"] = key;
    differing.push_back(row);
  }
  page.table(columns, differing, "All keys have the same values.");
}

std::string subtitle(const std::vector<RunLog>& logs) {
  if (logs.size() > 1) return fmt::format("{} training jobs", logs.size());
  const RunLog& log = logs[0];
  const Json head = log.head.is_null() ? Json::object() : log.head;
  std::string text = fmt::format(
      "{} ranks ({}), Tessera {}, Program {}", text_of(head.value("ranks", Json("?"))),
      text_of(head.value("backend", Json("?"))), text_of(head.value("version", Json("?"))),
      text_of(head.value("program", Json("?"))));
  if (log.steps.empty()) return text + "; no step yet";
  return text + fmt::format("; step {} of {}", log.steps.rbegin()->first,
                            log.last > 0 ? std::to_string(log.last) : "?");
}

void add_notes(Page& page, const RunLog& log) {
  if (log.torn > 0)
    page.note(fmt::format("{}: {} of the log {} not whole", log.name,
                          log.torn == 1 ? "1 line" : fmt::format("{} lines", log.torn),
                          log.torn == 1 ? "is" : "are"));
  if (log.cut) page.note(log.name + ": the log ends in the middle of a line");
  if (log.back > 0)
    page.note(
        fmt::format("{}: {} steps come after a later one, as if two jobs wrote this log at "
                    "the same time; of each step the last record is shown",
                    log.name, log.back));
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return NAN;
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

Json summary(const RunLog& log) {
  Json row = {{"name", log.name}};
  const auto set = [&](const char* key, double v) {
    if (std::isfinite(v)) row[key] = v;
  };
  if (!log.steps.empty()) {
    set("step", static_cast<double>(log.steps.rbegin()->first));
    set("loss", log.column("loss").back());
    set("skipped", log.column("skipped").back());
    set("peak", median(log.column("peak_share")));
    set("rate", median(log.column("tokens_per_s")));
    set("ms", median(log.column("ms")) / 1e3);
  }
  double best = INFINITY;
  for (const auto& [step, record] : log.evaluations) {
    const double loss = number_of(record, "eval_loss");
    if (loss < best) best = loss;
  }
  set("best", best);
  return row;
}

void add_summary(Page& page, const std::vector<RunLog>& logs) {
  if (logs.size() > 1) {
    Json rows = Json::array();
    for (const RunLog& log : logs) rows.push_back(summary(log));
    return page.table({{"name", "job"},
                       {"step", "steps", "#"},
                       {"loss", "last loss", "#"},
                       {"best", "best held out", "#"},
                       {"rate", "tokens/s", "#"},
                       {"ms", "a step", "s"},
                       {"peak", "of peak", "%"},
                       {"skipped", "skipped", "#"}},
                      rows, "");
  }
  const Json row = summary(logs[0]);
  std::vector<std::pair<std::string, std::string>> cards;
  const auto card = [&](const char* key, const char* unit, const char* what) {
    if (row.contains(key)) cards.emplace_back(pages::with_unit(row[key].get<double>(), unit), what);
  };
  card("loss", "#", "last loss");
  card("best", "#", "best loss, held out");
  card("ms", "s", "a step, median");
  card("rate", "", "tokens/s, median");
  card("peak", "%", "of the measured peak");
  card("skipped", "#", "skipped steps");
  if (!cards.empty()) page.cards(cards);
}

/// What the first line and the profile of a job say. `which`: its number if there are several.
void add_job(Page& page, const RunLog& log, const std::string& which) {
  const Json head = log.head.is_null() ? Json::object() : log.head;
  const Json none = Json::object(), empty = Json::array(), config = config_of(log);
  const auto section = [&](const char* id, const std::string& title) {
    page.section(id + which, which.empty() ? title : title + ": " + log.name);
  };
  if (!log.samples.empty()) section("samples", "Samples"), add_samples(page, log);
  section("layout", "Layout");
  page.pairs({{"mesh", config.value("layout.mesh", Json("?"))},
              {"rules", config.value("layout.rules", Json("?"))}});
  section("memory", "Memory plan");
  add_memory(page, head.value("memory", none));
  section("communication", "Communication of a step");
  page.table({{"kind", "collective"},
              {"axes", "axes"},
              {"tensor", "tensor"},
              {"rule", "because of"},
              {"source", "source"},
              {"bytes", "sent by a rank", "B"}},
             head.value("communication", empty), "A step has no collectives.");
  section("timeline", "Timeline");
  add_time_line(page, log.time_line);
  if (!log.profile.is_null()) {
    section("profile", "Where the time and memory of a step go");
    Json rows = log.profile;
    for (Json& row : rows) {
      if (row.is_object()) row["seconds"] = number_of(row, "ms") / 1e3;
    }
    page.table({{"seconds", "time", "s"},
                {"op", "op"},
                {"source", "source"},
                {"name", "first name"},
                {"flops", "operations", "FLOP"},
                {"bytes", "touched or sent", "B"},
                {"result_bytes", "results", "B"}},
               rows, "The profile is empty.");
  }
  if (!log.startup.is_null()) section("start", "Start, in seconds"), page.pairs(log.startup);
  section("configuration", "Configuration");
  page.pairs(config);
}

Page page_of(const std::vector<RunLog>& logs, const std::string& title) {
  Page page(title, subtitle(logs));
  for (const RunLog& log : logs) add_notes(page, log);
  add_summary(page, logs);
  page.section("curves", "Curves");
  add_curves(page, logs);
  for (const RunLog& log : logs) add_ranks(page, log, logs.size() > 1 ? log.name : "");
  if (logs.size() > 1) {
    page.section("differences", "Configurations that differ");
    add_differences(page, logs);
  }
  for (size_t r = 0; r < logs.size(); ++r)
    add_job(page, logs[r], logs.size() > 1 ? fmt::format("-{}", r + 1) : "");
  return page;
}

}  // namespace

ReportPage report_page(const std::vector<LogText>& texts, int refresh) {
  std::vector<RunLog> logs;
  std::string title;
  for (const LogText& log : texts) {
    for (RunLog& job : read_run_logs(log.text, log.path)) logs.push_back(std::move(job));
    title += (title.empty() ? "" : ", ") + log.path;
  }
  ReportPage result;
  result.finished = true;
  for (const RunLog& log : logs) {
    result.steps += log.steps.size();
    result.finished = result.finished && !log.steps.empty() && log.last > 0 &&
                      log.steps.rbegin()->first >= log.last;
  }
  try {
    Page page = page_of(logs, title);
    if (!result.finished) page.refresh(refresh);
    result.html = page.html();
  } catch (const Json::exception& e) {
    fail(ErrorKind::io, "'{}' is not what train --log writes: {}", title, e.what());
  }
  return result;
}

int report(const Arguments& args) {
  constexpr int kRefresh = 5;  // seconds
  const std::string& path = args.words[0];
  std::string out = args.out;
  if (out.empty()) out = path.substr(0, path.rfind(".jsonl")) + ".html";
  for (const std::string& log : args.words)
    require(out != log, "the page would replace the log '{}'; choose another --out", log);
  require_place_for(out);
  std::vector<LogText> shown;
  while (true) {
    std::vector<LogText> logs;
    for (const std::string& log : args.words) logs.push_back({read_text_file("the log", log), log});
    const bool grew = !std::equal(
        logs.begin(), logs.end(), shown.begin(), shown.end(),
        [](const LogText& a, const LogText& b) { return a.text.size() == b.text.size(); });
    if (grew) {
      const ReportPage made = report_page(logs, args.follow ? kRefresh : 0);
      write_text_file(out, made.html);
      if (shown.empty() || made.finished) say("{}: {} steps\n", out, made.steps);
      std::fflush(stdout);
      if (!args.follow || made.finished) return 0;
      shown = std::move(logs);
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace tessera::cli
