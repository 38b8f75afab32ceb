// tessera report: the page of one or more logs, once or while the jobs go on.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/report_page.h"
#include "cli/terminal.h"

namespace tessera::cli {

namespace {

struct LogFlags : Invocation {
  std::vector<std::string> logs;
  std::string out;
  bool follow = false;  ///< until the jobs are finished
  void declare(FlagTable& table) {
    table.add(
        {{"LOG",
          &logs,
          kOneProcess,
          "Files that train --log wrote, to be compared on one page.",
          {},
          true},
         {"--out FILE", &out, kOneProcess,
          "File of the page. The default is the first log's name with .html."},
         {"--follow", &follow, kOneProcess,
          "Writes the page again while the jobs go on, until they are finished, and waits for logs "
          "that are not there yet. A browser shows it anew by itself."}});
  }
};

constexpr int kRefresh = 5;           ///< seconds between loads of a page that is followed
constexpr double kLeastSilence = 60;  ///< seconds
constexpr double kSilentSteps = 20;   ///< steps without a line after which a job may have ended

double seconds_since_written(const std::string& path) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration<double>(std::filesystem::file_time_type::clock::now() - written)
      .count();
}

JobState state_of(const ReportJob& job) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  if (job.process > 0 && job.host == host)
    return kill(static_cast<pid_t>(job.process), 0) != 0 && errno == ESRCH ? JobState::ended
                                                                           : JobState::running;
  const double silence = std::max(kLeastSilence, kSilentSteps * job.seconds);
  return seconds_since_written(job.log) > silence ? JobState::silent : JobState::unknown;
}

/// The logs, or none if one is not there yet or has no whole line.
std::vector<LogText> read_begun(const std::vector<std::string>& paths) {
  std::vector<LogText> logs;
  for (const std::string& path : paths) {
    if (!is_there(path)) return {};
    logs.push_back({read_text_file("the log", path), path});
    if (logs.back().text.find('\n') == std::string::npos) return {};
  }
  return logs;
}

/// Waits for logs that are not there yet.
void await(const std::vector<std::string>& paths) {
  if (!read_begun(paths).empty()) return;
  for (const std::string& path : paths) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty() && !is_folder(folder))
      fail(ErrorKind::io, "cannot wait for '{}': there is no folder '{}'", path, folder.string());
  }
  say("waiting for {}\n", fmt::join(paths, ", "));
  std::fflush(stdout);
  while (read_begun(paths).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

/// Says how the jobs have ended. Throws an io error for one that has not reached its last step.
int end_of(const ReportPage& page, const std::string& out) {
  say("{}: {} steps\n", out, page.steps);
  std::fflush(stdout);
  for (const ReportJob& job : page.jobs) {
    if (!job.finished)
      fail(ErrorKind::io,
           "the job of '{}' has ended at step {} of {}: it was stopped, or failed; follow its log "
           "again when it is resumed",
           job.log, job.step, job.last > 0 ? std::to_string(job.last) : "?");
  }
  return 0;
}

/// Writes the page whenever a log has grown or a job's state has changed, until all have ended.
int follow(const std::vector<std::string>& paths, const std::string& out) {
  await(paths);
  std::vector<ReportJob> jobs;
  std::vector<JobState> shown;
  std::vector<size_t> sizes;
  for (bool first = true;; first = false) {
    // States come before what is read: a process that has ended writes nothing behind that.
    std::vector<JobState> states;
    for (const ReportJob& job : jobs) states.push_back(state_of(job));
    const std::vector<LogText> logs = read_begun(paths);
    std::vector<size_t> read;
    for (const LogText& log : logs) read.push_back(log.text.size());
    if (!logs.empty() && (read != sizes || states != shown)) {
      size_t next = 0;
      const ReportPage made = report_page(logs, kRefresh, [&](const ReportJob&) {
        return next < states.size() ? states[next++] : JobState::unknown;
      });
      write_text_file(out, made.html);
      if (first) say("{}: {} steps\n", out, made.steps);
      std::fflush(stdout);
      jobs = made.jobs;
      sizes = std::move(read);
      shown = states;
      const auto is_over = [&](size_t i) {
        return i < states.size() && (states[i] == JobState::ended ||
                                     (jobs[i].finished && states[i] != JobState::running));
      };
      size_t over = 0;
      while (over < jobs.size() && is_over(over)) ++over;
      if (over == jobs.size()) return end_of(made, out);
    }
    if (!first) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

int run_report(const LogFlags& args, const std::vector<ModelSpec>&) {
  const std::string& path = args.logs[0];
  std::string out = args.out;
  if (out.empty()) out = path.substr(0, path.rfind(".jsonl")) + ".html";
  for (const std::string& log : args.logs)
    TESSERA_REQUIRE(out != log, "the page would replace the log '{}'; choose another --out", log);
  require_writable(out);
  if (args.follow) return follow(args.logs, out);
  std::vector<LogText> logs;
  for (const std::string& log : args.logs) logs.push_back({read_text_file("the log", log), log});
  // A log may be old: that nothing is written says nothing then.
  const ReportPage made = report_page(logs, 0, [](const ReportJob& job) {
    const JobState state = state_of(job);
    return state == JobState::silent ? JobState::unknown : state;
  });
  write_text_file(out, made.html);
  say("{}: {} steps\n", out, made.steps);
  return 0;
}

}  // namespace

Command report_command() {
  return command("report", "Writes logs of train as one HTML page, which needs no network.",
                 "tessera report run.jsonl --out run.html\n"
                 "  tessera report warm.jsonl cold.jsonl --out both.html\n"
                 "  tessera report run.jsonl --follow",
                 Processes::first, run_report);
}

}  // namespace tessera::cli
