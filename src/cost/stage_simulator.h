// Simulates the loop over the ticks of a pipeline, on all of its stages.
//
// Each stage has a clock and runs the steps of the Program in their order. A link has two
// directions: what a stage sends leaves it one after the other, what it receives arrives one after
// the other, and both pass at once. A stage that waits goes on when its own data has arrived. What
// it sends leaves it at once, from buffers. A collective other than an exchange between two stages
// ends on all stages together, after the last of them has begun it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "cost/cost.h"
#include "cost/stage_messages.h"

namespace tessera {

/// A part of what a stage does in a tick. work: steps that are no transfers between stages. start,
/// wait: of a bucket that other stages take part in. meet: all stages wait for each other.
struct StageOp {
  enum class Kind : uint8_t { work, start, wait, meet };
  Kind kind = Kind::work;
  double seconds = 0;                 ///< of work, with transfers over other axes in it
  double compute = 0;                 ///< of work: its compute alone
  std::span<const Step> bucket = {};  ///< of a start
  int step = -1;                      ///< of a start: the number of its first member
  int number = -1;                    ///< of a start or wait: the bucket's
};

/// A bucket that stages took part in together.
struct StageTransfer {
  int step = 0;  ///< the number of its first member
  std::span<const Step> bucket;
  double seconds = 0;  ///< as a collective by itself
  double exposed = 0;  ///< its part of StagesTime::exposed
  /// When the first stage received or, if it only sent, when that left it. end < begin: neither.
  double begin = 0, end = -1;
};

/// A run of a share of a tick on a stage, or of steps between shares.
struct StageRun {
  std::span<const Step> steps;
  int step = 0;  ///< the number of the first
  int stage = 0;
  int64_t tick = 0;
  std::vector<double> begins = {};  ///< of each op
  double end = 0;
};

/// Times since the loop began.
///
/// Exposed is how much longer the loop takes than if transfers between stages took no time, but for
/// work that they slowed down. A transfer that came late on one stage delays others, and may not
/// matter where a stage waits for something else anyway: the parts of transfers are in proportion
/// to what each made stages later than they would be without any. What stages wait without
/// transfers is the pipeline's own bubble: seconds - work - slowed - exposed.
struct StagesTime {
  double seconds = 0;       ///< until the last stage is done
  double only_compute = 0;  ///< the same if nothing but compute took time
  double compute = 0;       ///< of a stage
  double work = 0;          ///< of a stage, with transfers over other axes
  double slowed = 0;        ///< extra time of that work because of transfers between stages
  double exposed = 0;       ///< of transfers between stages
  std::vector<StageTransfer> transfers;  ///< in order of the Program
  std::vector<StageRun> runs;            ///< in order of the Program
};

class StageSimulator {
 public:
  /// What a stage does in one run of these steps of the tick: one share, or steps between shares.
  /// number: of the first. All stages have the same starts, waits and meets. References stay valid.
  using OpsOf = std::function<const std::vector<StageOp>&(std::span<const Step> steps, int number,
                                                          int stage)>;

  /// `loop`: the loop over ticks, of which `number` is the first step of the body. Keeps
  /// references.
  StageSimulator(const Costs& costs, const Step& loop, int number, int axis, OpsOf ops_of);

  StagesTime simulate();

 private:
  /// The times of a stage: as simulated, if transfers between stages took no time, and if nothing
  /// but compute did.
  struct Clock {
    double now = 0, free = 0, only_compute = 0;
    double work_begin = 0, work_end = 0;  ///< of its last work
    double out = 0;                       ///< when the direction of its link that leaves it is free
    std::map<double, double> in;          ///< when the other one is taken: begin -> end
    double busy_until = 0;                ///< something passes to it or from it
  };
  /// Of a bucket that was started, for a stage: when it has all of it.
  struct Arrival {
    double now = 0, free = 0, only_compute = 0;
    double left = 0;  ///< seconds that pass only while the stage waits
  };
  struct UnderWay {
    size_t transfer = 0;  ///< in StagesTime
    std::vector<Arrival> arrivals;
  };

  void simulate_tick(int64_t tick);
  void simulate_together(std::span<const Step> steps, int number, int64_t tick);
  bool runs(const Step& share, int stage);
  void work(Clock& clock, const StageOp& op);
  void start(const StageOp& op, const std::vector<int>& stages);
  void send(const StageMessage& message, double alone, UnderWay& to);
  void wait(const StageOp& op, const std::vector<int>& stages);
  void meet(const std::vector<int>& stages);
  double seconds_of(const StageOp& op);

  const Costs& costs_;
  const Overlap overlap_;
  const Step& loop_;
  const int number_, axis_;
  const OpsOf ops_of_;
  StageMessages messages_;
  std::vector<Clock> clocks_;
  std::vector<int64_t> scalars_;
  std::map<int, std::deque<UnderWay>> under_way_;  ///< by number of the bucket
  std::map<const Step*, double> seconds_;          ///< by first member of a bucket
  double together_ = 0;                            ///< when the last collective of all stages ends
  StagesTime time_;
};

}  // namespace tessera
