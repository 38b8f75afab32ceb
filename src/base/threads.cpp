#include "base/threads.h"

#include <exception>
#include <system_error>

#include "base/fail.h"

namespace tessera {

std::thread start_thread(const std::string& of, std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& e) {
    fail(ErrorKind::unsupported,
         "the system starts no thread for {}: {}; raise the limit of processes (ulimit -u, or "
         "pids.max of the cgroup), or use fewer ranks or threads",
         of, e.code().message());
  }
}

void run_together(const std::vector<std::function<void()>>& works) {
  std::vector<std::exception_ptr> thrown(works.size());
  const auto run = [&](size_t i) {
    try {
      works[i]();
    } catch (...) {
      thrown[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    std::vector<size_t> own;
    for (size_t i = 0; i < works.size(); ++i) {
      try {
        if (i > 0) threads.emplace_back(run, i);
      } catch (const std::system_error&) {
        own.push_back(i);
      }
    }
    if (!works.empty()) run(0);
    for (const size_t i : own) run(i);
  }
  for (const std::exception_ptr& e : thrown) {
    if (e) std::rethrow_exception(e);
  }
}

}  // namespace tessera
