// tessera report: shows the log of a training job as a page without network access, scripts or a
// server. Unknown log lines are ignored.
#include "cli/report_page.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/chart.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/say.h"
#include "cli/units.h"

namespace tessera::cli {

namespace {

using Json = nlohmann::json;

/// The content of a log. Of steps that ran twice the last record counts.
struct RunLog {
  Json head, startup, profile, time_line;
  std::map<int64_t, Json> steps, evaluations, saves, samples;
  bool cut = false;  ///< the last line is incomplete: the job was killed while writing it
  int64_t torn = 0;  ///< number of other incomplete lines
};

RunLog read_log(const std::string& text, const std::string& path) {
  std::istringstream in(text);
  RunLog log;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const Json record = parse_json(line);
    if (!record.is_object()) {
      log.cut = in.peek() == std::istringstream::traits_type::eof();
      if (log.cut) break;
      if (number > 1) {
        ++log.torn;
        continue;
      }
      fail(ErrorKind::io, "line {} of '{}' is not a JSON object; is it what train --log wrote?",
           number, path);
    }
    const int64_t step =
        record.value("step", Json(-1)).is_number_integer() ? record.value("step", int64_t{-1}) : -1;
    if (record.contains("config")) log.head = record;
    if (record.contains("startup")) log.startup = record["startup"];
    if (record.contains("profile")) log.profile = record["profile"];
    if (record.contains("time_line")) log.time_line = record["time_line"];
    if (record.contains("loss")) log.steps[step] = record;
    if (record.contains("eval_loss")) log.evaluations[step] = record;
    if (record.contains("samples")) log.samples[step] = record["samples"];
    if (record.contains("save_ms")) log.saves[step] = record;
  }
  if (log.head.is_null() && log.steps.empty())
    fail(ErrorKind::io, "'{}' has no step of a training job; it is not what train --log writes",
         path);
  return log;
}

double number(const Json& record, const char* field) {
  const auto it = record.find(field);
  return it != record.end() && it->is_number() ? it->get<double>() : NAN;
}

std::string text(const Json& value) {
  return html_escape(value.is_string() ? value.get<std::string>() : value.dump());
}

Curve curve(const std::string& name, const std::map<int64_t, Json>& records, const char* field) {
  Curve c{name, {}};
  for (const auto& [step, record] : records)
    c.points.emplace_back(static_cast<double>(step), number(record, field));
  return c;
}

/// A column of a table of JSON objects: field, heading, unit. Columns with a unit are numeric.
struct Column {
  const char *field, *heading, *unit;
};
std::string table(const Json& rows, const std::vector<Column>& columns) {
  std::string html = "<table><tr>";
  for (const Column& c : columns) html += fmt::format("<th>{}</th>", c.heading);
  html += "</tr>";
  for (const Json& row : rows) {
    if (!row.is_object()) continue;
    html += "<tr>";
    for (const Column& c : columns) {
      const Json value = row.value(c.field, Json());
      const bool numeric = c.unit != nullptr && value.is_number();
      html += fmt::format("<td{}>{}</td>", numeric ? " class=\"n\"" : "",
                          numeric           ? with_unit(value.get<double>(), c.unit)
                          : value.is_null() ? std::string("-")
                                            : text(value));
    }
    html += "</tr>";
  }
  return html + "</table>";
}

/// The texts that the model wrote, by step.
std::string samples(const RunLog& log) {
  std::string html = "<table><tr><th>step</th><th>text</th></tr>";
  for (const auto& [step, texts] : log.samples) {
    for (const Json& sample : texts) {
      if (sample.is_object())
        html += fmt::format("<tr><td class=\"n\">{}</td><td><pre>{}</pre></td></tr>", step,
                            text(sample.value("text", Json(""))));
    }
  }
  return html + "</table>";
}

/// A table with the names and values of an object's fields.
std::string pairs(const Json& object) {
  std::string html = "<table>";
  for (const auto& [name, value] : object.items())
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>", html_escape(name), text(value));
  return html + "</table>";
}

std::string curves(const RunLog& log) {
  std::string html = svg_chart(
      "loss",
      {curve("training", log.steps, "loss"), curve("held out", log.evaluations, "eval_loss")},
      true);
  html += svg_chart("gradient norm", {curve("", log.steps, "grad_norm")}, true);
  html += svg_chart("learning rate", {curve("", log.steps, "lr")});
  html += svg_chart("tokens/s", {curve("", log.steps, "tokens_per_s")});
  html += svg_chart("ms of a step",
                    {curve("step", log.steps, "ms"), curve("slowest", log.steps, "slowest_ms"),
                     curve("median", log.steps, "median_ms")});
  if (!log.saves.empty())
    html += svg_chart("ms of a save", {curve("copy", log.saves, "save_ms"),
                                       curve("wait", log.saves, "save_wait_ms")});
  return html;
}

/// Bars with the shares of each part of the memory.
std::string memory_bars(const Json& memory) {
  double total = 0, x = 0;
  std::vector<std::pair<std::string, double>> parts;
  for (const char* name : {"params", "state", "inputs", "transient", "staging"}) {
    const double bytes = number(memory, name);
    if (bytes > 0) parts.emplace_back(name, bytes), total += bytes;
  }
  if (parts.empty()) return "<p>The log has no plan.</p>";
  std::string bars, key;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double width = 1000 * parts[i].second / total;
    bars += fmt::format(
        "<rect x=\"{:.1f}\" y=\"0\" width=\"{:.1f}\" height=\"30\" fill=\"{}\"><title>{} "
        "{}</title></rect>",
        x, width, html_colour(i), parts[i].first, with_unit(parts[i].second, "B"));
    key += fmt::format("<span><i style=\"background:{}\"></i>{} {}</span> ", html_colour(i),
                       parts[i].first, with_unit(parts[i].second, "B"));
    x += width;
  }
  std::string html = fmt::format(
      "<p>{} on a rank</p><svg class=\"bar\" viewBox=\"0 0 1000 30\" "
      "preserveAspectRatio=\"none\">{}</svg><p class=\"key\">{}</p>",
      with_unit(total, "B"), bars, key);
  if (memory.contains("at_peak"))
    html += table(memory["at_peak"],
                  {{"tensor", "largest at the peak", nullptr}, {"bytes", "bytes", "B"}});
  return html;
}

