#include "kernels/cpu/thread_pool.h"

#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/fail.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tessera {

namespace {

constexpr double kSpinSeconds = 50e-6;
constexpr int kPauses = 64;  // of some microseconds in all

void relax() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

/// Waits until `done`, or for kSpinSeconds. After some microseconds others may have the core: what
/// is waited for may need it.
template <class Done>
bool spin_until(const Done& done) {
  for (int i = 0; i < kPauses; ++i, relax()) {
    if (done()) return true;
  }
  const double until = host_seconds() + kSpinSeconds;
  while (!done()) {
    if (host_seconds() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

ThreadPool::ThreadPool(int threads)
    : errors_(static_cast<size_t>(threads)), taken_(static_cast<size_t>(threads)) {}

void ThreadPool::start() {
  if (!workers_.empty()) return;
  try {
    for (int part = 1; part < size(); ++part)
      workers_.emplace_back(
          [this, part, round = round_.load(std::memory_order_relaxed)] { work(part, round); });
  } catch (const std::system_error& e) {
    const size_t started = workers_.size() + 1;
    stop();
    fail(ErrorKind::usage,
         "a rank is given {} threads, and the system starts {}: {}; give fewer (--threads)", size(),
         started, e.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

bool ThreadPool::take(int part, uint32_t round) {
  uint32_t before = round - 1;
  return taken_[static_cast<size_t>(part)].compare_exchange_strong(before, round,
                                                                   std::memory_order_acq_rel);
}

void ThreadPool::make(int part) {
  try {
    call_(body_, part);
  } catch (...) {
    errors_[static_cast<size_t>(part)] = std::current_exception();
  }
  busy_.fetch_sub(1, std::memory_order_release);
}

void ThreadPool::work(int part, uint32_t seen) {
  while (true) {
    if (!spin_until([&] { return round_.load(std::memory_order_acquire) != seen; }))
      round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);  // it may have slept through some
    if (stop_.load(std::memory_order_relaxed)) return;
    if (take(part, seen)) make(part);
  }
}

void ThreadPool::run_parts(Call call, void* body) {
  call_ = call;
  body_ = body;
  busy_.store(size(), std::memory_order_relaxed);
  const uint32_t round = round_.fetch_add(1, std::memory_order_release) + 1;
  round_.notify_all();
  for (int i = 0; i < size(); ++i) {
    const int part = i == 0 ? 0 : size() - i;  // threads wake in their order
    if (take(part, round)) make(part);
  }
  while (!spin_until([&] { return busy_.load(std::memory_order_acquire) == 0; })) {
  }
  for (std::exception_ptr& error : errors_) {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
}

}  // namespace tessera
