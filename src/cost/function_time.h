// Predicted time of a function, by simulating its schedule.
//
// There is a compute lane, which runs the steps in order, and a communication lane for each set of
// axes. A collective enters its lane where the Program starts it; a lane works in order of entry; a
// wait blocks the compute lane until its bucket is complete. While both kinds of lanes are busy
// each is slowed down by Machine::overlap. All ranks do the same, so one rank is simulated.
#pragma once

#include <vector>

#include "cost/cost.h"

namespace tessera {

/// All steps of a function in order; those of a loop's body follow the loop. Step numbers below are
/// indices of this list.
std::vector<const Step*> all_steps(const Function& function);

/// One bucket of a function; in a loop, one per iteration.
struct CollectiveTime {
  int step = 0;  ///< first member, in all_steps()
  int members = 1;
  std::vector<int> axes;
  int64_t bytes = 0;   ///< sent by a rank
  double seconds = 0;  ///< without slowdown
  double exposed = 0;  ///< how long the compute lane waited for it
  double hidden() const { return seconds > exposed ? seconds - exposed : 0; }
};

/// An interval in which a lane was busy. Lane 0 computes; each set of axes has its own lane.
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

/// A turn of a pipeline: some stages run a share of the loop over turns, each for a microbatch.
struct TurnSpan {
  int step = 0;  ///< the share, in all_steps()
  int64_t turn = 0;
  double begin = 0, seconds = 0;
};

/// Of a pipeline, a turn is played if any stage works in it. A stage that has no work in it waits:
/// the mean time of such turns is the bubble, and no part of the other figures.
struct FunctionTime {
  double seconds = 0;  ///< = compute + slowed + exposed + bubble
  double compute = 0;  ///< without slowdown
  double slowed = 0;   ///< extra compute time because of concurrent transfers
  double exposed = 0;
  double bubble = 0;
  double bubble_compute = 0;  ///< the part of the bubble in which other stages compute
  std::vector<CollectiveTime> collectives;  ///< in order of start
  std::vector<AxisTime> by_axes;            ///< in order of first start
  /// By step, in all_steps(): of the times that it was played, the share that one stage runs. Less
  /// than 1 in turns of a pipeline. `collectives` and `spans` are as played.
  std::vector<double> shares;
  std::vector<TimeSpan> spans;  ///< only if asked for
  std::vector<TurnSpan> turns;  ///< only if asked for, in order
};

/// Simulates a function with all iterations of its loops (with a condition: the most there can be).
/// The Program may be for any mesh; no rank is needed.
FunctionTime time_of(const Function& function, const Costs& costs, bool spans = false);
/// The same without `collectives` and `spans`. Only some iterations of a loop are simulated, the
/// rest extrapolated.
FunctionTime total_time(const Function& function, const Costs& costs);

}  // namespace tessera