/// [name, op, milliseconds] of a step of the Program.
bool is_timed_step(const Json& s) {
  return s.is_array() && s.size() == 3 && s[0].is_string() && s[1].is_string() &&
         s[2].is_number() && s[2].get<double>() >= 0;
}

/// The steps of one run end to end; waits in their own row.
std::string time_line(const Json& steps) {
  double total = 0;
  for (const Json& s : steps) total += is_timed_step(s) ? s[2].get<double>() : 0;
  if (!(total > 0)) return "<p>Train with --profile to see where the time of a step goes.</p>";
  std::string bars;
  double x = 0;
  for (const Json& s : steps) {
    if (!is_timed_step(s)) continue;
    const double ms = s[2].get<double>(), width = 1000 * ms / total;
    const bool waits = s[1] == "wait" || find_collective(s[1].get<std::string>()).has_value();
    if (width > 0.05)
      bars += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"26\" fill=\"{}\"><title>{} {} "
          "{:.3f} ms</title></rect>",
          x, waits ? 32 : 2, width, html_colour(waits ? 1 : 0), text(s[0]), text(s[1]), ms);
    x += width;
  }
  return fmt::format(
      "<p>One step, {:.2f} ms on the first rank: kernels above, transfers and waits below.</p><svg "
      "class=\"line\" viewBox=\"0 0 1000 60\" preserveAspectRatio=\"none\">{}</svg>",
      total, bars);
}

constexpr const char* kStyle =
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1180px;padding:0 1em;"
    "color:#1a202c}h1{font-size:1.5em}h2{font-size:1.15em;border-bottom:1px solid "
    "#cbd5e0;margin-top:2em}table{border-collapse:collapse;margin:.5em 0;font-size:13px}th,td{"
    "text-align:left;padding:2px 10px 2px 0;vertical-align:top}td{font-family:ui-monospace,"
    "monospace}td.n{text-align:right}.chart{width:560px;max-width:100%;margin:0 12px 12px "
    "0}.chart path{fill:none;stroke-width:1.5}.chart .grid{stroke:#e2e8f0}.chart "
    ".tick{font-size:11px}.chart text{font-family:system-ui,sans-serif;font-size:12px}.chart "
    ".title{font-weight:600}.bar,.line{width:100%}.bar{height:30px}.line{height:60px}.key "
    "i{display:inline-block;width:11px;height:11px;margin-right:5px}.key span{margin-right:18px}"
    "details{margin:.5em 0}";

