// Clocks of several hosts beside each other: here of threads, each a process of its own to its
// Cluster, whose clocks are set apart.
#include "session/clock_sync.h"

#include <thread>

#include "collectives/communicator.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// What rank 0 finds where the clock of rank r is ahead[r] seconds ahead of this host's.
std::vector<double> offsets(const std::vector<double>& ahead) {
  auto worlds = make_local_world(static_cast<int>(ahead.size()));
  std::vector<std::vector<double>> found(ahead.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < ahead.size(); ++r) {
    ranks.emplace_back([&, r] {
      Cluster cluster = Cluster::adopt(std::move(worlds[r]));
      found[r] = clock_offsets(cluster, [&] { return host_seconds() + ahead[r]; });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& each : found) CHECK(each == found[0]);
  return found[0];
}

TEST_CASE("ranks with one clock are not apart at all", "[fast]") {
  CHECK(offsets({0, 0, 0}) == std::vector<double>{0, 0, 0});
}

TEST_CASE("ranks whose clocks are apart know by how much", "[fast]") {
  const std::vector<double> ahead = {100, 350, 0, 99};
  const std::vector<double> found = offsets(ahead);
  // A gather among threads takes microseconds, or a few slices of a busy machine.
  for (size_t r = 0; r < ahead.size(); ++r)
    CHECK(found[r] == Approx(ahead[r] - ahead[0]).margin(0.2));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
