#include "base/threads.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <new>
#include <stdexcept>

#include "support/catch.h"
#include "support/child_case.h"
#include "support/expect_error.h"

namespace tessera::test {
namespace TESSERA_FILE {

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

const char kInChild[] = "a process without room for the stack of a thread";

TEST_CASE(kInChild, "[.]") {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto used = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE));
  const rlimit limit{used + (rlim_t{1} << 20), RLIM_INFINITY};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  // Stacks of threads that ended are used again first.
  std::latch end(1);
  std::vector<std::thread> others;
  expect_error(ErrorKind::unsupported, {"the system starts no thread for rank 3: ", "ulimit -u"},
               [&] {
                 while (others.size() < 64)
                   others.push_back(start_thread("rank 3", [&] { end.wait(); }));
               });
  int done = 0;
  run_together({[&] { ++done; }, [&] { ++done; }, [&] { ++done; }});
  CHECK(done == 3);
  end.count_down();
  for (std::thread& other : others) other.join();
}

TEST_CASE("without room for threads works are done one after another") { check_in_child(kInChild); }

}  // namespace TESSERA_FILE
}  // namespace tessera::test
