// What people want to see of a run, as further outputs of its functions.
#pragma once

#include <string>
#include <vector>

#include "tessera/compile_options.h"

namespace tessera {

/// A print() or check_finite() node of a function.
struct Probe {
  std::string function, label, node, source;
  std::string tensor;  ///< whose node it is
  std::string index;   ///< check_finite: the scalar with the index of its first bad element
  Shape shape;
};

struct Observation {
  std::vector<FunctionSpec> functions;  ///< those of the options; outputs in the graph's order
  std::vector<Probe> prints, checks;    ///< in the graph's order
};

/// Adds what options.keep names, what print() nodes show (if options.print is given) and what
/// check_finite() nodes test, as far as a function computes it anyway.
Observation observe(const Graph& graph, const CompileOptions& options);

}  // namespace tessera
