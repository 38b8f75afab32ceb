#include "base/threads.h"

#include <atomic>
#include <new>
#include <stdexcept>

#include "support/catch.h"

namespace tessera::test {

TEST_CASE("an exception of any type in a thread reaches the caller when all works have ended") {
  for (const int throws : {0, 1, 2}) {
    std::atomic<int> ended = 0;
    std::vector<std::function<void()>> works;
    for (int i = 0; i < 3; ++i) {
      works.push_back([&, i] {
        ++ended;
        if (i == throws) throw std::out_of_range("index");
      });
    }
    CHECK_THROWS_AS(run_together(works), std::out_of_range);
    CHECK(ended == 3);
  }
  CHECK_THROWS_AS(run_together({[] {}, [] { throw std::bad_alloc(); }}), std::bad_alloc);
  CHECK_THROWS_AS(run_together({[] { throw 1; }, [] { throw std::bad_alloc(); }}), int);
  CHECK_NOTHROW(run_together({}));
}

}  // namespace tessera::test
