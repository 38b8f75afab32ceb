// The limits of a host's memory, read from folders that stand for /proc and /sys.
#include "base/host_memory.h"

#include <unistd.h>

#include <filesystem>

#include "collectives/communicator.h"
#include "runtime/device.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/io_folder.h"

namespace tessera::test {
namespace TESSERA_FILE {

struct Host : Folder {
  explicit Host(const std::string& cgroup) {
    for (const char* folder : {"proc/self", "sys/fs/cgroup/a/b", "sys/fs/cgroup/memory/job"})
      std::filesystem::create_directories((*this)(folder));
    write("proc/meminfo", "MemTotal:       1000000 kB\nMemFree: 5 kB\nSwapTotal:  500000 kB\n");
    write("proc/self/statm", "2000 1000 3 4 0 5 0\n");
    write("proc/self/cgroup", cgroup);
    write("sys/fs/cgroup/a/memory.max", "300000000\n");
    write("sys/fs/cgroup/a/b/memory.max", "max\n");
    write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "200000000\n");
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  }
  std::vector<HostLimit> limits() const {
    std::vector<HostLimit> all = memory_limits(dir);
    std::erase_if(all, [](const HostLimit& limit) { return !limit.shared; });  // of this test
    return all;
  }
};

TEST_CASE("the memory of a host is that of the cgroup and of those above it") {
  const auto two = Host("0::/a/b\n").limits();
  REQUIRE(two.size() == 2);
  CHECK(two[0].of == "the cgroup '/a' (memory.max)");
  CHECK(two[0].bytes == 300000000);
  CHECK(two[0].used == 1000 * sysconf(_SC_PAGESIZE));
  CHECK(two[1].bytes == int64_t{1500000} << 10);
  const auto one = Host("12:cpu,cpuacct:/x\n4:memory:/job\n").limits();
  REQUIRE(one.size() == 2);
  CHECK(one[0].of == "the cgroup '/job' (memory.limit_in_bytes)");
  CHECK(one[0].bytes == 200000000);
  CHECK(Host("").limits().size() == 1);
  CHECK(Host("junk\n0::\n").limits().size() == 1);
}

TEST_CASE("ranks whose memory is not there are refused with the limit") {
  const auto limits = Host("0::/a\n").limits();
  CHECK_NOTHROW(require_memory({70000000, "", 4, 1}, limits));
  expect_error(ErrorKind::unsupported,
               {"4 ranks need 320.00 MB (each 80 of x), but the cgroup '/a' (memory.max) allows "
                "300.00 MB, of which this process uses ",
                "--memory LIMIT"},
               [&] {
                 require_memory({80000000, "80 of x", 4, 1}, limits);
               });
  const std::vector<HostLimit> space = {{"the address space (ulimit -v)", 1000000000, 0, false}};
  CHECK_NOTHROW(require_memory({200000000, "", 64, 2}, space));
  expect_error(ErrorKind::unsupported,
               {"3 ranks need 1.23 GB (each parts, 209.72 MB that libraries reserve)"}, [&] {
                 require_memory({200000000, "parts", 64, 3}, space);
               });
  CHECK(no_memory_text(space) ==
        "the system gives this process no more memory; the address space (ulimit -v) allows 1.00 "
        "GB, of which it uses 0 B");
}

TEST_CASE("memory that the system does not give is no failed device") {
  const auto world = make_local_world(1);
  const auto device = make_cpu_device(*world[0], 1, 0);
  expect_error(ErrorKind::unsupported,
               {"[allocate] no memory for 1125899906842624 bytes on rank 0",
                "more ranks or a smaller model", "--memory LIMIT"},
               [&] { device->allocate(int64_t{1} << 50, "transient"); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
