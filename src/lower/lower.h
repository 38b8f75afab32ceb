// From a graph and a layout to a Program.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lower/passes/step_prices.h"
#include "program/program.h"
#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

struct LowerOptions {
  Mesh mesh;
  Layout layout;
  std::vector<FunctionSpec> functions;
  std::set<const Op*> kernels;  ///< composites that the device can run whole
  /// What the device's kernel for a step needs; may be empty.
  std::function<int64_t(const Step&)> workspace_bytes;
  /// Called after each pass with its name and the state as text; may be empty.
  std::function<void(const std::string& pass, const std::function<std::string()>& text)> after_pass;
  bool fuse = true;                     ///< false: one step an op, for tests and comparisons
  int64_t bucket_bytes = 25 << 20;      ///< of the operands of a bucket; 0: no buckets
  bool overlap = true;                  ///< false: every collective is awaited where it starts
  bool init = true;                     ///< false: without "init", for the planner
  bool wide_grad_reduce = false;        ///< see CompileOptions
  bool reduce_each_microbatch = false;  ///< see CompileOptions
  bool offload_state = false;           ///< optimizer state goes to ArenaKind::offloaded
  StepPrices prices = {};
  int chunks = 0;  ///< of a matmul, see CompileOptions::chunks
  /// True if the device's matmul can do the pointwise program of a "contract" step as its epilogue;
  /// empty: no matmul has an epilogue.
  std::function<bool(const Step&)> takes_epilogue = {};
  /// True if the device's "reduce" can compute its operand by a pointwise program.
  bool fuses_prologues = false;
};

/// Lowers the functions, and "init" first if the graph stores anything. Throws usage errors of the
/// layout.
Program lower(const Graph& graph, const LowerOptions& options);

}  // namespace tessera
