#include "gpu/device/graph_capture.h"

#include <utility>

#include "base/env.h"
#include "base/fail.h"

namespace tessera {

namespace {

/// Calls on a stream that is captured, between the two ends of the capture.
class Capture {
 public:
  Capture(CudaGraphApi& api, CudaStream stream) : api_(api), stream_(stream) {
    api_.begin_capture(stream_);
  }
  ~Capture() {
    if (!open_) return;
    try {
      api_.release(api_.end_capture(stream_));
    } catch (const Error&) {  // it was invalidated: the first error is reported
    }
  }
  CudaGraph end() {
    open_ = false;
    return api_.end_capture(stream_);
  }

 private:
  CudaGraphApi& api_;
  CudaStream stream_;
  bool open_ = true;
};

}  // namespace

/// A device error in a capture may be the capture's. If it is not, the steps have it again when
/// they are run one by one.
std::function<void()> GpuGraphs::capture(const std::function<void()>& work) {
  if (!may_use_graphs()) {
    fallbacks_.insert("steps are enqueued one by one: TESSERA_GRAPHS is off");
    return {};
  }
  try {
    Capture capture(gpu_.api.graphs(), streams_.compute());
    work();
    graphs_.push_back(capture.end());
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::device) throw;
    fallbacks_.insert(fmt::format(
        "steps are enqueued one by one, as their capture failed: {}; TESSERA_GRAPHS=off "
        "leaves captures out",
        e.what()));
    return {};
  }
  return [this, number = graphs_.size() - 1] {
    TESSERA_CHECK(graphs_[number] != nullptr, "a graph that was released is replayed");
    gpu_.api.graphs().launch(graphs_[number], streams_.compute());
  };
}

void GpuGraphs::release() {
  for (CudaGraph& graph : graphs_) {
    if (graph != nullptr) gpu_.api.graphs().release(std::exchange(graph, nullptr));
  }
}

}  // namespace tessera
