// From a graph and a layout to a Program.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "runtime/program.h"
#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

struct LowerOptions {
  Mesh mesh;
  Layout layout;
  std::vector<FunctionSpec> functions;
  std::set<const Op*> kernels;  ///< composites that the device can run whole
  std::function<int64_t(const Step&)>
      workspace_bytes;  ///< what the device's kernel needs; may be empty
  /// Called after each pass with its name and the state as text; may be empty.
  std::function<void(const std::string& pass, const std::function<std::string()>& text)> after_pass;
  bool fuse = true;                 ///< false: one step an op, for tests and comparisons
  int64_t bucket_bytes = 25 << 20;  ///< of the operands of one exchange; 0: one collective each
  bool overlap = true;              ///< false: every collective is awaited where it starts
  bool init = true;                 ///< false: without "init", for prices
  bool offload_state = false;       ///< optimizer state is in ArenaKind::offloaded
};

/// Lowers the functions, and "init" first if the graph stores anything. Throws usage errors of the
/// layout.
Program lower(const Graph& graph, const LowerOptions& options);

}  // namespace tessera
