// An interpreter that ends takes its lock for good: it ends a thread that waits for the lock with
// pthread_exit (before Python 3.14), which unwinds the C++ frames below, destructors among them,
// and so aborts the process. A thread that would wait therefore sleeps instead. Whoever is about to
// wait is counted before it looks whether that time has come, and the interpreter's thread looks at
// the count after it said so, with the lock given away: so none is missed.
#include "gil.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tessera::python {

namespace {

std::atomic<int> inside{0};
std::atomic<bool> ending{false}, over{false};
std::atomic<std::thread::id> ender{};

/// A child has none of its parent's threads.
[[maybe_unused]] const int forks = pthread_atfork(nullptr, nullptr, [] { inside = 0; });

bool is_over(const std::atomic<bool>& said) {
  return said && ender.load() != std::this_thread::get_id();
}

[[noreturn]] void sleep_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

ReleaseGil::ReleaseGil() : state_((++inside, PyEval_SaveThread())) {
  if (!is_over(ending)) return;
  --inside;
  sleep_for_ever();
}

ReleaseGil::~ReleaseGil() {
  if (is_over(ending)) {
    --inside;
    sleep_for_ever();
  }
  PyEval_RestoreThread(state_);
  --inside;
}

AcquireGil::AcquireGil() {
  if (is_over(over)) sleep_for_ever();
  state_ = PyGILState_Ensure();
}

void stop_other_threads(double seconds) {
  ender = std::this_thread::get_id();
  ending = true;
  PyThreadState* const state = PyEval_SaveThread();
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (inside > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  over = true;
  PyEval_RestoreThread(state);
}

}  // namespace tessera::python
