#include "gpu/emulator_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/fail.h"
#include "collectives/communicator.h"

namespace tessera::test {

struct EmulatedNccl::Call {
  Kind kind = Kind::all_reduce;
  Combiner combiner = Combiner::sum;
  DType dtype = DType::float32;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t in_count = 0, out_count = 0;
};

struct EmulatedNccl::Group {
  int size = 0, joined = 0;
  /// By number, until all ranks have come to them: the calls that the streams of ranks stand at.
  std::map<int64_t, std::map<int, Call>> calls;
  std::set<int64_t> ended;

  /// A rank's stream stands at its call of this number. True once it has been made.
  bool arrive(int rank, int64_t number, const Call& call) {
    if (ended.count(number) != 0) return true;
    std::map<int, Call>& all = calls[number];
    all[rank] = call;
    const auto& [first, model] = *all.begin();
    TESSERA_CHECK(
        call.kind == model.kind && call.in_count == model.in_count && call.dtype == model.dtype &&
            call.combiner == model.combiner,
        "collective {} of a group: {} elements of {} on rank {}, {} of {} on rank {}, or not the "
        "same collective",
        number, model.in_count, to_string(model.dtype), first, call.in_count, to_string(call.dtype),
        rank);
    if (static_cast<int>(all.size()) < size) return false;
    make(all);
    calls.erase(number);
    ended.insert(number);
    return true;
  }

 private:
  /// All results are computed before one is stored: a result may lie on its operand.
  void make(const std::map<int, Call>& all) {
    std::vector<std::vector<char>> results;
    for (const auto& [rank, c] : all) {
      const int64_t item = size_of(c.dtype);
      std::vector<char>& result = results.emplace_back(static_cast<size_t>(c.out_count * item));
      std::vector<const void*> parts;
      for (const auto& [other, from] : all) {
        parts.push_back(static_cast<const char*>(from.in) +
                        (c.kind == Kind::reduce_scatter ? rank * c.out_count * item : 0));
        if (c.kind == Kind::all_gather)
          std::memcpy(result.data() + other * c.in_count * item, from.in,
                      static_cast<size_t>(c.in_count * item));
      }
      if (c.kind != Kind::all_gather)
        local_reduce(parts.data(), size, result.data(), c.out_count, c.dtype, c.combiner);
    }
    size_t next = 0;
    for (const auto& [rank, c] : all) {
      std::memcpy(c.out, results[next].data(), results[next].size());
      ++next;
    }
  }
};

struct EmulatedNccl::Member {
  Group* group;
  int rank;
  bool aborted = false;
  int64_t calls = 0;         ///< enqueued so far
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

CudaGroup EmulatedNccl::begin_join(const std::string& id, int rank, int size) {
  const std::lock_guard lock(state_.mutex);
  auto& group = groups_[id];
  if (!group) group = std::make_shared<Group>();
  group->size = size;
  ++group->joined;
  members_.push_back(std::make_shared<Member>(Member{group.get(), rank}));
  return reinterpret_cast<CudaGroup>(members_.back().get());
}

bool EmulatedNccl::has_joined(CudaGroup group) {
  const std::lock_guard lock(state_.mutex);
  const Group& joined = *reinterpret_cast<Member*>(group)->group;
  return joined.joined == joined.size;
}

CudaGroup EmulatedNccl::join(const std::string& id, int rank, int size, double seconds) {
  const CudaGroup mine = begin_join(id, rank, size);
  const auto last = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!has_joined(mine)) {
    TESSERA_CHECK(std::chrono::steady_clock::now() < last, "ranks do not join an emulated group");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return mine;
}

void EmulatedNccl::begin_calls() {
  TESSERA_CHECK(!collecting, "calls of a group within calls of a group");
  collecting = true;
}
void EmulatedNccl::end_calls() {
  TESSERA_CHECK(collecting, "the end of calls that were not begun");
  collecting = false;
}

std::string EmulatedNccl::trouble(CudaGroup group) {
  const std::lock_guard lock(state_.mutex);
  if (reinterpret_cast<Member*>(group)->aborted)
    state_.misuse("asked for the state of a group that was aborted");
  return state_.settings.trouble;
}

void EmulatedNccl::abort(CudaGroup group) noexcept {
  const std::lock_guard lock(state_.mutex);
  Member& member = *reinterpret_cast<Member*>(group);
  if (std::exchange(member.aborted, true)) state_.misuse("aborted a group twice");
  const auto* last = reinterpret_cast<EmulatorState::Event*>(member.last);
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
  TESSERA_CHECK(collecting, "a call of a group outside of begin_calls() and end_calls()");
  Member& me = *reinterpret_cast<Member*>(g);
  if (const std::lock_guard lock(state_.mutex); me.aborted)
    state_.misuse("a call of a group that was aborted");
  const int64_t item = size_of(dtype);
  EmulatorState::Work work{"group call", {{in, in_count * item}}, {{out, out_count * item}}, {}};
  const Call made{kind, combiner, dtype, in, out, in_count, out_count};
  work.waits_for = [&me, made]() -> std::function<bool()> {
    return [&me, made, number = me.calls++] {
      return me.aborted || me.group->arrive(me.rank, number, made);
    };
  };
  work.run = [this] { ++state_.counts.group_calls; };
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
