#include "kernels/cpu/thread_pool.h"

#include <system_error>
#include <utility>

#include "base/fail.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tessera {

namespace {

constexpr int kSpins = 4000;  // about 50 microseconds

void relax() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : errors_(static_cast<size_t>(threads)) {
  try {
    for (int part = 1; part < threads; ++part) workers_.emplace_back([this, part] { work(part); });
  } catch (const std::system_error& e) {
    const size_t started = workers_.size() + 1;
    stop();
    fail(ErrorKind::usage,
         "a rank is given {} threads, and the system starts {}: {}; give fewer (--threads)",
         threads, started, e.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::work(int part) {
  uint32_t seen = 0;
  while (true) {
    for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) relax();
    round_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    try {
      call_(body_, part);
    } catch (...) {
      errors_[static_cast<size_t>(part)] = std::current_exception();
    }
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::run_parts(Call call, void* body) {
  call_ = call;
  body_ = body;
  busy_.store(size() - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  try {
    call(body, 0);
  } catch (...) {
    errors_[0] = std::current_exception();
  }
  for (int i = 0; busy_.load(std::memory_order_acquire) > 0; ++i) {
    i < kSpins ? relax() : std::this_thread::yield();
  }
  for (std::exception_ptr& error : errors_) {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
}

}  // namespace tessera
