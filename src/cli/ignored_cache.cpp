#include "cli/ignored_cache.h"

#include <cstdio>
#include <mutex>
#include <set>

#include "base/env.h"
#include "base/printable.h"

namespace tessera::cli {

void warn_of_ignored_cache(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  if (read_environment().rank > 0 || !known.insert(text).second) return;
  std::fprintf(stderr, "tessera: warning: %s\n", printable(text).c_str());
}

}  // namespace tessera::cli
