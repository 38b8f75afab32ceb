#include "gpu/emulator_state.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/fail.h"

namespace tessera::test {

namespace {

thread_local int gpu_of_thread = -1;
thread_local EmulatorState::Clock host_clock;  ///< what this thread knows to be done

void raise(EmulatorState::Clock& to, const EmulatorState::Clock& from) {
  for (const auto& [stream, at] : from) to[stream] = std::max(to[stream], at);
}

}  // namespace

bool is_direct_by_default() {
  const char* driver = std::getenv("TESSERA_TEST_DRIVER");
  return driver != nullptr && std::string(driver) == "direct";
}

EmulatorState::EmulatorState(int all, int64_t bytes, const EmulatorSettings& set,
                             EmulatorCounts& counted)
    : gpus(all), memory(bytes), settings(set), counts(counted) {}

EmulatorState::~EmulatorState() {
  for (const auto& [block, held] : blocks) std::free(block);
  for (const auto& [block, bytes] : pinned) std::free(block);
}

int& EmulatorState::used_gpu() { return gpu_of_thread; }

bool EmulatorState::is_known(int stream, int64_t at) {
  const auto known = host_clock.find(stream);
  return known != host_clock.end() && known->second >= at;
}

bool EmulatorState::is_known(const Clock& clock) {
  return std::all_of(clock.begin(), clock.end(),
                     [](const auto& entry) { return is_known(entry.first, entry.second); });
}

void EmulatorState::note(const std::string& line) {
  if (settings.logging) log.push_back(line);
}

const EmulatorState::Stream& EmulatorState::numbered(int stream) const {
  return **std::find_if(streams.begin(), streams.end(),
                        [&](const auto& s) { return s->number == stream; });
}

/// Copies that have ended read their memory before.
void EmulatorState::learn(const Clock& clock) {
  raise(host_clock, clock);
  std::erase_if(pending, [&](const Pending& p) {
    if (!is_known(p.stream, p.at)) return false;
    check_unchanged(p);
    return true;
  });
}

int64_t EmulatorState::enqueued_on(const Stream& stream) {
  const std::lock_guard lock(mutex);
  const auto at = stream.clock.find(stream.number);
  return at == stream.clock.end() ? 0 : at->second;
}

void EmulatorState::overwrite(const void* host, int64_t bytes, int stream, int64_t at) {
  const std::lock_guard lock(mutex);
  const char *first = static_cast<const char*>(host), *last = first + bytes;
  std::erase_if(pending, [&](const Pending& p) {
    if (p.stream != stream || p.at > at) return false;
    if (p.host + p.content.size() <= first || p.host >= last) return false;
    check_unchanged(p);
    return true;
  });
}

void EmulatorState::check_unchanged(const Pending& p) {
  TESSERA_CHECK(std::memcmp(p.host, p.content.data(), p.content.size()) == 0,
                "memory of the host changed before the copy of {} bytes on s{} had ended",
                p.content.size(), p.stream);
}

void EmulatorState::check_place(const Stream& stream) const {
  TESSERA_CHECK(stream.gpu == gpu_of_thread, "work for GPU {} by a thread that uses GPU {}",
                stream.gpu, gpu_of_thread);
}

double EmulatorState::now() const {
  if (settings.algorithm_seconds.size() > 1) return slept;
  const auto clock = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(clock).count();
}

bool EmulatorState::is_pinned(const void* host, int64_t bytes) const {
  const char* first = static_cast<const char*>(host);
  return std::any_of(pinned.begin(), pinned.end(), [&](const auto& block) {
    return first >= block.first && first + bytes <= block.first + block.second;
  });
}

void EmulatorState::forbid_capture(const char* call) const {
  if (!capturing.empty()) fail(ErrorKind::device, "{} during a capture", call);
}

/// Two pieces of work on the same memory, one of which writes, are ordered.
void EmulatorState::order(Stream& stream, const Work& work) {
  raise(stream.clock, host_clock);
  const int64_t now = ++clock_;
  auto touch = [&](const CudaRange& range, bool writes) {
    if (range.bytes == 0) return;
    const char* first = static_cast<const char*>(range.first);
    const char* last = first + range.bytes;
    check_memory(work, range, stream.gpu);
    for (const Access& a : accesses) {
      if (a.last <= first || last <= a.first || !(writes || a.writes)) continue;
      const auto known = stream.clock.find(a.stream);
      TESSERA_CHECK(
          a.stream == stream.number || (known != stream.clock.end() && known->second >= a.at),
          "'{}' on s{} {} what '{}' on s{} {}, and nothing orders them", work.name, stream.number,
          writes ? "writes" : "reads", a.name, a.stream, a.writes ? "writes" : "reads");
    }
    if (writes) {
      std::erase_if(accesses, [&](const Access& a) { return a.first >= first && a.last <= last; });
    }
    std::erase_if(accesses, [&](const Access& a) {
      return a.first == first && a.last == last && a.stream == stream.number && a.writes == writes;
    });
    accesses.push_back({first, last, writes, stream.number, now, work.name});
  };
  for (const CudaRange& r : work.reads) touch(r, false);
  for (const CudaRange& r : work.writes) touch(r, true);
  stream.clock[stream.number] = now;
}

void EmulatorState::submit(CudaStream s, Work work) {
  const std::lock_guard lock(mutex);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  check_place(stream);
  note(fmt::format("{} on s{}", work.name, stream.number));
  order(stream, work);
  if (stream.capture != 0) {
    capturing.at(stream.capture).work.push_back(std::move(work));
    return;
  }
  enqueue(stream,
          {work.waits_for ? work.waits_for() : std::function<bool()>(), std::move(work.run)});
}

void EmulatorState::enqueue(Stream& stream, Entry entry) {
  stream.queue.push_back(std::move(entry));
  ++stream.enqueued;
}

/// Work runs outside of the lock, so that other threads can enqueue more.
bool EmulatorState::run_next() {
  Stream* stream = nullptr;
  std::function<void()> run;
  const auto fail = [&](Stream& s) {  // with the lock held
    broken[s.gpu] = std::current_exception();
    for (const auto& other : streams) {
      if (other->gpu == s.gpu) other->done = other->enqueued, other->queue.clear();
    }
  };
  {
    const std::lock_guard lock(mutex);
    if (settings.stuck) return false;
    for (const auto& s : streams) {
      if (s->queue.empty()) continue;
      try {
        if (s->queue.front().is_ready && !s->queue.front().is_ready()) continue;
      } catch (...) {
        fail(*s);
        return true;
      }
      stream = s.get();
      run = std::move(s->queue.front().run);
      break;
    }
  }
  if (stream == nullptr) return false;
  try {
    if (run) run();
  } catch (...) {
    const std::lock_guard lock(mutex);
    fail(*stream);
    return true;
  }
  const std::lock_guard lock(mutex);
  stream->queue.pop_front();
  ++stream->done;
  return true;
}

void EmulatorState::progress() {
  const std::lock_guard running(running_);
  while (run_next()) {
  }
}

void EmulatorState::finish(Stream& stream, int64_t entries) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (;;) {
    progress();
    {
      const std::lock_guard lock(mutex);
      if (const auto it = broken.find(stream.gpu); it != broken.end())
        std::rethrow_exception(it->second);
      if (stream.done >= entries) return;
      TESSERA_CHECK(!settings.stuck, "s{} never ends", stream.number);
    }
    TESSERA_CHECK(std::chrono::steady_clock::now() < last,
                  "s{} waits for what does not come: other ranks, or their streams", stream.number);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void EmulatorState::drain(int gpu) {
  std::vector<Stream*> all;
  {
    const std::lock_guard lock(mutex);
    for (const auto& stream : streams) {
      if (settings.stuck) stream->done = stream->enqueued, stream->queue.clear();
      if (stream->gpu == gpu) all.push_back(stream.get());
    }
    if (broken.count(gpu) != 0) return;
  }
  for (Stream* stream : all) finish(*stream, stream->enqueued);
}

/// The GPU may touch its own memory, that of GPUs which it reaches, and what the host pinned.
void EmulatorState::check_memory(const Work& work, const CudaRange& range, int gpu) const {
  const char *first = static_cast<const char*>(range.first), *last = first + range.bytes;
  for (const auto& [block, size] : pinned) {
    if (first >= block && last <= block + size) return;
  }
  for (const auto& [block, held] : blocks) {
    if (first < block || last > block + held.bytes) continue;
    TESSERA_CHECK(held.gpu == gpu || settings.has_access, "{} on GPU {} touches memory of GPU {}",
                  work.name, gpu, held.gpu);
    return;
  }
  TESSERA_CHECK(false, "{} touches memory that is not the GPU's", work.name);
}

}  // namespace tessera::test
