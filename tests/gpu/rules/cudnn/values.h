// What a graph of cuDNN's operations means.
#pragma once

#include <map>
#include <vector>

#include "gpu/rules/cudnn/operations.h"

namespace tessera::test::rules::cudnn {

struct Places {
  std::map<int64_t, void*> memory;   ///< by id
  std::map<int64_t, float> numbers;  ///< that are passed by value
};

/// Computes in float32 and rounds each tensor to its type, those that are not in memory, too.
/// `is_finite`: infinite numbers become NaN where they are chosen.
void compute(const std::vector<Operation>& graph, const Places& places, bool is_finite);

}  // namespace tessera::test::rules::cudnn
