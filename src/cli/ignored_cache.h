// The warning for a file of the cache folder that cannot be used.
#pragma once

#include <string>

namespace tessera::cli {

/// "tessera: warning: <text>" on stderr: once per text and process, and of a launched job only by
/// rank 0. `text` names the file, the cause, and what is done instead.
void warn_of_ignored_cache(const std::string& text);

}  // namespace tessera::cli
