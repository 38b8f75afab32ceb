#include "cuda_emulator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/fail.h"
#include "cuda_host_kernels.h"

namespace tessera::test {

namespace {
thread_local int used_card = -1;
thread_local std::map<int, int64_t> host_clock;  ///< what this thread knows to be done

void raise(std::map<int, int64_t>& to, const std::map<int, int64_t>& from) {
  for (const auto& [stream, at] : from) to[stream] = std::max(to[stream], at);
}
}  // namespace

struct CudaEmulator::Kernel {
  int number = 0;
  std::string text;
  std::atomic<HostKernel> run = nullptr;
};

CudaEmulator::CudaEmulator(int cards, int64_t memory) : cards_(cards), memory_(memory) {}

CudaEmulator::~CudaEmulator() {
  for (const auto& [memory, block] : blocks_) std::free(memory);
  for (const auto& [memory, bytes] : pinned_) std::free(memory);
}

std::vector<std::string> CudaEmulator::take_log() { return std::exchange(log_, {}); }
std::vector<std::string> CudaEmulator::take_misuses() { return std::exchange(misuses_, {}); }
std::vector<std::string> CudaEmulator::texts() const {
  std::vector<std::string> all;
  for (const auto& kernel : kernels_) all.push_back(kernel->text);
  return all;
}

void CudaEmulator::note(const std::string& line) {
  if (logging) log_.push_back(line);
}

void CudaEmulator::misuse(const std::string& what) { misuses_.push_back(what); }

const CudaEmulator::Stream& CudaEmulator::numbered(int stream) const {
  return **std::find_if(streams_.begin(), streams_.end(),
                        [&](const auto& s) { return s->number == stream; });
}

/// This thread knows what `clock` says to be done: copies that have ended read their memory before.
void CudaEmulator::learn(const Clock& clock) {
  raise(host_clock, clock);
  std::erase_if(pending_, [&](const Pending& p) {
    const auto known = host_clock.find(p.stream);
    if (known == host_clock.end() || known->second < p.at) return false;
    check(std::memcmp(p.host, p.content.data(), p.content.size()) == 0,
          "memory of the host changed before the copy of {} bytes on s{} had ended",
          p.content.size(), p.stream);
    return true;
  });
}

bool CudaEmulator::is_known(const Clock& clock) {
  return std::all_of(clock.begin(), clock.end(), [](const auto& entry) {
    const auto known = host_clock.find(entry.first);
    return known != host_clock.end() && known->second >= entry.second;
  });
}

std::vector<CudaCard> CudaEmulator::cards() {
  std::vector<CudaCard> all;
  for (int c = 0; c < cards_; ++c)
    all.push_back({"emulated card", major, 0, memory_, fmt::format("card-{}", c)});
  return all;
}

void* CudaEmulator::use(int card) {
  check(card >= 0 && card < cards_, "card {} of {}", card, cards_);
  return reinterpret_cast<void*>(static_cast<intptr_t>(std::exchange(used_card, card)) + 1);
}
void CudaEmulator::restore(void* context) {
  used_card = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
}

int64_t CudaEmulator::free_memory() { return memory_ - used_; }

void* CudaEmulator::allocate(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  void* memory = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
  std::memset(memory, 0xff, static_cast<size_t>(bytes));
  blocks_[static_cast<char*>(memory)] = {bytes, used_card};
  used_ += bytes;
  return memory;
}

void CudaEmulator::release(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(static_cast<char*>(memory));
  check(it != blocks_.end(), "released memory that was not allocated");
  const char *first = it->first, *last = first + it->second.bytes;
  std::erase_if(accesses_, [&](const Access& a) {
    if (a.last <= first || last <= a.first) return false;
    const auto known = host_clock.find(a.stream);
    const bool ended = known != host_clock.end() && known->second >= a.at;
    if (numbered(a.stream).card != it->second.card && !ended)  // a release waits for its own card
      misuse(fmt::format("released memory that '{}' on s{} of another card may still use", a.name,
                         a.stream));
    return true;
  });
  used_ -= it->second.bytes;
  blocks_.erase(it);
  std::free(memory);
}

int CudaEmulator::card_of(const void* memory) {
  const std::lock_guard lock(mutex_);
  const char* at = static_cast<const char*>(memory);
  for (const auto& [block, held] : blocks_) {
    if (at >= block && at < block + held.bytes) return held.card;
  }
  return -1;
}

void* CudaEmulator::allocate_host(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  forbid_capture("allocate_host");
  if (bytes > host_memory) fail(ErrorKind::device, "cuMemAllocHost: out of memory");
  void* memory = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
  pinned_[static_cast<char*>(memory)] = bytes;
  return memory;
}
void CudaEmulator::release_host(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = pinned_.find(static_cast<char*>(memory));
  std::erase_if(pending_, [&](const Pending& p) {
    return it != pinned_.end() && p.host >= it->first && p.host < it->first + it->second;
  });
  check(pinned_.erase(static_cast<char*>(memory)) == 1,
        "released host memory that was not allocated");
  std::free(memory);
}

CudaStream CudaEmulator::make_stream() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<Stream>());
  static int streams = 0;  // clocks of threads that outlive an emulator mean no other's streams
  streams_.back()->number = ++streams;
  streams_.back()->card = used_card;
  return reinterpret_cast<CudaStream>(streams_.back().get());
}
void CudaEmulator::release(CudaStream) {}

