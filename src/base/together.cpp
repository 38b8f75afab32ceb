#include "base/together.h"

#include <exception>
#include <thread>

namespace tessera {

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
    for (size_t i = 1; i < works.size(); ++i) threads.emplace_back(run, i);
    if (!works.empty()) run(0);
  }
  for (const std::exception_ptr& e : thrown) {
    if (e) std::rethrow_exception(e);
  }
}

}  // namespace tessera
