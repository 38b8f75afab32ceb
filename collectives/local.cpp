// Ranks that are threads of this process. All addresses are valid in all of them, so a token is the
// pointer itself, and readers only have to wait for the rendezvous.
#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <set>

#include "base/fail.h"
#include "collectives/peer_group.h"

namespace tessera {
namespace {

/// Outlives every rank's Communicator, because a slow rank may still look at the cells of one that
/// has left.
struct LocalWorld {
  explicit LocalWorld(int size) : statuses(static_cast<size_t>(size)) {}
  ~LocalWorld() {
    for (void* block : blocks) std::free(block);
  }
  std::deque<Status> statuses;
  Alarm alarm;
  bool crowded = false;
  std::mutex mutex;  ///< guards blocks
  std::set<void*> blocks;
};

/// Large blocks use large pages if available: fewer TLB misses, and hardware prefetch across 4 KiB.
constexpr size_t kLargePage = size_t{2} << 20;

class LocalFabric final : public Fabric {
 public:
  LocalFabric(std::shared_ptr<LocalWorld> world, int rank)
      : Fabric(rank), world_(std::move(world)) {}

  const char* name() const override { return "threads"; }
  void* map(int64_t bytes) override {
    const size_t rounded = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    const bool large = rounded >= kLargePage;
    void* block = nullptr;
    if (posix_memalign(&block, large ? kLargePage : 64, rounded) != 0) {
      tessera::fail(ErrorKind::device, "[allocate] no memory for {} bytes on rank {}", bytes,
                    rank());
    }
#if defined(MADV_HUGEPAGE)
    if (large) madvise(block, rounded / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
    std::memset(block, 0, rounded);
    const std::lock_guard lock(world_->mutex);
    world_->blocks.insert(block);
    return block;
  }
  void unmap(void* memory) noexcept override {
    const std::lock_guard lock(world_->mutex);
    world_->blocks.erase(memory);
    std::free(memory);
  }
  bool visible(const void*, int64_t) const override { return true; }
  Token token(const void* memory) const override {
    return {0, 0, 0, static_cast<int64_t>(reinterpret_cast<intptr_t>(memory))};
  }
  void* resolve(int, const Token& token) override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(token.offset));
  }
  Status* status(int rank) override { return &world_->statuses[static_cast<size_t>(rank)]; }
  Alarm& alarm() override { return world_->alarm; }
  void recover() override { world_->alarm.state.store(0); }
  bool alive(int) override { return true; }
  bool crowded() const override { return world_->crowded; }

 private:
  std::shared_ptr<LocalWorld> world_;
};

int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_world(int size) {
  TESSERA_REQUIRE(size >= 1, "[make_local_world] {} ranks; give 1 or more", size);
  auto world = std::make_shared<LocalWorld>(size);
  world->crowded = size > processors();
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  std::vector<std::shared_ptr<Fabric>> fabrics;
  std::vector<std::unique_ptr<Mailbox>> mailboxes;
  std::vector<Mailbox::Address> addresses;
  for (int r = 0; r < size; ++r) {
    fabrics.push_back(std::make_shared<LocalFabric>(world, r));
    mailboxes.push_back(std::make_unique<Mailbox>(fabrics[r], ranks, r));
    addresses.push_back(mailboxes[r]->address());
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int r = 0; r < size; ++r) {
    mailboxes[r]->connect(addresses);
    communicators.push_back(
        std::make_unique<PeerCommunicator>(fabrics[r], ranks, r, std::move(mailboxes[r])));
  }
  return communicators;
}

}  // namespace tessera
