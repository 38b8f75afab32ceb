// tessera report: logs of training jobs as a page.
#include "cli/report_page.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/run_log.h"
#include "cli/say.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

/// The numbers of a job by step, token and second of training.
struct Axes {
  std::vector<double> steps, tokens, seconds;
};

Axes axes_of(const RunLog& log) {
  Axes axes{log.step_numbers(), {}, {}};
  const std::vector<double> ms = log.column("ms"), rate = log.column("tokens_per_s");
  double tokens = 0, seconds = 0;
  for (size_t i = 0; i < ms.size(); ++i) {
    if (std::isfinite(ms[i])) seconds += ms[i] / 1e3;
    if (std::isfinite(ms[i]) && std::isfinite(rate[i])) tokens += rate[i] * ms[i] / 1e3;
    axes.seconds.push_back(seconds);
    axes.tokens.push_back(tokens);
  }
  return axes;
}

/// Where an axis is at a step: its value at the last step that is not after it.
double at_step(const Axes& axes, const std::vector<double>& values, int64_t step) {
  const auto after =
      std::upper_bound(axes.steps.begin(), axes.steps.end(), static_cast<double>(step));
  return after == axes.steps.begin() ? 0
                                     : values[static_cast<size_t>(after - axes.steps.begin()) - 1];
}

/// The charts of all jobs of a page, one below the other in the same colours.
class Curves {
 public:
  explicit Curves(const std::vector<RunLog>& logs) : logs_(logs) {
    for (const RunLog& log : logs) axes_.push_back(axes_of(log));
  }

  void add_to(Page& page) const {
    page.begin_grid();
    chart(page, "loss", "", true, {{"loss", ""}}, true);
    chart(page, "gradient norm", "", true, {{"grad_norm", ""}});
    chart(page, "learning rate", "", false, {{"lr", ""}});
    chart(page, "tokens/s", "", false, {{"tokens_per_s", ""}});
    if (logs_.size() == 1) {
      chart(page, "time of a step", "s", true,
            {{"ms", "step"},
             {"slowest_ms", "own work, slowest rank"},
             {"median_ms", "own work, median rank"},
             {"planned_ms", "planned"}});
    } else {
      chart(page, "time of a step", "s", true, {{"ms", ""}});
    }
    chart(page, "share of peak", "%", false, {{"peak_share", ""}});
    for (const std::string& field : own_metrics()) chart(page, field, "", false, {{field, ""}});
    saves(page);
    page.end_grid();
  }

 private:
  using Fields = std::vector<std::pair<const std::string, std::string>>;

  /// Fields of steps that no chart shows and that are none of ours.
  std::set<std::string> own_metrics() const {
    static const std::set<std::string> known = {
        "step",       "steps",        "loss",         "grad_norm",  "lr",           "ms",
        "planned_ms", "tokens_per_s", "flops_per_s",  "peak_share", "memory_bytes", "eta_s",
        "skipped",    "loss_scale",   "slowest_rank", "slowest_ms", "median_ms"};
    std::set<std::string> own;
    for (const RunLog& log : logs_) {
      for (const auto& [field, at] : log.fields) {
        if (!known.contains(field) && own.size() < 12) own.insert(field);
      }
    }
    return own;
  }

  static Json series(std::string name, size_t color, std::vector<double> y, const Axes& axes,
                     double factor) {
    for (double& v : y) v *= factor;
    Json x;
    Json ys;
    for (const auto& [key, values] :
         {std::pair{"step", &axes.steps}, {"tokens", &axes.tokens}, {"time", &axes.seconds}}) {
      std::vector<double> xs = *values, copy = y;
      pages::thin(xs, copy);
      x[key] = pages::numbers(xs, 7);
      ys = pages::numbers(copy);  // the same for all: chosen by y
    }
    return {{"name", std::move(name)}, {"color", color}, {"x", x}, {"y", ys}};
  }

  void chart(Page& page, const std::string& title, const char* unit, bool log_scale,
             const Fields& shown, bool with_evaluations = false) const {
    Json all = Json::array();
    bool positive = true;
    double low = INFINITY, high = 0;
    for (size_t r = 0; r < logs_.size(); ++r) {
      for (size_t f = 0; f < shown.size(); ++f) {
        const auto& [field, label] = shown[f];
        const std::vector<double> y = logs_[r].column(field);
        double most = 0;
        for (const double v : y) {
          if (!std::isfinite(v)) continue;
          most = std::max(most, std::abs(v));
          positive = positive && v >= 0;
          if (v > 0) low = std::min(low, v);
        }
        high = std::max(high, most);
        if (most == 0) continue;  // not given, or not used: 0 without a machine
        std::string name = logs_.size() > 1 ? logs_[r].name : label;
        if (name.empty() && with_evaluations) name = "training";
        all.push_back(series(std::move(name), logs_.size() > 1 ? r : f, y, axes_[r],
                             std::string(unit) == "s" ? 1e-3 : 1));
      }
      if (with_evaluations) evaluations(r, all);
    }
    if (all.empty()) return;
    Json y = {{"label", title}, {"unit", unit}};
    if (log_scale && positive) y["log"] = high > 10 * low;
    page.chart({{"kind", "xy"},
                {"title", title},
                {"xs", x_axes()},
                {"y", y},
                {"smooth", true},
                {"series", all},
                {"marks", marks()}});
  }