std::string CudaEmulator::why_not_adopted(CudaStream given) {
  const std::lock_guard lock(mutex_);
  for (const auto& stream : streams_) {
    if (reinterpret_cast<CudaStream>(stream.get()) != given) continue;
    return stream->card == used_card ? "" : fmt::format("it is one of device {}", stream->card);
  }
  return "invalid resource handle";
}

bool CudaEmulator::is_capturing(CudaStream stream) {
  const std::lock_guard lock(mutex_);
  return reinterpret_cast<Stream*>(stream)->capture != 0;
}

CudaEvent CudaEmulator::make_event() {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::make_unique<Event>());
  events_.back()->number = static_cast<int>(events_.size());
  return reinterpret_cast<CudaEvent>(events_.back().get());
}
void CudaEmulator::release(CudaEvent) {}

void CudaEmulator::check_place(const Stream& stream) const {
  check(stream.card == used_card, "work for card {} by a thread that uses card {}", stream.card,
        used_card);
}

void CudaEmulator::forbid_capture(const char* call) const {
  if (!capturing_.empty()) fail(ErrorKind::device, "{} during a capture", call);
}

void CudaEmulator::synchronize(CudaStream s) {
  const std::lock_guard lock(mutex_);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  check_place(stream);
  check(stream.capture == 0, "synchronize() of a stream that is captured");
  check(!stuck, "synchronize() of a stream that never ends");
  learn(stream.clock);
  note(fmt::format("synchronize s{}", stream.number));
}

void CudaEmulator::record(CudaEvent e, CudaStream s) {
  const std::lock_guard lock(mutex_);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  Event& event = *reinterpret_cast<Event*>(e);
  check_place(stream);
  event.recorded = true;
  event.clock = stream.clock;
  event.capture = stream.capture;
  event.seconds =
      slept_ +
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  note(fmt::format("record e{} on s{}", event.number, stream.number));
}

bool CudaEmulator::passed(CudaEvent e) {
  const std::lock_guard lock(mutex_);
  const Event& event = *reinterpret_cast<Event*>(e);
  check(event.recorded && event.capture == 0, "asked for e{}, which nobody recorded", event.number);
  if (!stuck) learn(event.clock);
  return !stuck;
}

double CudaEmulator::seconds_between(CudaEvent first, CudaEvent second) {
  const std::lock_guard lock(mutex_);
  const Event &a = *reinterpret_cast<Event*>(first), &b = *reinterpret_cast<Event*>(second);
  for (const Event* e : {&a, &b}) {
    check(e->recorded && e->capture == 0, "the time of e{}, which nobody recorded", e->number);
    for (const auto& [stream, at] : e->clock) {
      const auto known = host_clock.find(stream);
      check(known != host_clock.end() && known->second >= at,
            "the time of e{}, which may not have come to pass", e->number);
    }
  }
  return b.seconds - a.seconds;
}

void CudaEmulator::wait(CudaStream s, CudaEvent e) {
  const std::lock_guard lock(mutex_);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  const Event& event = *reinterpret_cast<Event*>(e);
  check_place(stream);
  check(event.recorded, "s{} waits for e{}, which nobody recorded", stream.number, event.number);
  check(stream.capture == 0 || event.capture == stream.capture,
        "s{} is captured and waits for e{}, which was recorded outside", stream.number,
        event.number);
  if (event.capture != 0 && capturing_.count(event.capture) != 0) stream.capture = event.capture;
  raise(stream.clock, event.clock);
  note(fmt::format("s{} waits for e{}", stream.number, event.number));
}

