// A fork-join team makes each part of each run once, whether its threads are awake, asleep or not
// there.
#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/catch.h"

namespace tessera::test {
namespace TESSERA_FILE {

void check_parts(ThreadPool& pool, int runs) {
  std::vector<std::atomic<int>> made(static_cast<size_t>(pool.size()));
  for (int run = 1; run <= runs; ++run) {
    pool.run([&](int part) { ++made[static_cast<size_t>(part)]; });
    for (const std::atomic<int>& times : made) REQUIRE(times == run);
  }
}

TEST_CASE("a team makes each part once") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    check_parts(pool, 3);  // by the caller alone
    pool.start();
    check_parts(pool, 20'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // they fall asleep
    check_parts(pool, 3);
  }
}

TEST_CASE("the caller makes the parts of threads that are busy elsewhere") {
  ThreadPool pool(2);
  std::atomic<int> by_caller{0};
  const std::thread::id caller = std::this_thread::get_id();
  for (int run = 0; run < 100; ++run)
    pool.run([&](int) { by_caller += std::this_thread::get_id() == caller; });
  CHECK(by_caller == 200);  // nobody else was started
}

TEST_CASE("an exception of a part is that of the run, and the team goes on") {
  ThreadPool pool(4);
  pool.start();
  for (int thrown = 0; thrown < 4; ++thrown) {
    CHECK_THROWS_AS(pool.run([&](int part) {
      if (part == thrown) throw std::runtime_error("part");
    }),
                    std::runtime_error);
    check_parts(pool, 2);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
