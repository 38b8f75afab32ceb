// Groups of the emulated card: ranks are threads, and a call ends when all have made theirs.
#include <condition_variable>
#include <cstring>

#include "base/fail.h"
#include "collectives/communicator.h"
#include "cuda_emulator.h"

namespace tessera::test {

struct CudaEmulator::Group {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, arrived = 0;
  int64_t round = 0;
  std::vector<const void*> in;

  /// Returns when all ranks are here; a rank that waits for 20 s is an error.
  void meet() {
    std::unique_lock lock(mutex);
    const int64_t mine = round;
    if (++arrived == size) {
      arrived = 0;
      ++round;
      changed.notify_all();
      return;
    }
    check(changed.wait_for(lock, std::chrono::seconds(20), [&] { return round != mine; }),
          "a call of an emulated group waits for ranks that do not come");
  }
};

struct CudaEmulator::Member {
  Group* group;
  int rank;
  CudaEvent last = nullptr;  ///< behind the last call
};

namespace {
thread_local bool collecting = false;
}  // namespace

std::string CudaEmulator::group_id() {
  static std::atomic<int> groups{0};
  return fmt::format("group {}", groups++);
}

CudaGroup CudaEmulator::join(const std::string& id, int rank, int size, double) {
  Group* group = nullptr;
  CudaGroup mine = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = groups_[id];
    if (!slot) slot = std::make_shared<Group>();
    group = slot.get();
    group->size = size;
    group->in.resize(static_cast<size_t>(size));
    members_.push_back(std::make_shared<Member>(Member{group, rank, nullptr}));
    mine = reinterpret_cast<CudaGroup>(members_.back().get());
  }
  group->meet();
  return mine;
}

void CudaEmulator::begin_calls() {
  check(!collecting, "calls of a group within calls of a group");
  collecting = true;
}
void CudaEmulator::end_calls() {
  check(collecting, "the end of calls that were not begun");
  collecting = false;
}

std::string CudaEmulator::trouble(CudaGroup group) {
  const std::lock_guard lock(mutex_);
  if (aborted_.count(group) != 0) misuse("asked for the state of a group that was aborted");
  return trouble_;
}

void CudaEmulator::abort(CudaGroup group) noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_.insert(group).second) misuse("aborted a group twice");
  const auto* last = reinterpret_cast<Event*>(reinterpret_cast<Member*>(group)->last);
  if (last != nullptr && !is_known(last->clock) && !stuck && trouble_.empty())
    misuse("aborted a group whose calls may not have ended");
  for (const Graph* graph : graphs_) {
    if (std::any_of(graph->work.begin(), graph->work.end(),
                    [&](const Work& work) { return work.group == group; }))
      misuse("aborted a group before a graph with its calls was released: NCCL waits for that");
  }
  ++aborts;
}

/// kind: 0 all_reduce, 1 reduce_scatter, 2 all_gather.
void CudaEmulator::call(CudaGroup g, const void* in, int64_t in_count, void* out, int64_t out_count,
                        DType dtype, int kind, Combiner combiner, CudaStream stream) {
  check(collecting, "a call of a group outside of begin_calls() and end_calls()");
  if (const std::lock_guard lock(mutex_); aborted_.count(g) != 0)
    misuse("a call of a group that was aborted");
  Member& me = *reinterpret_cast<Member*>(g);
  const int64_t item = size_of(dtype);
  Work work{"group call", {{in, in_count * item}}, {{out, out_count * item}}, {}};
  work.run = [=, this, &me] {
    Group& group = *me.group;
    ++group_calls;
    group.in[static_cast<size_t>(me.rank)] = in;
    group.meet();
    const std::vector<const void*> all = group.in;
    std::vector<char> result(static_cast<size_t>(out_count * item));
    if (kind == 2) {
      for (size_t r = 0; r < all.size(); ++r)
        std::memcpy(result.data() + static_cast<int64_t>(r) * in_count * item, all[r],
                    static_cast<size_t>(in_count * item));
    } else {
      std::vector<const void*> parts;
      for (const void* from : all)
        parts.push_back(static_cast<const char*>(from) +
                        (kind == 1 ? me.rank * out_count * item : 0));
      combine(parts.data(), group.size, result.data(), out_count, dtype, combiner);
    }
    group.meet();
    std::memcpy(out, result.data(), result.size());
  };
  work.group = g;
  submit(stream, std::move(work));
  if (me.last == nullptr) me.last = make_event();
  record(me.last, stream);
}

void CudaEmulator::all_reduce(CudaGroup group, const void* in, void* out, int64_t count,
                              DType dtype, Combiner combiner, CudaStream stream) {
  call(group, in, count, out, count, dtype, 0, combiner, stream);
}
void CudaEmulator::reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count,
                                  DType dtype, Combiner combiner, CudaStream stream) {
  const int64_t ranks = reinterpret_cast<Member*>(group)->group->size;
  call(group, in, count * ranks, out, count, dtype, 1, combiner, stream);
}
void CudaEmulator::all_gather(CudaGroup group, const void* in, void* out, int64_t count,
                              DType dtype, CudaStream stream) {
  const int64_t ranks = reinterpret_cast<Member*>(group)->group->size;
  call(group, in, count, out, count * ranks, dtype, 2, Combiner::sum, stream);
}

}  // namespace tessera::test