/// Two pieces of work on the same memory, one of which writes, are ordered.
void CudaEmulator::order(Stream& stream, const Work& work) {
  raise(stream.clock, host_clock);
  const int64_t now = ++clock_;
  auto touch = [&](const CudaRange& range, bool writes) {
    if (range.bytes == 0) return;
    const char* first = static_cast<const char*>(range.first);
    const char* last = first + range.bytes;
    check_memory(work, range, stream.card);
    for (const Access& a : accesses_) {
      if (a.last <= first || last <= a.first || !(writes || a.writes)) continue;
      const auto known = stream.clock.find(a.stream);
      check(a.stream == stream.number || (known != stream.clock.end() && known->second >= a.at),
            "'{}' on s{} {} what '{}' on s{} {}, and nothing orders them", work.name, stream.number,
            writes ? "writes" : "reads", a.name, a.stream, a.writes ? "writes" : "reads");
    }
    if (writes) {
      std::erase_if(accesses_, [&](const Access& a) { return a.first >= first && a.last <= last; });
    }
    std::erase_if(accesses_, [&](const Access& a) {
      return a.first == first && a.last == last && a.stream == stream.number && a.writes == writes;
    });
    accesses_.push_back({first, last, writes, stream.number, now, work.name});
  };
  for (const CudaRange& r : work.reads) touch(r, false);
  for (const CudaRange& r : work.writes) touch(r, true);
  stream.clock[stream.number] = now;
}

/// Work runs outside of the lock: that of a group waits for other ranks.
void CudaEmulator::submit(CudaStream s, Work work) {
  {
    const std::lock_guard lock(mutex_);
    Stream& stream = *reinterpret_cast<Stream*>(s);
    check_place(stream);
    note(fmt::format("{} on s{}", work.name, stream.number));
    order(stream, work);
    if (stream.capture != 0) {
      capturing_.at(stream.capture).work.push_back(std::move(work));
      return;
    }
  }
  work.run();
}

/// The card may touch its own memory, that of cards which it reaches, and what the host pinned.
void CudaEmulator::check_memory(const Work& work, const CudaRange& range, int card) const {
  const char *first = static_cast<const char*>(range.first), *last = first + range.bytes;
  for (const auto& [block, size] : pinned_) {
    if (first >= block && last <= block + size) return;
  }
  for (const auto& [block, held] : blocks_) {
    if (first < block || last > block + held.bytes) continue;
    check(held.card == card || has_access, "{} on card {} touches memory of card {}", work.name,
          card, held.card);
    return;
  }
  check(false, "{} touches memory that is not the card's", work.name);
}

void CudaEmulator::to_device(void* to, const void* host, int64_t bytes, CudaStream s) {
  Stream& stream = *reinterpret_cast<Stream*>(s);
  check(stream.capture == 0, "a copy from the host during a capture");
  const char* first = static_cast<const char*>(host);
  {
    const std::lock_guard lock(mutex_);
    const bool pinned = std::any_of(pinned_.begin(), pinned_.end(), [&](const auto& block) {
      return first >= block.first && first + bytes <= block.first + block.second;
    });
    check(pinned, "a copy of {} bytes from memory of the host that was not pinned", bytes);
  }
  submit(s, {"to_device", {}, {{to, bytes}}, [=] {
               std::memcpy(to, host, static_cast<size_t>(bytes));
             }});
  const std::lock_guard lock(mutex_);
  pending_.push_back({first, std::string(first, static_cast<size_t>(bytes)), stream.number,
                      stream.clock.at(stream.number)});
}

void CudaEmulator::to_host(void* host, const void* from, int64_t bytes, CudaStream s) {
  Stream& stream = *reinterpret_cast<Stream*>(s);
  check(stream.capture == 0, "a copy to the host during a capture");
  submit(s, {"to_host", {{from, bytes}}, {}, [=] {
               std::memcpy(host, from, static_cast<size_t>(bytes));
             }});
}

void CudaEmulator::clear(void* memory, int64_t bytes, CudaStream s) {
  submit(s, {"clear", {}, {{memory, bytes}}, [=] {
               std::memset(memory, 0, static_cast<size_t>(bytes));
             }});
}

CudaKernel CudaEmulator::load(const std::string& text) {
  const std::lock_guard lock(mutex_);
  Kernel*& kernel = by_text_[text];
  if (kernel == nullptr) {
    kernels_.push_back(std::make_unique<Kernel>());
    kernel = kernels_.back().get();
    kernel->number = static_cast<int>(kernels_.size());
    kernel->text = text;
    announce_host_kernel(text);
  }
  return reinterpret_cast<CudaKernel>(kernel);
}

void CudaEmulator::launch(const CudaLaunch& launch, CudaStream s) {
  Kernel& kernel = *reinterpret_cast<Kernel*>(launch.kernel);
  ++launches;
  submit(s, {fmt::format("launch k{}", kernel.number), launch.reads, launch.writes,
             [&kernel, words = launch.words, blocks = launch.blocks, threads = launch.threads] {
               if (kernel.run == nullptr) kernel.run = host_kernel(kernel.text);
               kernel.run.load()(words.data(), blocks, threads);
             }});
}

}  // namespace tessera::test
