#include "cli/run_log.h"

#include <cmath>
#include <sstream>

#include "base/fail.h"
#include "base/json.h"
#include "cli/stragglers.h"

namespace tessera::cli {

namespace {

using Json = nlohmann::json;

int64_t step_of(const Json& record) {
  const auto it = record.find("step");
  return it != record.end() && it->is_number_integer() ? it->get<int64_t>() : -1;
}

void add_step(const Json& record, int64_t step, RunLog& log) {
  if (!log.steps.empty() && step <= log.steps.rbegin()->first && step > log.again) ++log.back;
  std::vector<double>& numbers = log.steps[step];
  numbers.clear();
  for (const auto& [name, value] : record.items()) {
    if (!value.is_number()) continue;
    const size_t at = log.fields.emplace(name, log.fields.size()).first->second;
    if (numbers.size() <= at) numbers.resize(at + 1, NAN);
    numbers[at] = value.get<double>();
  }
  if (const int64_t steps = count_of(record, "steps"); steps > 0) log.last = steps;
}

/// Adds the lines of code of a record to those that are known, by file and number.
void add_code(const Json& record, Json& code) {
  const auto given = record.find("code");
  if (given == record.end() || !given->is_object()) return;
  for (const auto& [file, lines] : given->items()) {
    for (const auto& [number, text] : lines.items()) {
      if (text.is_string()) code[file][number] = text;
    }
  }
}

/// An event where a rank begins to be slow: not one for every stretch in which it still is.
void add_slow_rank(const Json& record, int64_t step, RunLog& log) {
  const double rank = number_of(record, "slow_rank");
  if (!(rank >= 0) || !(rank < 1e9)) return;
  const auto r = static_cast<int64_t>(rank);
  const auto known = log.told_slow.find(r);
  if (known == log.told_slow.end() || step > known->second + Stragglers::kWindow)
    log.events.push_back({step, "slow rank",
                          record.contains("why") ? text_of(record["why"]) : fmt::format("{}", r)});
  log.told_slow[r] = step;
}

/// The steps so far may come once more.
void add_return(const std::string& kind, const std::string& text, int64_t step, RunLog& log) {
  log.events.push_back({step, kind, text});
  if (!log.steps.empty()) log.again = log.steps.rbegin()->first;
}

void add_record(const Json& record, RunLog& log) {
  const int64_t step = step_of(record);
  if (record.contains("config")) {
    if (!log.head.is_null() && !log.steps.empty())
      add_return("resumed", "", log.steps.rbegin()->first, log);
    log.head = record;
  }
  if (record.contains("startup")) log.startup = record["startup"];
  if (record.contains("profile")) log.profile = record["profile"];
  if (record.contains("time_line")) log.time_line = record["time_line"];
  if (record.contains("kernels")) log.kernels = record["kernels"];
  if (record.contains("buckets")) log.buckets = record["buckets"];
  add_code(record, log.code);
  if (record.contains("loss")) add_step(record, step, log);
  if (record.contains("eval_loss")) log.evaluations[step] = record;
  if (record.contains("samples")) log.samples[step] = record["samples"];
  if (record.contains("save_ms")) {
    log.saves[step] = record;
    log.events.push_back({step, "save", ""});
  }
  if (record.contains("stopped_early")) log.last = step;
  if (record.contains("spike")) log.events.push_back({step, "spike", text_of(record["spike"])});
  if (record.contains("slow_rank")) add_slow_rank(record, step, log);
  if (record.contains("rolled_back_to"))
    add_return("rollback", "rolled back to step " + text_of(record["rolled_back_to"]), step, log);
}

/// Whether a first line begins another job: nothing was done before, but the log has steps.
bool begins_job(const Json& record, const RunLog& log) {
  return record.contains("config") && !log.steps.empty() && number_of(record, "first_step") == 0;
}

}  // namespace

double number_of(const Json& record, const char* field) {
  const auto it = record.find(field);
  return it != record.end() && it->is_number() ? it->get<double>() : NAN;
}

int64_t count_of(const Json& record, const char* field) {
  const double number = number_of(record, field);
  return number > 0 && number < 1e15 ? static_cast<int64_t>(number) : 0;
}

std::vector<double> RunLog::column(const std::string& field) const {
  std::vector<double> values;
  const auto at = fields.find(field);
  for (const auto& [step, numbers] : steps)
    values.push_back(at != fields.end() && at->second < numbers.size() ? numbers[at->second] : NAN);
  return values;
}

std::vector<double> RunLog::step_numbers() const {
  std::vector<double> values;
  for (const auto& [step, numbers] : steps) values.push_back(static_cast<double>(step));
  return values;
}

std::vector<RunLog> read_run_logs(const std::string& text, const std::string& path) {
  std::istringstream in(text);
  std::vector<RunLog> logs(1);
  logs[0].name = path;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const Json record = parse_json(line);
    if (!record.is_object()) {
      logs.back().cut = in.peek() == std::istringstream::traits_type::eof();
      if (logs.back().cut) break;
      if (number > 1) {
        ++logs.back().torn;
        continue;
      }
      fail(ErrorKind::io, "line {} of '{}' is not a JSON object; is it what train --log wrote?",
           number, path);
    }
    const auto config = record.find("config");
    if (config != record.end() && !config->is_object())
      fail(ErrorKind::io, "'{}' is not what train --log writes: the config of line {} is no object",
           path, number);
    if (begins_job(record, logs.back())) {
      logs.emplace_back();
      logs.back().name = fmt::format("{} ({})", path, logs.size());
    }
    add_record(record, logs.back());
  }
  if (logs[0].head.is_null() && logs[0].steps.empty())
    fail(ErrorKind::io,
         "'{}' has no step of a training job; it was cut short, or is not what train --log writes",
         path);
  return logs;
}

}  // namespace tessera::cli
