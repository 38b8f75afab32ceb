#include "gpu/emulator_driver.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/fail.h"
#include "gpu/host_kernels.h"

namespace tessera::test {

namespace {
using Access = EmulatorState::Access;
using Event = EmulatorState::Event;
using Graph = EmulatorState::Graph;
using Pending = EmulatorState::Pending;
using Stream = EmulatorState::Stream;
using Work = EmulatorState::Work;
}  // namespace

std::vector<CudaGpu> EmulatedContexts::gpus() {
  std::vector<CudaGpu> all;
  for (int c = 0; c < state_.gpus; ++c)
    all.push_back(
        {"emulated GPU", state_.settings.major, 0, state_.memory, fmt::format("GPU-{}", c)});
  return all;
}

void* EmulatedContexts::use(int gpu) {
  TESSERA_CHECK(gpu >= 0 && gpu < state_.gpus, "GPU {} of {}", gpu, state_.gpus);
  return reinterpret_cast<void*>(
      static_cast<intptr_t>(std::exchange(EmulatorState::used_gpu(), gpu)) + 1);
}
void EmulatedContexts::restore(void* context) {
  EmulatorState::used_gpu() = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
}

void* EmulatedMemory::allocate(int64_t bytes) {
  const std::lock_guard lock(state_.mutex);
  void* memory = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
  std::memset(memory, 0xff, static_cast<size_t>(bytes));
  state_.blocks[static_cast<char*>(memory)] = {bytes, EmulatorState::used_gpu()};
  used_ += bytes;
  return memory;
}

void EmulatedMemory::release(void* memory) {
  if (const int gpu = gpu_of(memory); gpu >= 0) state_.drain(gpu);
  const std::lock_guard lock(state_.mutex);
  const auto it = state_.blocks.find(static_cast<char*>(memory));
  TESSERA_CHECK(it != state_.blocks.end(), "released memory that was not allocated");
  const char *first = it->first, *last = first + it->second.bytes;
  std::erase_if(state_.accesses, [&](const Access& a) {
    if (a.last <= first || last <= a.first) return false;
    const bool ended = EmulatorState::is_known(a.stream, a.at);
    if (state_.numbered(a.stream).gpu != it->second.gpu &&
        !ended)  // a release waits for its own GPU
      state_.misuse(fmt::format("released memory that '{}' on s{} of another GPU may still use",
                                a.name, a.stream));
    return true;
  });
  used_ -= it->second.bytes;
  state_.blocks.erase(it);
  std::free(memory);
}

int EmulatedMemory::gpu_of(const void* memory) {
  const std::lock_guard lock(state_.mutex);
  const char* at = static_cast<const char*>(memory);
  for (const auto& [block, held] : state_.blocks) {
    if (at >= block && at < block + held.bytes) return held.gpu;
  }
  return -1;
}

void* EmulatedMemory::allocate_host(int64_t bytes) {
  const std::lock_guard lock(state_.mutex);
  state_.forbid_capture("allocate_host");
  if (bytes > state_.settings.host_memory) fail(ErrorKind::device, "cuMemAllocHost: out of memory");
  void* memory = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
  state_.pinned[static_cast<char*>(memory)] = bytes;
  return memory;
}
void EmulatedMemory::release_host(void* memory) {
  if (EmulatorState::used_gpu() >= 0) state_.drain(EmulatorState::used_gpu());
  const std::lock_guard lock(state_.mutex);
  const auto it = state_.pinned.find(static_cast<char*>(memory));
  std::erase_if(state_.pending, [&](const Pending& p) {
    return it != state_.pinned.end() && p.host >= it->first && p.host < it->first + it->second;
  });
  TESSERA_CHECK(state_.pinned.erase(static_cast<char*>(memory)) == 1,
                "released host memory that was not allocated");
  std::free(memory);
}

void EmulatedMemory::to_device(void* to, const void* host, int64_t bytes, CudaStream s) {
  Stream& stream = *reinterpret_cast<Stream*>(s);
  TESSERA_CHECK(stream.capture == 0, "a copy from the host during a capture");
  const char* first = static_cast<const char*>(host);
  const std::lock_guard lock(state_.mutex);
  TESSERA_CHECK(state_.is_pinned(host, bytes),
                "a copy of {} bytes from memory of the host that was not pinned", bytes);
  state_.submit(s, {"to_device", {}, {{to, bytes}}, [=] {
                      std::memcpy(to, host, static_cast<size_t>(bytes));
                    }});
  state_.pending.push_back({first, std::string(first, static_cast<size_t>(bytes)), stream.number,
                            stream.clock.at(stream.number)});
}

/// Into memory that is not pinned it ends before the call does.
void EmulatedMemory::to_host(void* host, const void* from, int64_t bytes, CudaStream s) {
  Stream& stream = *reinterpret_cast<Stream*>(s);
  TESSERA_CHECK(stream.capture == 0, "a copy to the host during a capture");
  const bool waits = [&] {
    const std::lock_guard lock(state_.mutex);
    return !state_.is_pinned(host, bytes);
  }();
  if (waits) state_.finish(stream, stream.enqueued);
  const int64_t before = state_.enqueued_on(stream);
  state_.submit(s, {"to_host", {{from, bytes}}, {}, [=, this, number = stream.number] {
                      state_.overwrite(host, bytes, number, before);
                      std::memcpy(host, from, static_cast<size_t>(bytes));
                    }});
  if (waits) state_.finish(stream, stream.enqueued);
}

void EmulatedMemory::clear(void* memory, int64_t bytes, CudaStream s) {
  state_.submit(s, {"clear", {}, {{memory, bytes}}, [=] {
                      std::memset(memory, 0, static_cast<size_t>(bytes));
                    }});
}

CudaStream EmulatedStreams::make_stream(bool is_urgent) {
  const std::lock_guard lock(state_.mutex);
  state_.streams.push_back(std::make_unique<Stream>());
  static int streams = 0;  // clocks of threads that outlive an emulator mean no other's streams
  state_.streams.back()->number = ++streams;
  state_.streams.back()->gpu = EmulatorState::used_gpu();
  state_.streams.back()->is_urgent = is_urgent;
  return reinterpret_cast<CudaStream>(state_.streams.back().get());
}

std::string EmulatedStreams::why_not_adopted(CudaStream given) {
  const std::lock_guard lock(state_.mutex);
  for (const auto& stream : state_.streams) {
    if (reinterpret_cast<CudaStream>(stream.get()) != given) continue;
    return stream->gpu == EmulatorState::used_gpu()
               ? ""
               : fmt::format("it is one of device {}", stream->gpu);
  }
  return "invalid resource handle";
}

bool EmulatedStreams::is_capturing(CudaStream stream) {
  const std::lock_guard lock(state_.mutex);
  return reinterpret_cast<Stream*>(stream)->capture != 0;
}

CudaEvent EmulatedStreams::make_event() {
  const std::lock_guard lock(state_.mutex);
  events_.push_back(std::make_unique<Event>());
  events_.back()->number = static_cast<int>(events_.size());
  return reinterpret_cast<CudaEvent>(events_.back().get());
}

void EmulatedStreams::synchronize(CudaStream s) {
  Stream& stream = *reinterpret_cast<Stream*>(s);
  {
    const std::lock_guard lock(state_.mutex);
    state_.check_place(stream);
    TESSERA_CHECK(stream.capture == 0, "synchronize() of a stream that is captured");
  }
  state_.finish(stream, stream.enqueued);
  const std::lock_guard lock(state_.mutex);
  state_.learn(stream.clock);
  state_.note(fmt::format("synchronize s{}", stream.number));
}

void EmulatedStreams::record(CudaEvent e, CudaStream s) {
  const std::lock_guard lock(state_.mutex);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  Event& event = *reinterpret_cast<Event*>(e);
  state_.check_place(stream);
  event.recorded = true;
  event.clock = stream.clock;
  event.capture = stream.capture;
  if (stream.capture == 0) {
    state_.enqueue(stream, {{}, [this, &event] {
                              const std::lock_guard lock(state_.mutex);
                              event.seconds = state_.now();
                            }});
    event.stream = &stream;
    event.at = stream.enqueued;
  }
  state_.note(fmt::format("record e{} on s{}", event.number, stream.number));
}

bool EmulatedStreams::passed(CudaEvent e) {
  state_.progress();
  const std::lock_guard lock(state_.mutex);
  const Event& event = *reinterpret_cast<Event*>(e);
  TESSERA_CHECK(event.recorded && event.capture == 0, "asked for e{}, which nobody recorded",
                event.number);
  if (const auto it = state_.broken.find(event.stream->gpu); it != state_.broken.end())
    std::rethrow_exception(it->second);
  if (state_.settings.stuck || event.stream->done < event.at) return false;
  state_.learn(event.clock);
  return true;
}

double EmulatedStreams::seconds_between(CudaEvent first, CudaEvent second) {
  const std::lock_guard lock(state_.mutex);
  const Event &a = *reinterpret_cast<Event*>(first), &b = *reinterpret_cast<Event*>(second);
  for (const Event* e : {&a, &b}) {
    TESSERA_CHECK(e->recorded && e->capture == 0, "the time of e{}, which nobody recorded",
                  e->number);
    for (const auto& [stream, at] : e->clock) {
      TESSERA_CHECK(EmulatorState::is_known(stream, at),
                    "the time of e{}, which may not have come to pass", e->number);
    }
  }
  return b.seconds - a.seconds;
}

void EmulatedStreams::wait(CudaStream s, CudaEvent e) {
  const std::lock_guard lock(state_.mutex);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  const Event& event = *reinterpret_cast<Event*>(e);
  state_.check_place(stream);
  TESSERA_CHECK(event.recorded, "s{} waits for e{}, which nobody recorded", stream.number,
                event.number);
  TESSERA_CHECK(stream.capture == 0 || event.capture == stream.capture,
                "s{} is captured and waits for e{}, which was recorded outside", stream.number,
                event.number);
  if (event.capture != 0 && state_.capturing.count(event.capture) != 0)
    stream.capture = event.capture;
  for (const auto& [other, at] : event.clock)
    stream.clock[other] = std::max(stream.clock[other], at);
  if (event.capture == 0 && event.stream != &stream)
    state_.enqueue(stream, {[from = event.stream, at = event.at] { return from->done >= at; }, {}});
  state_.note(fmt::format("s{} waits for e{}", stream.number, event.number));
}

struct EmulatedKernels::Kernel {
  int number = 0;
  std::string text;
  std::atomic<const HostKernel*> run = nullptr;
};

EmulatedKernels::EmulatedKernels(EmulatorState& state) : state_(state) {}
EmulatedKernels::~EmulatedKernels() = default;

std::vector<std::string> EmulatedKernels::texts() const {
  std::vector<std::string> all;
  for (const auto& kernel : kernels_) all.push_back(kernel->text);
  return all;
}

CudaKernel EmulatedKernels::load(const std::string& text) {
  const std::lock_guard lock(state_.mutex);
  Kernel*& kernel = by_text_[text];
  if (kernel == nullptr) {
    kernels_.push_back(std::make_unique<Kernel>());
    kernel = kernels_.back().get();
    kernel->number = static_cast<int>(kernels_.size());
    kernel->text = text;
    announce_host_kernel(text, state_.settings.kernels_as);
  }
  return reinterpret_cast<CudaKernel>(kernel);
}

void EmulatedKernels::launch(const CudaLaunch& launch, CudaStream s) {
  Kernel& kernel = *reinterpret_cast<Kernel*>(launch.kernel);
  ++state_.counts.launches;
  state_.submit(s, {fmt::format("launch k{}", kernel.number), launch.reads, launch.writes,
                    [&kernel, as = state_.settings.kernels_as, words = launch.words,
                     blocks = launch.blocks, threads = launch.threads,
                     memory = KernelMemory{launch.reads, launch.writes, launch.atomics}] {
                      if (kernel.run == nullptr) kernel.run = &host_kernel(kernel.text, as);
                      kernel.run.load()->run(words.data(), blocks, threads, &memory);
                    }});
}

void EmulatedGraphs::begin_capture(CudaStream s) {
  const std::lock_guard lock(state_.mutex);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  TESSERA_CHECK(stream.capture == 0, "a capture in a capture");
  stream.capture = ++captured_;
  state_.capturing[captured_];
  ++state_.counts.captures;
}

CudaGraph EmulatedGraphs::end_capture(CudaStream s) {
  const std::lock_guard lock(state_.mutex);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  const int number = stream.capture;
  TESSERA_CHECK(number != 0, "the end of a capture that has not begun");
  for (auto& other : state_.streams) {
    if (other->capture != number || other.get() == &stream) continue;
    const auto last = other->clock.find(other->number);
    TESSERA_CHECK(last == other->clock.end() || stream.clock[other->number] >= last->second,
                  "s{} took part in a capture and was not joined again", other->number);
    other->capture = 0;
  }
  stream.capture = 0;
  auto* graph = new Graph(std::move(state_.capturing.at(number)));
  state_.capturing.erase(number);
  state_.graphs.insert(graph);
  return reinterpret_cast<CudaGraph>(graph);
}

void EmulatedGraphs::launch(CudaGraph g, CudaStream s) {
  ++state_.counts.graph_launches;
  for (const Work& work : reinterpret_cast<Graph*>(g)->work) {
    if (work.group != nullptr) ++state_.counts.replayed_calls;
    state_.submit(s, work);
  }
}

void EmulatedGraphs::release(CudaGraph graph) {
  const std::lock_guard lock(state_.mutex);
  state_.graphs.erase(reinterpret_cast<Graph*>(graph));
  delete reinterpret_cast<Graph*>(graph);
}

}  // namespace tessera::test
