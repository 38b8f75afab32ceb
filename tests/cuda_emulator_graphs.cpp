// The emulated card: what is captured, and its replay.
#include "base/fail.h"
#include "cuda_emulator.h"

namespace tessera::test {

void CudaEmulator::begin_capture(CudaStream s) {
  const std::lock_guard lock(mutex_);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  check(stream.capture == 0, "a capture in a capture");
  stream.capture = ++captured_;
  capturing_[captured_];
  ++captures;
}

CudaGraph CudaEmulator::end_capture(CudaStream s) {
  const std::lock_guard lock(mutex_);
  Stream& stream = *reinterpret_cast<Stream*>(s);
  const int number = stream.capture;
  check(number != 0, "the end of a capture that has not begun");
  for (auto& other : streams_) {
    if (other->capture != number || other.get() == &stream) continue;
    const auto last = other->clock.find(other->number);
    check(last == other->clock.end() || stream.clock[other->number] >= last->second,
          "s{} took part in a capture and was not joined again", other->number);
    other->capture = 0;
  }
  stream.capture = 0;
  auto* graph = new Graph(std::move(capturing_.at(number)));
  capturing_.erase(number);
  graphs_.insert(graph);
  return reinterpret_cast<CudaGraph>(graph);
}

void CudaEmulator::launch(CudaGraph g, CudaStream s) {
  ++graph_launches;
  for (const Work& work : reinterpret_cast<Graph*>(g)->work) submit(s, work);
}

void CudaEmulator::release(CudaGraph graph) {
  const std::lock_guard lock(mutex_);
  graphs_.erase(reinterpret_cast<Graph*>(graph));
  delete reinterpret_cast<Graph*>(graph);
}

}  // namespace tessera::test
