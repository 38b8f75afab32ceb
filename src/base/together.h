// Works that run at the same time.
#pragma once

#include <functional>
#include <vector>

namespace tessera {

/// Runs the first work in the calling thread and each other one in a thread of its own. Returns
/// when all have ended. Throws the exception, of any type, of the first in the list that threw one.
void run_together(const std::vector<std::function<void()>>& works);

}  // namespace tessera
