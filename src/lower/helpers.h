// Compute steps that belong to an exchange.
#pragma once

#include <set>

#include "runtime/program.h"

namespace tessera {

struct Helpers {
  /// Buffers that a step makes for one exchange only, from what is there from the beginning: a
  /// parameter in the dtype in which it is gathered. The step can run right before the exchange,
  /// whenever that is.
  std::set<int> fed;
  /// Buffers that exchanges bring, one after the other, and that only one step reads, and nothing
  /// else: a gradient to the dtype in which it is kept. The step can run right behind the last of
  /// these exchanges.
  std::set<int> followed;
};

Helpers find_helpers(const Program& program, const Function& function);

}  // namespace tessera