  void evaluations(size_t r, Json& all) const {
    std::vector<double> y;
    Axes axes;
    for (const auto& [step, record] : logs_[r].evaluations) {
      y.push_back(number_of(record, "eval_loss"));
      axes.steps.push_back(static_cast<double>(step));
      axes.tokens.push_back(at_step(axes_[r], axes_[r].tokens, step));
      axes.seconds.push_back(at_step(axes_[r], axes_[r].seconds, step));
    }
    if (y.empty()) return;
    all.push_back(series(logs_.size() > 1 ? logs_[r].name + ", held out" : "held out",
                         logs_.size() > 1 ? r : 1, y, axes, 1));
    all.back()["dash"] = true;
  }

  void saves(Page& page) const {
    if (logs_.size() > 1 || logs_[0].saves.empty()) return;
    Json all = Json::array();
    const std::vector<std::pair<const char*, const char*>> fields = {{"save_ms", "copy"},
                                                                     {"save_wait_ms", "wait"}};
    for (size_t f = 0; f < fields.size(); ++f) {
      std::vector<double> x, y;
      for (const auto& [step, record] : logs_[0].saves) {
        x.push_back(static_cast<double>(step));
        y.push_back(number_of(record, fields[f].first) / 1e3);
      }
      pages::thin(x, y);
      all.push_back({{"name", fields[f].second},
                     {"points", true},
                     {"x", {{"step", pages::numbers(x)}}},
                     {"y", pages::numbers(y)}});
    }
    page.chart({{"kind", "xy"},
                {"title", "time of a save"},
                {"xs", {{{"key", "step"}, {"label", "step"}, {"unit", "#"}}}},
                {"y", {{"label", "what the step paid"}, {"unit", "s"}}},
                {"series", all}});
  }

  Json x_axes() const {
    Json xs = {{{"key", "step"}, {"label", "step"}, {"unit", "#"}}};
    const auto any = [&](auto values) {
      return std::any_of(axes_.begin(), axes_.end(), [&](const Axes& a) {
        return !(a.*values).empty() && (a.*values).back() > 0;
      });
    };
    if (any(&Axes::tokens)) xs.push_back({{"key", "tokens"}, {"label", "tokens"}, {"unit", "#"}});
    if (any(&Axes::seconds))
      xs.push_back({{"key", "time"}, {"label", "time in steps"}, {"unit", "s"}});
    return xs;
  }

  Json marks() const {
    constexpr size_t kMost = 60;
    Json list = Json::array();
    for (size_t r = 0; r < logs_.size(); ++r) {
      for (const RunEvent& e : logs_[r].events) {
        if (list.size() >= kMost) break;
        list.push_back({{"name", e.kind},
                        {"text", e.kind + (e.text.empty() ? "" : ": " + e.text)},
                        {"x",
                         {{"step", e.step},
                          {"tokens", at_step(axes_[r], axes_[r].tokens, e.step)},
                          {"time", at_step(axes_[r], axes_[r].seconds, e.step)}}}});
      }
    }
    return list;
  }

  const std::vector<RunLog>& logs_;
  std::vector<Axes> axes_;
};

/// Which rank was slowest, and by how much, over stretches of steps.
void add_ranks(Page& page, const RunLog& log) {
  constexpr size_t kStretches = 120, kMostRanks = 64;
  const std::vector<double> steps = log.step_numbers(), rank = log.column("slowest_rank"),
                            slowest = log.column("slowest_ms"), median = log.column("median_ms");
  std::map<int64_t, std::map<size_t, double>> by_rank;  // then by stretch: the largest excess
  const size_t stretches = std::min(kStretches, steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const double excess = slowest[i] / median[i] - 1;
    if (!std::isfinite(excess) || !(rank[i] >= 0) || rank[i] > 1e9) continue;
    double& most = by_rank[static_cast<int64_t>(rank[i])][i * stretches / steps.size()];
    most = std::max(most, excess);
  }
  if (by_rank.empty()) return;
  if (by_rank.size() < 2 && by_rank.begin()->first == 0) return;  // a job of one rank
  Json labels = Json::array(), rects = Json::array(), names = Json::array();
  for (const auto& [r, values] : by_rank) {
    if (labels.size() == kMostRanks) break;
    const size_t y = labels.size();
    labels.push_back(fmt::format("rank {}", r));
    names.push_back(fmt::format("rank {} was slowest", r));
    for (const auto& [s, excess] : values) {
      const auto first = s * steps.size() / stretches, last = (s + 1) * steps.size() / stretches;
      rects.push_back({steps[first], last < steps.size() ? steps[last] : steps.back() + 1, y, y + 1,
                       excess, y});
    }
  }
  page.chart({{"kind", "rects"},
              {"title", "the slowest rank by step"},
              {"about",
               "How much more work of its own than the median rank the slowest one had: "
               "a row that is dark throughout is a slow machine."},
              {"x", {{"label", "step"}, {"unit", "#"}}},
              {"y", {{"labels", labels}}},
              {"heat", "%"},
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

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
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
  Curves(logs).add_to(page);
  for (const RunLog& log : logs) add_ranks(page, log);
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
