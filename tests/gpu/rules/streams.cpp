// Streams, events and captures. A capture is invalidated by what fails in it; everything in it then
// fails, and so does its end, after which the stream works again.
#include <algorithm>

#include "gpu/rules/driver.h"

namespace tessera::test::rules {

namespace {

using Stream = EmulatorState::Stream;
using Event = EmulatorState::Event;

CudaStream stream_of(Stream& stream) { return reinterpret_cast<CudaStream>(&stream); }
Event& event_of(CUevent event) { return *reinterpret_cast<Event*>(event); }

CUresult invalidate(Machine& m, int capture, CUresult why) {
  if (const auto it = m.captures.find(capture); it != m.captures.end()) it->second.is_valid = false;
  return why;
}

/// The test wants this step of a capture to fail.
bool fails(const Machine& m, int gpu, CaptureFault fault) {
  const EmulatorSettings& settings = m.settings;
  return settings.fails_capture == fault && (settings.fails_on < 0 || settings.fails_on == gpu);
}

/// What a call on a stream begins with.
struct OnStream : Entered {
  explicit OnStream(CUstream given) {
    if (result != CUDA_SUCCESS) return;
    stream = find_stream(*m, given);
    result = stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  }
  Stream* stream = nullptr;
};

}  // namespace

void drop_capture(Machine& m, int number) {
  for (const auto& stream : m.state.streams) {
    if (stream->capture == number) stream->capture = 0;
  }
  m.state.capturing.erase(number);
  m.captures.erase(number);
}

CUresult check_unsafe(Machine& m) {
  const std::lock_guard lock(m.state.mutex);
  for (auto& [number, capture] : m.captures) {
    const bool is_mine = capture.thread == std::this_thread::get_id();
    if (capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
        (capture.mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && is_mine)) {
      capture.is_valid = false;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

Stream* find_stream(Machine& m, CUstream given) {
  const std::lock_guard lock(m.state.mutex);
  if (given == nullptr || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD) {
    CUstream& legacy = m.legacy[EmulatorState::used_gpu()];
    if (legacy == nullptr) legacy = reinterpret_cast<CUstream>(m.gpu.streams().make_stream());
    return reinterpret_cast<Stream*>(legacy);
  }
  return m.streams.count(given) == 0 ? nullptr : reinterpret_cast<Stream*>(given);
}

CUresult check_capture(Machine& m, CUstream given, const Stream& stream) {
  const std::lock_guard lock(m.state.mutex);
  if (given == nullptr || given == CU_STREAM_LEGACY) {
    for (auto& [number, capture] : m.captures) {
      const unsigned flags = m.streams[reinterpret_cast<CUstream>(capture.origin)];
      if (capture.origin->gpu == stream.gpu && (flags & CU_STREAM_NON_BLOCKING) == 0)
        return invalidate(m, number, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
  }
  const auto capture = m.captures.find(stream.capture);
  return capture != m.captures.end() && !capture->second.is_valid
             ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  *stream = reinterpret_cast<CUstream>(in.m->gpu.streams().make_stream(priority < 0));
  const std::lock_guard lock(in.m->state.mutex);
  in.m->streams[*stream] = flags;
  return CUDA_SUCCESS;
}

/// Lower numbers go first.
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const Entered in;
  *least = 0;
  *greatest = -5;
  return in.result;
}

/// What it holds still runs.
CUresult cuStreamDestroy(CUstream stream) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  if (in.stream->capture != 0) invalidate(*in.m, in.stream->capture, CUDA_SUCCESS);
  return in.m->streams.erase(stream) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (in.stream->capture != 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *context = reinterpret_cast<CUcontext>(&in.m->contexts[static_cast<size_t>(in.stream->gpu)]);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  const auto capture = in.m->captures.find(in.stream->capture);
  *status = capture == in.m->captures.end() ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->second.is_valid      ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                            : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (in.stream->capture != 0)
    return invalidate(*in.m, in.stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (const CUresult unsafe = check_unsafe(*in.m); unsafe != CUDA_SUCCESS) return unsafe;
  return guarded([&] { in.m->gpu.streams().synchronize(stream_of(*in.stream)); });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  *event = reinterpret_cast<CUevent>(in.m->gpu.streams().make_event());
  const std::lock_guard lock(in.m->state.mutex);
  in.m->events[*event] = {in.context->gpu, (flags & CU_EVENT_DISABLE_TIMING) == 0};
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  return in.m->events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  const auto info = in.m->events.find(event);
  if (info == in.m->events.end() || info->second.gpu != in.stream->gpu)
    return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = check_capture(*in.m, stream, *in.stream); bad != CUDA_SUCCESS)
    return bad;
  in.m->gpu.streams().record(reinterpret_cast<CudaEvent>(event), stream_of(*in.stream));
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  {
    const std::lock_guard lock(in.m->state.mutex);
    if (in.m->events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (const int capture = event_of(event).capture; capture != 0)
      return invalidate(*in.m, capture, CUDA_ERROR_CAPTURED_EVENT);
  }
  if (const CUresult unsafe = check_unsafe(*in.m); unsafe != CUDA_SUCCESS) return unsafe;
  bool passed = false;
  const CUresult result =
      guarded([&] { passed = in.m->gpu.streams().passed(reinterpret_cast<CudaEvent>(event)); });
  return result != CUDA_SUCCESS || passed ? result : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float* ms, CUevent first, CUevent second) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  for (CUevent event : {first, second}) {
    const auto info = in.m->events.find(event);
    if (info == in.m->events.end() || !info->second.timing || !event_of(event).recorded)
      return CUDA_ERROR_INVALID_HANDLE;
    const Event& e = event_of(event);
    if (e.stream == nullptr || e.stream->done < e.at) return CUDA_ERROR_NOT_READY;
  }
  *ms = static_cast<float>(
      1e3 * in.m->gpu.streams().seconds_between(reinterpret_cast<CudaEvent>(first),
                                                reinterpret_cast<CudaEvent>(second)));
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream given, CUevent event, unsigned) {
  const OnStream in(given);
  if (in.result != CUDA_SUCCESS) return in.result;
  Machine& m = *in.m;
  const std::lock_guard lock(m.state.mutex);
  if (m.events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = check_capture(m, given, *in.stream); bad != CUDA_SUCCESS) return bad;
  const int into = in.stream->capture, from = event_of(event).capture;
  if (into != 0 && from == 0 && event_of(event).recorded)
    return invalidate(m, into, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (into != 0 && from != 0 && into != from) {
    invalidate(m, from, CUDA_SUCCESS);
    return invalidate(m, into, CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  if (into == 0 && from != 0) {
    const auto capture = m.captures.find(from);
    if (capture == m.captures.end()) return CUDA_ERROR_CAPTURED_EVENT;
    if (!capture->second.is_valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  m.gpu.streams().wait(stream_of(*in.stream), reinterpret_cast<CudaEvent>(event));
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* host, size_t bytes, CUstream stream) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (const CUresult bad = check_capture(*in.m, stream, *in.stream); bad != CUDA_SUCCESS)
    return bad;
  in.m->gpu.memory().to_device(reinterpret_cast<void*>(to), host, static_cast<int64_t>(bytes),
                               stream_of(*in.stream));
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* host, CUdeviceptr from, size_t bytes, CUstream stream) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (const CUresult bad = check_capture(*in.m, stream, *in.stream); bad != CUDA_SUCCESS)
    return bad;
  return guarded([&] {
    in.m->gpu.memory().to_host(host, reinterpret_cast<void*>(from), static_cast<int64_t>(bytes),
                               stream_of(*in.stream));
  });
}

CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (value != 0) return CUDA_ERROR_INVALID_VALUE;  // nobody asks for another one
  if (const CUresult bad = check_capture(*in.m, stream, *in.stream); bad != CUDA_SUCCESS)
    return bad;
  in.m->gpu.memory().clear(reinterpret_cast<void*>(memory), static_cast<int64_t>(bytes),
                           stream_of(*in.stream));
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream given, CUstreamCaptureMode mode) {
  const OnStream in(given);
  if (in.result != CUDA_SUCCESS) return in.result;
  Machine& m = *in.m;
  const std::lock_guard lock(m.state.mutex);
  if (m.streams.count(given) == 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (in.stream->capture != 0) return CUDA_ERROR_ILLEGAL_STATE;
  if (fails(m, in.stream->gpu, CaptureFault::begin)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  m.gpu.graphs().begin_capture(stream_of(*in.stream));
  m.captures[in.stream->capture] = {in.stream, mode, std::this_thread::get_id()};
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream given, CUgraph* graph) {
  *graph = nullptr;
  const OnStream in(given);
  if (in.result != CUDA_SUCCESS) return in.result;
  Machine& m = *in.m;
  const std::lock_guard lock(m.state.mutex);
  const int number = in.stream->capture;
  const auto found = m.captures.find(number);
  if (found == m.captures.end()) return CUDA_ERROR_ILLEGAL_STATE;
  const Capture capture = found->second;
  if (capture.origin != in.stream)
    return invalidate(m, number, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture.thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (!capture.is_valid || fails(m, in.stream->gpu, CaptureFault::work)) {
    drop_capture(m, number);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  for (const auto& other : m.state.streams) {
    if (other->capture != number || other.get() == in.stream) continue;
    const auto last = other->clock.find(other->number);
    if (last != other->clock.end() && in.stream->clock[other->number] < last->second) {
      drop_capture(m, number);
      return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
  }
  *graph = reinterpret_cast<CUgraph>(m.gpu.graphs().end_capture(stream_of(*in.stream)));
  m.captures.erase(number);
  m.graphs.insert(*graph);
  return CUDA_SUCCESS;
}

/// An executable is the captured graph, which the emulator keeps once.
CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long) {
  *made = nullptr;
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  if (in.m->graphs.count(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (fails(*in.m, in.context->gpu, CaptureFault::instantiate)) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = reinterpret_cast<CUgraphExec>(graph);
  return in.m->executables.insert(*made).second ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphDestroy(CUgraph graph) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  if (in.m->graphs.erase(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (in.m->executables.count(reinterpret_cast<CUgraphExec>(graph)) == 0)
    in.m->gpu.graphs().release(reinterpret_cast<CudaGraph>(graph));
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  if (in.m->executables.erase(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
  in.m->gpu.graphs().release(reinterpret_cast<CudaGraph>(graph));
  return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  const OnStream in(stream);
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  if (in.m->executables.count(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (in.stream->capture != 0)
    return invalidate(*in.m, in.stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  in.m->gpu.graphs().launch(reinterpret_cast<CudaGraph>(graph), stream_of(*in.stream));
  return CUDA_SUCCESS;
}

}  // namespace tessera::test::rules
