// Reports how a layout runs a model (collectives, memory, padding), without running it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/compile_options.h"
#include "tessera/machine.h"

namespace tessera {

/// One collective of a function.
struct CollectiveReport {
  std::string kind;    ///< "all_reduce"
  std::string tensor;  ///< name with scopes
  std::string source;  ///< "model.cpp:41"
  std::string rule;    ///< the layout rule that requires it
  std::string axes;    ///< "data+model"
  int ranks = 1;       ///< per group
  int64_t bytes = 0;   ///< sent by each rank in total (collectives/cost.h)
  int64_t times = 1;   ///< executions: loop iterations
  double seconds = 0;  ///< predicted total; in a bucket: its share by bytes
  double exposed = 0;  ///< of it, not overlapped with compute
};

/// Those that layers have alike as one, named "gpt.block*.mlp.up.w (12 tensors)", with the sums of
/// their bytes and times; `times` stays that of one. In order of the first of each.
std::vector<CollectiveReport> by_layers(const std::vector<CollectiveReport>& all);

/// An op that leaves mesh axes unused: ranks along these axes compute the same.
struct RedundantReport {
  std::string node, source, axes;
  int64_t flops = 0;   ///< on each rank
  double factor = 1;   ///< number of ranks that compute the same
  std::string remedy;  ///< a layout rule that would split it, or ""
};

struct MemoryReport {
  int64_t params = 0, state = 0, inputs = 0;  ///< persistent bytes per rank
  int64_t transient = 0;                      ///< peak of a run, of the largest function
  int64_t offloaded = 0;                      ///< state in host memory, not included in `state`
  /// The largest transient tensors at the peak, and behind them, as "7 more tensors", the sum of
  /// the others.
  std::vector<std::pair<std::string, int64_t>> at_peak;
};

struct PaddingReport {
  std::string dim;
  int64_t size = 0, padded = 0;
};

/// Predicted time of one run of a function.
struct TimeReport {
  double seconds = 0;   ///< compute + slowed + exposed + bubble
  double compute = 0;   ///< compute steps without communication
  double slowed = 0;    ///< slowdown of compute by concurrent transfers
  double transfer = 0;  ///< all collectives
  double exposed = 0;   ///< of `transfer`, not overlapped with compute
  double bubble = 0;    ///< of a pipeline: a stage is idle while others work
};

/// Microbatches that pass through the stages of a pipeline. A tick is a forward or a backward of a
/// microbatch on a stage.
struct PipelineReport {
  std::string axis;
  int64_t stages = 1, microbatches = 1;
  int64_t ticks = 0;  ///< in which any stage works
  int64_t busy = 0;   ///< of them, those in which one stage works
};

/// The buckets of one kind over the same axes. A bucket is a group of collectives that start
/// together.
struct BucketReport {
  std::string kind, axes;
  int buckets = 0;     ///< in a loop, one per iteration
  int64_t most = 0;    ///< bytes that a rank sends in the largest bucket
  double seconds = 0;  ///< predicted, total
  double started = 0;  ///< of `seconds`: start latency, independent of bytes
};

/// Compute steps of one kernel, name and source line, in one run of a function on one rank.
struct KernelReport {
  std::string kernel;            ///< "matmul"
  std::string tensor;            ///< name with scopes; numbers are *: "gpt.block*.attention.q"
  std::string source;            ///< "model.cpp:41"
  int64_t times = 0;             ///< executions
  int64_t flops = 0, bytes = 0;  ///< of all; bytes: operands and results, each once
  double seconds = 0;            ///< predicted, all
  double roofline = 0;           ///< seconds at the machine's memory bandwidth or matmul rate
  double measured = 0;           ///< seconds on the first local rank; 0: nobody measured it
};

struct FunctionReport {
  std::string name;
  bool is_init = false;  ///< gives stored tensors their first values
  int64_t flops = 0;     ///< per rank
  int64_t bytes = 0;     ///< sent by each rank
  int steps = 0;
  std::vector<CollectiveReport> collectives;
  std::vector<RedundantReport> redundant;  ///< the largest; at least 1 % of `flops` each
  int redundant_left_out = 0;              ///< number of others
  int64_t redundant_left_out_flops = 0;    ///< their flops per rank, in total
  std::vector<PipelineReport> pipelines;
  TimeReport time;                    ///< zeros without a machine
  std::vector<BucketReport> buckets;  ///< none without a machine
  std::vector<KernelReport> kernels;  ///< longest first; none without a machine
};

struct Explanation {
  std::vector<FunctionReport> functions;
  MemoryReport memory;
  std::vector<PaddingReport> padding;
  std::vector<std::string> notes;
  std::string machine;  ///< used for predictions; "": none
  uint64_t program_hash = 0;
};

/// A pass of the compiler.
struct PassInfo {
  const char* name;
  const char* device;  ///< the only one that it runs for: "cpu", "cuda"; "": all
  const char* does;    ///< "starts small collectives together"
};
/// All passes, in the order in which they run.
std::vector<PassInfo> passes();

/// Compiles and reports. No ranks are needed, so the mesh may have any size. `after_pass`, if
/// given, is called after each pass with its name and a function that returns the result as text.
/// With a machine, times are predicted. Throws the usage errors of Session's constructor, and usage
/// errors for a link class or dtype that the machine lacks.
Explanation explain(const Graph& graph, const CompileOptions& options,
                    const std::function<void(const std::string&,
                                             const std::function<std::string()>&)>& after_pass = {},
                    const Machine* machine = nullptr);
/// The report as text.
std::string to_string(const Explanation& explanation);
/// The kernels of all functions but "init" as text, those below 0.1 % of the time in one line; ""
/// without a machine.
std::string kernel_table(const Explanation& explanation);

/// The files that a graph's nodes were written in: their paths by name ("model.cpp"), as the
/// compiler or interpreter knows them; "" where several files have the name.
std::map<std::string, std::string> source_files(const Graph& graph);

/// All legal layouts that assign each mesh axis to one dim name or to none. Of layouts that differ
/// only by exchanging axes of equal size, one is returned. The replicated layout comes first. This
/// is the definition of "legal".
std::vector<Layout> legal_layouts(const Graph& graph, const Mesh& mesh,
                                  const std::vector<FunctionSpec>& functions);

}  // namespace tessera
