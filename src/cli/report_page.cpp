#include "cli/report_page.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/json.h"
#include "base/median.h"
#include "base/words.h"
#include "cli/plain_charts.h"
#include "cli/run_log.h"
#include "cli/slow_ranks.h"
#include "pages/page.h"
#include "tessera/collectives.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

/// (name, number of ranks) of each host, in order of rank; none if the head does not say.
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

/// The measured step by cause, a bar for each job, and how the others differ from the first. Waits
/// are told by axes where all jobs can.
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

/// Which rank was slowest, and by how much, over stretches of steps: a cell is the mean over the
/// steps of its stretch, 0 in those in which another rank was the slowest.
/// `which`: as for add_job().
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

void add_samples(Page& page, const RunLog& log) {
  Json rows = Json::array();
  for (const auto& [step, texts] : log.samples) {
    for (const Json& sample : texts) {
      if (sample.is_object())
        rows.push_back({{"step", step}, {"text", sample.value("text", Json(""))}});
    }
  }
  page.table("step: step [#] | text: text", rows, "No samples.");
}

void add_memory(Page& page, const Json& memory) {
  Json parts = Json::array();
  const auto bytes_of = [&](const char* field) { return count_of(memory, field); };
  const struct {
    int64_t params, state, inputs, transient;
  } planned{bytes_of("params"), bytes_of("state"), bytes_of("inputs"), bytes_of("transient")};
  for (const auto& [name, bytes] : memory_parts(planned)) {
    if (bytes > 0) parts.push_back({name, bytes});
  }
  if (bytes_of("staging") > 0)
    parts.push_back({"a copy to save beside the run", bytes_of("staging")});
  if (parts.empty()) return page.text("The log has no plan.");
  page.chart({{"kind", "bars"},
              {"title", "memory of a rank"},
              {"unit", "B"},
              {"rows", {{{"label", "planned"}, {"parts", parts}}}}});
  if (memory.contains("at_peak"))
    page.table("tensor: largest at the peak | bytes: bytes [B]", memory["at_peak"], "");
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
    const std::string name = s[0];
    names.push_back(name == op ? op : op + " " + name);
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
  std::vector<pages::Column> columns = pages::columns("key: key");
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
  std::vector<std::string> known;
  const auto add = [&](const char* field, const char* text) {
    if (head.contains(field))
      known.push_back(fmt::format(fmt::runtime(text), text_of(head[field])));
  };
  add("ranks", "{} ranks");
  add("backend", "{}");
  add("version", "Tessera {}");
  add("program", "Program {}");
  const std::string job = fmt::format("{}{}", fmt::join(known, ", "), known.empty() ? "" : "; ");
  if (log.steps.empty()) return job + "no step yet";
  return fmt::format("{}step {}{}", job, log.steps.rbegin()->first,
                     log.last > 0 ? fmt::format(" of {}", log.last) : "");
}

