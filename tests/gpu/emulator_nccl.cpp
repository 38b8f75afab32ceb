#include "gpu/emulator_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>

#include "base/fail.h"
#include "collectives/communicator.h"

namespace tessera::test {

struct EmulatedNccl::Group {
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

struct EmulatedNccl::Member {
  Group* group;
  int rank;
  CudaEvent last = nullptr;  ///< behind the last call
};

namespace {
thread_local bool collecting = false;
}  // namespace

EmulatedNccl::EmulatedNccl(EmulatorState& state, CudaStreamApi& streams)
    : state_(state), streams_(streams) {}
EmulatedNccl::~EmulatedNccl() = default;

std::string EmulatedNccl::group_id() {
  static std::atomic<int> groups{0};
  return fmt::format("group {}", groups++);
}

CudaGroup EmulatedNccl::join(const std::string& id, int rank, int size, double) {
  Group* group = nullptr;
  CudaGroup mine = nullptr;
  {
    const std::lock_guard lock(state_.mutex);
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

void EmulatedNccl::begin_calls() {
  check(!collecting, "calls of a group within calls of a group");
  collecting = true;
}
void EmulatedNccl::end_calls() {
  check(collecting, "the end of calls that were not begun");
  collecting = false;
}

std::string EmulatedNccl::trouble(CudaGroup group) {
  const std::lock_guard lock(state_.mutex);
  if (aborted_.count(group) != 0) state_.misuse("asked for the state of a group that was aborted");
  return state_.settings.trouble;
}

void EmulatedNccl::abort(CudaGroup group) noexcept {
  const std::lock_guard lock(state_.mutex);
  if (!aborted_.insert(group).second) state_.misuse("aborted a group twice");
  const auto* last =
      reinterpret_cast<EmulatorState::Event*>(reinterpret_cast<Member*>(group)->last);
  if (last != nullptr && !EmulatorState::is_known(last->clock) && !state_.settings.stuck &&
      state_.settings.trouble.empty())
    state_.misuse("aborted a group whose calls may not have ended");
  for (const EmulatorState::Graph* graph : state_.graphs) {
    if (std::any_of(graph->work.begin(), graph->work.end(),
                    [&](const EmulatorState::Work& work) { return work.group == group; }))
      state_.misuse(
          "aborted a group before a graph with its calls was released: NCCL waits for that");
  }
  ++state_.counts.aborts;
}

void EmulatedNccl::call(CudaGroup g, const void* in, int64_t in_count, void* out, int64_t out_count,
                        DType dtype, Kind kind, Combiner combiner, CudaStream stream) {
  check(collecting, "a call of a group outside of begin_calls() and end_calls()");
  if (const std::lock_guard lock(state_.mutex); aborted_.count(g) != 0)
    state_.misuse("a call of a group that was aborted");
  Member& me = *reinterpret_cast<Member*>(g);
  const int64_t item = size_of(dtype);
  EmulatorState::Work work{"group call", {{in, in_count * item}}, {{out, out_count * item}}, {}};
  work.run = [=, this, &me] {
    Group& group = *me.group;
    ++state_.counts.group_calls;
    group.in[static_cast<size_t>(me.rank)] = in;
    group.meet();
    const std::vector<const void*> all = group.in;
    std::vector<char> result(static_cast<size_t>(out_count * item));
    if (kind == Kind::all_gather) {
      for (size_t r = 0; r < all.size(); ++r)
        std::memcpy(result.data() + static_cast<int64_t>(r) * in_count * item, all[r],
                    static_cast<size_t>(in_count * item));
    } else {
      std::vector<const void*> parts;
      for (const void* from : all)
        parts.push_back(static_cast<const char*>(from) +
                        (kind == Kind::reduce_scatter ? me.rank * out_count * item : 0));
      local_reduce(parts.data(), group.size, result.data(), out_count, dtype, combiner);
    }
    group.meet();
    std::memcpy(out, result.data(), result.size());
  };
  work.group = g;
  state_.submit(stream, std::move(work));
  if (me.last == nullptr) me.last = streams_.make_event();
  streams_.record(me.last, stream);
}

void EmulatedNccl::all_reduce(CudaGroup group, const void* in, void* out, int64_t count,
                              DType dtype, Combiner combiner, CudaStream stream) {
  call(group, in, count, out, count, dtype, Kind::all_reduce, combiner, stream);
}
void EmulatedNccl::reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count,
                                  DType dtype, Combiner combiner, CudaStream stream) {
  const int64_t ranks = reinterpret_cast<Member*>(group)->group->size;
  call(group, in, count * ranks, out, count, dtype, Kind::reduce_scatter, combiner, stream);
}
void EmulatedNccl::all_gather(CudaGroup group, const void* in, void* out, int64_t count,
                              DType dtype, CudaStream stream) {
  const int64_t ranks = reinterpret_cast<Member*>(group)->group->size;
  call(group, in, count, out, count * ranks, dtype, Kind::all_gather, Combiner::sum, stream);
}

}  // namespace tessera::test
