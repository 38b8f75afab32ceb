// What a layout makes of a model, without running it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/compile_options.h"
#include "tessera/machine.h"

namespace tessera {

/// One collective of a function.
struct CollectiveReport {
  std::string kind;    ///< "all_reduce"
  std::string tensor;  ///< with scopes
  std::string source;  ///< "model.cpp:41"
  std::string rule;    ///< the rule that asks for it
  std::string axes;    ///< "data+model"
  int ranks = 1;       ///< of each group
  int64_t bytes = 0;   ///< sent by each rank, as collectives/cost.h defines, all times
  int64_t times = 1;   ///< in a loop: of its iterations
  double seconds = 0;  ///< predicted, all times; in a bucket, its share by bytes
  double exposed = 0;  ///< of them, what computing waits for
};

/// An op that leaves mesh axes unused, so that its ranks compute the same.
struct RedundantReport {
  std::string node, source, axes;
  int64_t flops = 0;   ///< on each rank
  double factor = 1;   ///< ranks that compute the same
  std::string remedy;  ///< a rule that would split it, or ""
};

struct MemoryReport {
  int64_t params = 0, state = 0, inputs = 0;  ///< persistent bytes on a rank
  int64_t transient = 0;                      ///< peak of a run, the largest function
  int64_t offloaded = 0;  ///< state in memory of the host, which is not in `state`
  std::vector<std::pair<std::string, int64_t>> at_peak;  ///< the largest transient tensors then
};

struct PaddingReport {
  std::string dim;
  int64_t size = 0, padded = 0;
};

/// What a machine is predicted to take for a run of a function.
struct TimeReport {
  double seconds = 0;   ///< compute + slowed + exposed
  double compute = 0;   ///< of the compute steps alone
  double slowed = 0;    ///< more, by transfers at the same time
  double transfer = 0;  ///< of all collectives
  double exposed = 0;   ///< of it, what computing waits for
};

/// The buckets of one kind over the same axes: collectives that start together.
struct BucketReport {
  std::string kind, axes;
  int buckets = 0;     ///< a bucket in a loop counts once an iteration
  int64_t most = 0;    ///< bytes that a rank sends in the largest
  double seconds = 0;  ///< predicted, of all
  double started = 0;  ///< of them, starting: what they took without bytes
};

struct FunctionReport {
  std::string name;
  int64_t flops = 0;  ///< on each rank
  int64_t bytes = 0;  ///< sent by each rank
  int steps = 0;
  std::vector<CollectiveReport> collectives;
  std::vector<RedundantReport> redundant;  ///< the largest; each at least 1 % of `flops`
  int redundant_left_out = 0;              ///< further ones
  int64_t redundant_left_out_flops = 0;    ///< on each rank, together
  TimeReport time;                         ///< zeros without a machine
  std::vector<BucketReport> buckets;       ///< none without a machine
};

struct Explanation {
  std::vector<FunctionReport> functions;
  MemoryReport memory;
  std::vector<PaddingReport> padding;
  std::vector<std::string> notes;
  std::string machine;  ///< that times are predicted for; "": none
  uint64_t program_hash = 0;
};

/// Compiles and reports; no rank is needed, so the mesh may have any size. `after_pass` (may be
/// empty) gets each pass's name and its result as text on demand. With a machine, times are
/// predicted. Throws what Session's constructor throws about model and layout, and usage errors for
/// a link class or dtype that the machine lacks.
Explanation explain(const Graph& graph, const CompileOptions& options,
                    const std::function<void(const std::string&,
                                             const std::function<std::string()>&)>& after_pass = {},
                    const Machine* machine = nullptr);
/// As text for people.
std::string to_string(const Explanation& explanation);

/// Every layout that gives each mesh axis to one dim name or to none and is legal for the
/// functions, one of each class up to exchange of axes of equal size; the replicated layout first.
/// This is the one definition of "legal".
std::vector<Layout> legal_layouts(const Graph& graph, const Mesh& mesh,
                                  const std::vector<FunctionSpec>& functions);

}  // namespace tessera
