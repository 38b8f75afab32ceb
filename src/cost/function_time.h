// Predicted time of a whole function by its schedule.
//
// A function is played on two kinds of lanes: the compute lane works off its steps in order; a
// collective enters the lane of its axes where the Program starts it, lanes work in order of entry,
// and a wait holds the compute lane until its bucket is complete. While both kinds are busy each
// is slowed down as Machine::overlap says. All ranks do the same, so one rank is played.
#pragma once

#include <vector>

#include "cost/cost.h"

namespace tessera {

/// The steps of a function in order, those of a loop's body behind the loop: their numbers below.
std::vector<const Step*> all_steps(const Function& function);

/// One bucket of a function: collectives that start together. In a loop, one for each iteration.
struct CollectiveTime {
  int step = 0;  ///< its first collective, in all_steps()
  int members = 1;
  std::vector<int> axes;
  int64_t bytes = 0;   ///< sent by a rank
  double seconds = 0;  ///< undisturbed
  double exposed = 0;  ///< how long the compute lane waited for it
  double hidden() const { return seconds > exposed ? seconds - exposed : 0; }
};

/// What the lanes do when; lane 0 computes, each set of axes has a further one.
struct TimeSpan {
  int step = 0;  ///< in all_steps()
  int lane = 0;
  double begin = 0, seconds = 0;
};

struct AxisTime {
  std::vector<int> axes;
  int64_t bytes = 0;
  double seconds = 0, exposed = 0;
};

struct FunctionTime {
  double seconds = 0;  ///< = compute + slowed + the exposed of all collectives
  double compute = 0;  ///< undisturbed
  double slowed = 0;   ///< by transfers at the same time
  double exposed = 0;
  std::vector<CollectiveTime> collectives;  ///< in order of start
  std::vector<AxisTime> by_axes;            ///< in order of first start
  std::vector<TimeSpan> spans;              ///< only if asked for
};

/// Plays a function, loops with all their iterations (with a condition: the most there can be).
/// Compiling and playing need no rank, so any mesh will do.
FunctionTime time_of(const Function& function, const Costs& costs, bool spans = false);
/// The same, without single collectives and spans: of a loop some iterations are played, and the
/// others count as these.
FunctionTime total_time(const Function& function, const Costs& costs);

}  // namespace tessera
