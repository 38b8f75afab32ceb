// Runs the table of collectives on the ranks of an mpirun. The exit status is the number of wrong
// results, at most 100. Arguments: nothing, or
//   hosts N      pretend that every N ranks are a host, so that messages are sent
//   timeout      rank 1 stays away: the others must time out and say so
//   fail         rank 1 fails: the others must repeat its message
//   killed       rank 1 ends without a word: the others must notice soon
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "collectives/collectives_cases.h"
#include "tessera/error.h"

using namespace tessera;

namespace {

int expect_failure(Communicator& world, const std::string& mode) {
  std::vector<float> data(5000, 1.0f);
  Collective c;
  c.kind = CollectiveKind::all_reduce;
  c.count = 5000;
  c.in = c.out = data.data();
  c.site = {7, "grad of w"};
  world.set_timeout(mode == "timeout" ? 0.5 : 20);
  if (world.rank() == 1) {
    const auto operation = world.prepare(c);
    if (mode == "killed") kill(getpid(), SIGKILL);
    if (mode == "fail") world.fail("[load] no such file 'x'");
    // Longer than the others need, for the launcher ends the job when a rank is gone.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    _exit(0);
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    const auto operation = world.prepare(c);  // rank 1 may have failed by then
    operation->start();
    operation->wait();
  } catch (const Error& error) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const std::string text = error.what();
    std::fprintf(stderr, "rank %d after %.3f s: %s\n", world.rank(), took.count(), error.what());
    const std::string part = mode == "fail"      ? "rank 1 failed: [load] no such file 'x'"
                             : mode == "timeout" ? "rank 1"
                                                 : "gone";
    const bool good = error.kind() == ErrorKind::comm && text.find(part) != std::string::npos &&
                      text.find("[all_reduce] call 7 (grad of w)") == 0 && took.count() < 5;
    if (good) std::fprintf(stderr, "rank %d: as expected\n", world.rank());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return good ? 0 : 1;
  }
  std::fprintf(stderr, "rank %d: no error\n", world.rank());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  MpiOptions options;
  if (mode == "hosts" && argc > 2) options.ranks_per_host = std::atoi(argv[2]);
  if (mode != "hosts" && argc > 2) options.ranks_per_host = std::atoi(argv[2]);
  try {
    const auto world = make_mpi_world(options);
    if (!mode.empty() && mode != "hosts") return expect_failure(*world, mode);
    const int failures = collectives_test::collectives_selftest(*world);
    if (world->rank() == 0) std::fprintf(stderr, "%d wrong on rank 0\n", failures);
    return std::min(failures, 100);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 101;
  }
}
