#include "cli/report_page.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/json.h"
#include "base/median.h"
#include "base/words.h"
#include "cli/plain_charts.h"
#include "cli/run_log.h"
#include "pages/page.h"
#include "tessera/collectives.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

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
