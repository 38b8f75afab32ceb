// Threads, and works that run at the same time.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace tessera {

/// Starts a thread for what `of` names ("rank 3"). Throws an error with the limits that may be
/// reached if the system starts no more of them.
std::thread start_thread(const std::string& of, std::function<void()> work);

/// Runs the first work in the calling thread and each other one in a thread of its own, or in the
/// calling one too if the system starts no more threads. Returns when all have ended. Throws the
/// exception, of any type, of the first in the list that threw one.
void run_together(const std::vector<std::function<void()>>& works);

}  // namespace tessera
