// Probes: values that a run also returns because the user asked to see or check them.
#pragma once

#include <string>
#include <vector>

#include "tessera/compile_options.h"

namespace tessera {

/// A print() or check_finite() node of a function.
struct Probe {
  std::string function, label, node, source;
  std::string of;      ///< the tensor that is printed or checked, as the user knows it
  std::string tensor;  ///< it, or what iterations of loops stacked of it
  std::string index;   ///< check_finite: the scalar with the index of the first bad element;
                       ///< print in loops: 1 for each iteration that ran, by their dims
  Shape shape;         ///< of `tensor`
};

struct Observation {
  std::vector<FunctionSpec> functions;  ///< those of the options, plus outputs
  std::vector<Probe> prints, checks;    ///< in the graph's order
};

/// Adds outputs for options.keep, for print() nodes (if options.print is set) and for
/// check_finite() nodes, each to the functions that compute the value anyway.
Observation observe(const Graph& graph, const CompileOptions& options);

}  // namespace tessera
