// The page that `tessera report` makes of the logs of training jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::cli {

struct LogText {
  std::string text, path;  ///< the content; the name for the page and for messages
};

/// A job of a log, as far as it says.
struct ReportJob {
  std::string name, log, host;  ///< log: the path
  int64_t process = 0;          ///< on `host`; 0: the log does not say
  int64_t step = 0, last = 0;   ///< reached, and the last one to come
  double seconds = 0;           ///< of a step, median
  bool finished = false;        ///< it reached its last step
};

/// What is known of a job besides: silent for longer than its steps explain; ended.
enum class JobState : uint8_t { unknown, running, silent, ended };

struct ReportPage {
  std::string html;
  size_t steps = 0;             ///< steps that the logs have
  std::vector<ReportJob> jobs;  ///< those that write the logs: the last of each
  bool finished = false;        ///< every job reached its last step
};

/// One page of all logs. Anybody may have written them: records that make no sense are left out. A
/// log of two jobs, one behind the other, counts as two. `refresh`: seconds after which a browser
/// loads the page again, while a job goes on; 0: never. Throws an io error that names the path of
/// what is no log of a training job.
ReportPage report_page(const std::vector<LogText>& logs, int refresh = 0,
                       const std::function<JobState(const ReportJob&)>& state_of = {});

}  // namespace tessera::cli