std::string page(const RunLog& log, const std::string& path) {
  const Json head = log.head.is_null() ? Json::object() : log.head;
  const Json none = Json::object(), empty = Json::array();
  const Json config = head.value("config", none);
  const auto section = [](const char* id, const char* title, const std::string& body) {
    return fmt::format("<section id=\"{}\"><h2>{}</h2>{}</section>\n", id, title, body);
  };
  const Json* last = log.steps.empty() ? nullptr : &log.steps.rbegin()->second;
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</"
      "h1>"
      "<p>{2} ranks ({3}), Tessera {4}, Program {5}{6}{7}</p>\n",
      html_escape(path), kStyle, text(head.value("ranks", Json("?"))),
      text(head.value("backend", Json("?"))), text(head.value("version", Json("?"))),
      text(head.value("program", Json("?"))),
      last ? fmt::format("; step {} of {}, loss {:.4f}, {:.0f} skipped", log.steps.rbegin()->first,
                         text(last->value("steps", Json("?"))), number(*last, "loss"),
                         last->contains("skipped") ? number(*last, "skipped") : 0)
           : "; no step yet",
      log.torn > 0 ? fmt::format("; {} of the log {} not whole",
                                 log.torn == 1 ? "1 line" : fmt::format("{} lines", log.torn),
                                 log.torn == 1 ? "is" : "are")
      : log.cut ? "; the log ends in the middle of a line"
                   : "");
  html += section("curves", "Curves", curves(log));
  if (!log.samples.empty()) html += section("samples", "Samples", samples(log));
  html += section("layout", "Layout",
                  pairs({{"mesh", config.value("layout.mesh", Json("?"))},
                         {"rules", config.value("layout.rules", Json("?"))}}));
  html += section("memory", "Memory plan", memory_bars(head.value("memory", none)));
  html += section("communication", "Communication of a step",
                  table(head.value("communication", empty), {{"kind", "collective", nullptr},
                                                             {"axes", "axes", nullptr},
                                                             {"tensor", "tensor", nullptr},
                                                             {"rule", "because of", nullptr},
                                                             {"source", "source", nullptr},
                                                             {"bytes", "sent by a rank", "B"}}));
  html += section("timeline", "Timeline", time_line(log.time_line));
  if (!log.profile.is_null())
    html += section("profile", "Where the time and memory of a step go",
                    table(log.profile, {{"ms", "ms", ""},
                                        {"op", "op", nullptr},
                                        {"source", "source", nullptr},
                                        {"name", "first name", nullptr},
                                        {"flops", "operations", "FLOP"},
                                        {"bytes", "touched or sent", "B"},
                                        {"result_bytes", "results", "B"}}));
  if (!log.startup.is_null()) html += section("start", "Start, in seconds", pairs(log.startup));
  return html +
         section("configuration", "Configuration",
                 "<details><summary>all keys</summary>" + pairs(config) + "</details>") +
         "</body></html>\n";
}

}  // namespace

ReportPage report_page(const std::string& text, const std::string& path) {
  const RunLog log = read_log(text, path);
  try {
    return {page(log, path), log.steps.size()};
  } catch (const Json::exception& e) {
    fail(ErrorKind::io, "'{}' is not what train --log writes: {}", path, e.what());
  }
}

int report(const Arguments& args) {
  const std::string& path = args.words[0];
  std::string out = args.out;
  if (out.empty()) out = path.substr(0, path.rfind(".jsonl")) + ".html";
  require(out != path, "the page would replace the log '{}'; choose another --out", path);
  require_place_for(out);
  const ReportPage made = report_page(read_text_file("the log", path), path);
  write_text_file(out, made.html);
  say("{}: {} steps\n", out, made.steps);
  return 0;
}

}  // namespace tessera::cli
