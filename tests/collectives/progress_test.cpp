#include "collectives/progress.h"

#include <thread>

#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Counts without atomics: whoever drives holds the lock.
struct Counter final : Driven {
  void drive() override { ++times; }
  int times = 0;
};

int times_of(Progress& progress, const Counter& counter) {
  const auto held = progress.lock();
  return counter.times;
}

TEST_CASE("what is under way is driven while nobody else does", "[collectives]") {
  Progress progress(true, std::chrono::microseconds(100));
  Counter a, b;
  progress.add(a);
  progress.add(b);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (times_of(progress, a) < 3 && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  CHECK(times_of(progress, a) >= 3);
  CHECK(times_of(progress, b) >= 2);
  progress.remove(a);
  const int before = a.times;  // nobody else touches it now
  while (times_of(progress, b) < before + 10 && std::chrono::steady_clock::now() < end) {
    const auto held = progress.lock();  // the rank drives, too
    b.drive();
  }
  CHECK(a.times == before);
  progress.remove(b);
}

TEST_CASE("what a rank drives itself is left alone, and all where no thread may", "[collectives]") {
  Counter counter;
  Progress busy(true, std::chrono::seconds(1000));
  {
    const auto held = busy.lock();
    busy.note();
  }
  busy.add(counter);
  busy.remove(counter);
  Progress none(false, std::chrono::microseconds(1));
  none.add(counter);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  none.remove(counter);
  CHECK(counter.times == 0);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
