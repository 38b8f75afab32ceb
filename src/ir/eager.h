// What an eager graph does with the nodes that are added to it. src/session, which can run them,
// implements it.
#pragma once

#include <memory>
#include <string>

#include "tessera/graph.h"

namespace tessera {

class Eager {
 public:
  virtual ~Eager() = default;
  /// Computes the results of a node that was just added. Throws what a Session would.
  virtual void run(Graph& graph, const Node& node) = 0;
  virtual void feed(const std::string& name, const Array& whole) = 0;
  virtual Array fetch(const Graph& graph, Tensor tensor) = 0;
};
std::unique_ptr<Eager> make_eager(const GraphOptions& options);
bool is_eager(const Graph& graph);

}  // namespace tessera
