#include "cli/busy_machine.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera::cli {

std::string busy_note(double load, int processors) {
  if (load < std::max(0.5, 0.05 * processors)) return "";
  return fmt::format(
      "the load average was {:.1f} on {} processor{} before this began, so others were at work and "
      "the profile says that this machine is slower than it is; calibrate again when it is idle",
      load, processors, processors == 1 ? "" : "s");
}

}  // namespace tessera::cli
