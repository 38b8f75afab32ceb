#include "gpu/device/graph_capture.h"

#include <utility>

#include "base/fail.h"

namespace tessera {

std::function<void()> GpuGraphs::capture(const std::function<void()>& work) {
  CudaGraphApi& api = gpu_.api.graphs();
  api.begin_capture(streams_.compute());
  try {
    work();
  } catch (...) {
    try {
      api.release(api.end_capture(streams_.compute()));
    } catch (const Error&) {  // streams that were not joined: report the first error only
    }
    throw;
  }
  graphs_.push_back(api.end_capture(streams_.compute()));
  return [this, number = graphs_.size() - 1] {
    check(graphs_[number] != nullptr, "a graph that was released is replayed");
    gpu_.api.graphs().launch(graphs_[number], streams_.compute());
  };
}

void GpuGraphs::release() {
  for (CudaGraph& graph : graphs_) {
    if (graph != nullptr) gpu_.api.graphs().release(std::exchange(graph, nullptr));
  }
}

}  // namespace tessera
