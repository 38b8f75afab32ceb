// Predicted time of a function, by simulating its schedule.
//
// There is a compute lane, which runs the steps in order, and a communication lane for each set of
// axes. A collective enters its lane where the Program starts it; a lane works in order of entry; a
// wait blocks the compute lane until its bucket is complete. While both kinds of lanes are busy
// each is slowed down by Machine::overlap. All ranks do the same, so one rank is simulated; but the
// loop over the ticks of a pipeline, in which stages do different things, is simulated for a rank
// of each stage (cost/stage_simulator.h). Times of that loop are means over the stages.
#pragma once

#include <vector>

#include "cost/cost.h"

namespace tessera {

/// All steps of a function in order; those of a loop's body follow the loop. Step numbers below are
/// indices of this list.
std::vector<const Step*> all_steps(const Function& function);

/// The number of steps in the bodies of a loop, nested loops included.
int steps_inside(const Step& loop);

/// One bucket of a function; in a loop, one per iteration.
struct CollectiveTime {
  int step = 0;  ///< first member, in all_steps()
  int members = 1;
  std::vector<int> axes;
  int64_t bytes = 0;   ///< sent by a rank
  double seconds = 0;  ///< without slowdown
  double exposed = 0;  ///< how long the compute lane waited for it; between stages of a pipeline
                       ///< see StagesTime
  double share = 1;    ///< 1 / P for one that a stage of P has by itself
  double hidden() const { return seconds > exposed ? seconds - exposed : 0; }
};

/// An interval in which a lane was busy. Lane 0 computes; each set of axes has its own lane. In the
/// ticks of a pipeline: of the first stage.
struct TimeSpan {
  int step = 0;  ///< in all_steps()
  int lane = 0;
  double begin = 0, seconds = 0;
  int collective = -1;  ///< of a transfer: in FunctionTime::collectives
};

struct AxisTime {
  std::vector<int> axes;
  int64_t bytes = 0;
  double seconds = 0, exposed = 0;
};

/// A stage of a pipeline computes in a share of the loop over ticks, for a microbatch.
struct TickSpan {
  int step = 0;  ///< the share, in all_steps()
  int loop = 0;  ///< the loop over ticks, in all_steps()
  int stage = 0;
  int64_t tick = 0;
  double begin = 0, seconds = 0;
};

struct FunctionTime {
  double seconds = 0;  ///< = compute + slowed + exposed + bubble
  double compute = 0;  ///< without slowdown
  double slowed = 0;   ///< extra compute time because of concurrent transfers
  double exposed = 0;
  double bubble = 0;          ///< a stage of a pipeline waits for work
  double bubble_compute = 0;  ///< what is left of the bubble if nothing but compute takes time
  std::vector<CollectiveTime> collectives;  ///< in order of start
  std::vector<AxisTime> by_axes;            ///< in order of first start
  std::vector<TimeSpan> spans;              ///< only if asked for
  std::vector<TickSpan> ticks;              ///< only if asked for, in the order of the Program
};

/// Simulates a function with all iterations of its loops (with a condition: the most there can be).
/// The Program may be for any mesh; no rank is needed.
FunctionTime time_of(const Function& function, const Costs& costs, bool spans = false);
/// The same without `collectives` and `spans`. Only some iterations of a loop are simulated, the
/// rest extrapolated.
FunctionTime total_time(const Function& function, const Costs& costs);

}  // namespace tessera
