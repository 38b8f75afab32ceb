// What a step of a Program becomes on one rank: a kernel with fixed addresses, a bucket of
// collectives, or a loop of bound steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/common/kernel.h"
#include "program/program.h"
#include "runtime/activity.h"
#include "runtime/device.h"

namespace tessera {

/// The rank that an executor runs: what all of its parts see.
struct RankContext {
  const Program& program;
  Communicator& world;
  Device& device;
  std::vector<int> coordinates;  ///< one for each mesh axis
  /// The run-time scalars, loop counters among them. Kernels and addresses read them in place.
  std::vector<int64_t> scalars;
  RankActivity* activity = nullptr;  ///< where steps are noted, if anywhere
};

struct BoundBucket;
struct BoundLoop;

struct BoundStep {
  const Step* step = nullptr;
  std::unique_ptr<Kernel> kernel = {};   ///< of a compute step
  std::unique_ptr<BoundLoop> loop = {};  ///< of a step with a body
  BoundBucket* bucket = nullptr;         ///< of a wait, and of the first collective of a bucket
  double seconds = 0;                    ///< of all runs, if profiled
  int64_t runs = 0;
  int mark = 0;            ///< of a collective that is recorded: Device::mark() at its start
  std::string label = {};  ///< if a profiler shows ranges
};

/// The body of a loop, bound once; or once an iteration where addresses depend on the counter; or
/// twice where buffers alternate between iterations.
struct BoundLoop {
  std::vector<std::vector<BoundStep>> iterations;
  std::vector<const void*> conditions;  ///< one for each of them; null: every iteration runs
};

}  // namespace tessera
