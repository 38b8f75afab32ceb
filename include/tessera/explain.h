// What a layout makes of a model, without running it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/session.h"

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
  int64_t times = 1;   ///< in a loop: of its trips
};

/// An op that leaves mesh axes unused, so that its ranks compute the same.
struct RedundantReport {
  std::string node, source, axes;
  int64_t flops = 0;   ///< on each rank
  double factor = 1;   ///< ranks that compute the same
  std::string remedy;  ///< a rule that would split it, or ""
};

struct MemoryReport {
  int64_t params = 0, state = 0, inputs = 0;             ///< persistent bytes on a rank
  int64_t transient = 0;                                 ///< peak of a run, the largest function
  std::vector<std::pair<std::string, int64_t>> at_peak;  ///< the largest transient tensors then
};

struct PaddingReport {
  std::string dim;
  int64_t size = 0, padded = 0;
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
};

struct Explanation {
  std::vector<FunctionReport> functions;
  MemoryReport memory;
  std::vector<PaddingReport> padding;
  std::vector<std::string> notes;
  uint64_t program_hash = 0;
};

/// Compiles and reports; no rank is needed, so the mesh may have any size. `after_pass` (may be
/// empty) gets each pass's name and its result as text on demand. Throws what Session's constructor
/// throws about model and layout.
Explanation explain(
    const Graph& graph, const CompileOptions& options,
    const std::function<void(const std::string&, const std::function<std::string()>&)>& after_pass =
        {});
/// As text for people.
std::string to_string(const Explanation& explanation);

/// Every layout that gives each mesh axis to one dim name or to none and is legal for the
/// functions, one of each class up to exchange of axes of equal size; the replicated layout first.
/// This is the one definition of "legal".
std::vector<Layout> legal_layouts(const Graph& graph, const Mesh& mesh,
                                  const std::vector<FunctionSpec>& functions);

}  // namespace tessera
