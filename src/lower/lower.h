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

/// What a machine takes for a step; the passes go by rules that suit any machine without.
struct StepPrices {
  std::function<double(const Step&)> seconds;  ///< of a step by itself; empty: no machine
  double compute = 1, transfer = 1;            ///< times as long while the other kind runs too
};

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
  bool wide_sums = false;           ///< see CompileOptions
  bool sums_of_parts = false;       ///< see CompileOptions
  bool offload_state = false;       ///< optimizer state is in ArenaKind::offloaded
  StepPrices prices = {};
  int chunks = 0;  ///< of a product, see CompileOptions::chunks
  /// Whether the device's product does what the pointwise program of a "contract" says; empty: no
  /// product does.
  std::function<bool(const Step&)> takes_epilogue = {};
  /// The device's "reduce" computes its operand by a pointwise program.
  bool begins_reductions = false;
};

/// Lowers the functions, and "init" first if the graph stores anything. Throws usage errors of the
/// layout.
Program lower(const Graph& graph, const LowerOptions& options);

}  // namespace tessera