void add_notes(Page& page, const RunLog& log) {
  if (log.torn > 0)
    page.note(fmt::format("{}: {} of the log {} not whole", log.name,
                          log.torn == 1 ? "1 line" : fmt::format("{} lines", log.torn),
                          log.torn == 1 ? "is" : "are"));
  if (log.cut) page.note(log.name + ": the log ends in the middle of a line");
  if (log.back > 0)
    page.note(fmt::format(
        "{}: {} after a later one, as if two jobs wrote this log at the same time; of "
        "each step the last record is shown",
        log.name, log.back == 1 ? "1 step comes" : fmt::format("{} steps come", log.back)));
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
    return page.table(
        "name: job | step: steps [#] | loss: last loss [#] | best: best held out [#] | "
        "rate: tokens/s, median [#] | ms: a step, median [s] | "
        "peak: of its peak, median [%] | skipped: skipped [#]",
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

/// Rows whose fields in milliseconds ("ms", "..._ms") are seconds, as tables show them.
Json in_seconds(Json rows) {
  for (Json& row : rows) {
    if (!row.is_object()) continue;
    for (auto& [field, value] : row.items()) {
      if (field.ends_with("ms") && value.is_number()) value = value.get<double>() / 1e3;
    }
  }
  return rows;
}

/// The buckets of collectives of a step, measured, beside what was predicted if anything was.
void add_buckets(Page& page, const Json& buckets) {
  std::vector<pages::Column> columns = pages::columns(
      "kind: collective | axes: over | tensor: first tensor | source: source [@] | "
      "collectives: collectives [#] | bytes: sent by a rank [B] | exposed_ms: exposed [s] | "
      "hidden_ms: hidden [s]");
  const bool predicted = std::any_of(buckets.begin(), buckets.end(), [](const Json& b) {
    return number_of(b, "predicted_exposed_ms") + number_of(b, "predicted_hidden_ms") > 0;
  });
  if (predicted)
    columns.insert(columns.end(), {{"predicted_exposed_ms", "exposed, predicted", "s"},
                                   {"predicted_hidden_ms", "hidden, predicted", "s"}});
  page.table(columns, in_seconds(buckets), "A step has no collectives.");
}

void add_kernels(Page& page, Json kernels) {
  for (Json& row : kernels) {
    const double lost = number_of(row, "ms") - number_of(row, "roofline_ms");
    if (row.is_object() && std::isfinite(lost)) row["lost_ms"] = lost;
  }
  page.table(
      "kernel: kernel | tensor: tensor | source: source [@] | launches: launches [#] | "
      "flops: operations [FLOP] | bytes: touched [B] | ms: takes [s] | "
      "roofline_ms: at the roofline [s] | predicted_ms: predicted [s] | "
      "lost_ms: over the roofline [s]",
      in_seconds(kernels), "No kernels.");
}

/// The ranks on their hosts, if the log says where they were.
void add_mesh(Page& page, const Json& head, const Json& config) {
  const auto hosts = hosts_of(head);
  const auto axes = config.find("layout.mesh");
  if (hosts.empty() || axes == config.end() || !axes->is_string()) return;
  int64_t ranks = 0;
  for (const auto& host : hosts) ranks += host.second;
  try {
    const Mesh mesh = Mesh::parse(axes->get<std::string>());
    if (mesh.size() > 1 && mesh.size() == ranks) page.chart(mesh_chart(mesh, hosts));
  } catch (const Error&) {
    page.text(fmt::format("The mesh '{}' of the log is none.", axes->get<std::string>()));
  }
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
  add_mesh(page, head, config);
  section("memory", "Memory plan");
  add_memory(page, head.value("memory", none));
  section("communication", "Communication of a step");
  page.table(
      "kind: collective | axes: axes | tensor: tensor | rule: because of | "
      "source: source [@] | bytes: sent by a rank [B]",
      head.value("communication", empty),
      head.contains("communication") ? "A step has no collectives." : "The log has no plan.");
  if (log.buckets.is_array() && !log.buckets.empty()) {
    section("buckets", "Communication of a step, measured on the first rank");
    add_buckets(page, log.buckets);
  }
  section("timeline", "Timeline");
  add_time_line(page, log.time_line);
  if (!log.profile.is_null()) {
    section("profile", "Where the time and memory of a step go");
    page.table(
        "ms: time [s] | op: op | source: source [@] | name: first name | "
        "flops: operations [FLOP] | bytes: touched or sent [B] | result_bytes: results [B]",
        in_seconds(log.profile), "The profile is empty.");
  }
  if (log.kernels.is_array() && !log.kernels.empty()) {
    section("kernels", "Kernels beside the roofline");
    add_kernels(page, log.kernels);
  }
  if (!log.startup.is_null()) section("start", "Start, in seconds"), page.pairs(log.startup);
  section("configuration", "Configuration");
  page.pairs(config);
}

/// The lines of code of all jobs, without those that differ between them.
Json code_of(const std::vector<RunLog>& logs) {
  Json code = Json::object();
  for (const RunLog& log : logs) {
    for (const auto& [file, lines] : log.code.items()) {
      for (const auto& [number, text] : lines.items()) {
        Json& known = code[file].emplace(number, text).first.value();
        if (known != text) known = nullptr;
      }
    }
  }
  return code;
}

Page page_of(const std::vector<RunLog>& logs, const std::string& title,
             const std::vector<std::string>& notes) {
  Page page(title, subtitle(logs));
  for (const std::string& note : notes) page.note(note);
  for (const RunLog& log : logs) add_notes(page, log);
  add_summary(page, logs);
  page.section("curves", "Curves");
  add_curves(page, logs);
  const auto which = [&](size_t r) { return logs.size() > 1 ? fmt::format("-{}", r + 1) : ""; };
  add_steps(page, logs);
  for (size_t r = 0; r < logs.size(); ++r) add_ranks(page, logs[r], which(r));
  if (logs.size() > 1) {
    page.section("differences", "Configurations that differ");
    add_differences(page, logs);
  }
  page.code(code_of(logs));
  for (size_t r = 0; r < logs.size(); ++r) add_job(page, logs[r], which(r));
  return page;
}

ReportJob job_of(const RunLog& log, const std::string& path) {
  ReportJob job;
  job.name = log.name;
  job.log = path;
  if (!log.steps.empty()) job.step = log.steps.rbegin()->first;
  job.last = log.last;
  job.finished = job.last > 0 && job.step >= job.last;
  const double ms = median(log.column("ms"));
  if (ms > 0) job.seconds = ms / 1e3;
  job.process = count_of(log.head, "process");
  if (const auto hosts = hosts_of(log.head); !hosts.empty()) job.host = hosts[0].first;
  return job;
}

std::string state_text(const ReportJob& job, JobState state) {
  const std::string at =
      fmt::format("step {} of {}", job.step, job.last > 0 ? std::to_string(job.last) : "?");
  if (state == JobState::ended)
    return fmt::format(
        "{}: the job has ended at {}, before its last one: it was stopped, or failed", job.name,
        at);
  return fmt::format(
      "{}: nothing was written for long after {}{}; is the job running?", job.name, at,
      job.seconds > 0 ? ", and a step takes " + pages::with_unit(job.seconds, "s") : "");
}

}  // namespace

ReportPage report_page(const std::vector<LogText>& texts, int refresh,
                       const std::function<JobState(const ReportJob&)>& state_of) {
  std::vector<RunLog> logs;
  std::string title;
  ReportPage result;
  result.finished = true;
  for (const LogText& log : texts) {
    for (RunLog& job : read_run_logs(log.text, log.path)) {
      result.finished = result.finished && job_of(job, log.path).finished;
      result.steps += job.steps.size();
      logs.push_back(std::move(job));
    }
    result.jobs.push_back(job_of(logs.back(), log.path));
    title += (title.empty() ? "" : ", ") + log.path;
  }
  std::vector<std::string> notes;
  bool goes_on = false;
  for (const ReportJob& job : result.jobs) {
    const JobState state = state_of ? state_of(job) : JobState::unknown;
    const bool ended = state == JobState::ended;
    if (!job.finished && (ended || state == JobState::silent))
      notes.push_back(state_text(job, state));
    goes_on = goes_on || state == JobState::running || (!ended && !job.finished);
  }
  try {
    Page page = page_of(logs, title, notes);
    if (goes_on) page.refresh(refresh);
    result.html = page.html();
  } catch (const Json::exception& e) {
    fail(ErrorKind::io, "'{}' is not what train --log writes: {}", title, e.what());
  }
  return result;
}

}  // namespace tessera::cli
