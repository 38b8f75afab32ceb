// The page that `tessera report` makes of a training job's log.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::cli {

struct ReportPage {
  std::string html;
  size_t steps = 0;  ///< steps that the log has
};

/// The page of a log, of which `text` is the content and `path` the name. Anybody may have written
/// the log: records that make no sense are left out. Throws an io error that names `path` if it is
/// no log of a training job.
ReportPage report_page(const std::string& text, const std::string& path);

}  // namespace tessera::cli
