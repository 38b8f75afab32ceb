// The page that `tessera report` makes of the logs of training jobs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::cli {

struct LogText {
  std::string text, path;  ///< the content; the name for the page and for messages
};

struct ReportPage {
  std::string html;
  size_t steps = 0;       ///< steps that the logs have
  bool finished = false;  ///< every job reached its last step
};

/// One page of all logs. Anybody may have written them: records that make no sense are left out. A
/// log of two jobs, one behind the other, counts as two. `refresh`: seconds after which a browser
/// loads the page again, while a job is not finished; 0: never. Throws an io error that names the
/// path of what is no log of a training job.
ReportPage report_page(const std::vector<LogText>& logs, int refresh = 0);

}  // namespace tessera::cli
