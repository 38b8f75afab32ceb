// A machine on which something else runs is measured too slow.
#pragma once

#include <string>

namespace tessera::cli {

/// A note for a profile that was measured while others worked; "" if they took less than half a
/// processor or a twentieth of them. `load`: the load average (runnable processes) before.
std::string busy_note(double load, int processors);

}  // namespace tessera::cli
