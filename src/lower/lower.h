// Lowering: from a graph and a layout to a Program. lower.cpp has the list of passes.
//
// Who reduces a gradient, and when, is decided in this order:
//   layout/choose.cpp             how an op is split; a split contraction has a partial result
//   partition/layout_chooser.cpp  whether a partial value is reduced now, later, or to slices
//   layout/reshard.cpp            with which collectives (all_reduce, reduce_scatter, ...)
//   passes/bucket_collectives.cpp which collectives share a bucket
//   passes/schedule.cpp           where each bucket starts and where it is awaited
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lower/partition/program_variant.h"
#include "lower/passes/step_prices.h"
#include "program/program.h"
#include "tessera/compile_options.h"
#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// The device that a Program is for. any: no passes of one kind of device run.
enum class Target : uint8_t { any, cpu, gpu };

struct LowerOptions {
  Mesh mesh;
  Layout layout;
  std::vector<FunctionSpec> functions;
  std::set<const Op*> kernels;  ///< composites that the device can run whole
  /// Bytes of workspace that the device's kernel for a step needs; may be empty.
  std::function<int64_t(const Step&)> workspace_bytes;
  /// Called after each pass with its name and the state as text; may be empty.
  std::function<void(const std::string& pass, const std::function<std::string()>& text)> after_pass;
  bool fuse = true;                     ///< false: one step per op, for tests and comparisons
  int64_t bucket_bytes = 25 << 20;      ///< operand bytes per bucket at most; 0: no buckets
  bool overlap = true;                  ///< false: every collective is awaited where it starts
  bool init = true;                     ///< false: no function "init", for the planner
  bool wide_grad_reduce = false;        ///< see CompileOptions
  bool reduce_each_microbatch = false;  ///< see CompileOptions
  int64_t strict_chunks = 0;            ///< see CompileOptions
  bool offload_state = false;           ///< optimizer state goes to ArenaKind::offloaded
  std::string pipeline_schedule = "1f1b";
  ProgramVariant variant = {};
  /// True if the device's collectives can read counts when they start. False: whole blocks travel.
  bool reads_counts = true;
  StepPrices prices = {};
  int chunks = 0;  ///< per matmul, see CompileOptions::chunks
  /// Seconds of all functions of a Program on a machine. Empty: no machine.
  std::function<double(const Program&)> seconds = {};
  /// True if the device's matmul can run the pointwise program of a "matmul" step as its
  /// epilogue. Empty: no epilogues.
  std::function<bool(const Step&)> takes_epilogue = {};
  /// True if the device can compute the dot products that a gradient of attention begins with.
  /// Empty: a step of their own does.
  std::function<bool(const Step&)> may_own_dot = {};
  /// Elements of the longest row that the device reduces within a fused step.
  int64_t longest_row = 1 << 17;
  Target target = Target::any;
};

/// Lowers the functions. "init" comes first if the graph has stored tensors. Throws a usage error
/// if the layout does not fit the graph.
Program lower(const Graph& graph, const LowerOptions& options);

}  // namespace tessera
