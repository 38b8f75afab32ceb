// Predicted time of Program steps, and of a whole function by its schedule.
//
// A function is played on two kinds of lanes: the compute lane works off its steps in order; a
// collective enters the lane of its axes where the Program starts it, lanes work in order of entry,
// and a wait holds the compute lane until its exchange is complete. While both kinds are busy each
// is slowed down as Machine::overlap says. All ranks do the same, so one rank is played.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "collectives/cost.h"
#include "runtime/program.h"
#include "tessera/machine.h"
#include "tessera/mesh.h"

namespace tessera {

/// Bytes that a compute step reads and writes: of each view, every element once.
int64_t bytes_touched(const Step& step);

/// A product as a machine sees it: `batch` products of [m, k] by [k, n].
struct ProductSizes {
  int64_t batch = 1, m = 1, n = 1, k = 1;
};
/// Of a step "contract".
ProductSizes product_sizes(const Step& step);

/// Prices single steps. Keeps references: machine and axes outlive it.
class Costs {
 public:
  /// Throws a usage error if an axis names a link class that the machine lacks, or the mesh has
  /// several ranks and the machine no links.
  Costs(const Machine& machine, const Mesh& mesh);

  const Machine& machine() const { return machine_; }
  const Mesh& mesh() const { return mesh_; }

  /// A compute step, launch included. Throws a usage error for a dtype of products that the profile
  /// lacks.
  double compute(const Step& step) const;
  /// One collective by itself, start included.
  double collective(const Step& step) const;
  /// The same without a step; bytes as for bytes_sent(). axes: mesh axes.
  double collective(CollectiveKind kind, double bytes, const std::vector<int>& axes) const;
  /// Of a collective like this one without any bytes.
  double start(const Step& step) const;
  /// Members of one exchange: transfers add up, the start is paid once.
  double exchange(std::span<const Step> members) const;
  CollectiveChoice algorithm(CollectiveKind kind, double bytes, const std::vector<int>& axes) const;
  /// The tiers that a group over these axes lies on, from the innermost; those with one rank are
  /// left out. Ranks are numbered with the last axis fastest and fill node after node.
  std::vector<LinkHop> hops(const std::vector<int>& axes) const;
  /// Their numbers in Machine::links.
  std::vector<size_t> tiers(const std::vector<int>& axes) const;
  /// The link class of the outermost tier that the group reaches.
  std::string link(const std::vector<int>& axes) const;

 private:
  double start(const std::vector<int>& axes) const;
  std::vector<int64_t> members(const std::vector<int>& axes) const;
  Machine machine_;
  Mesh mesh_;
};

/// The steps of a function in order, those of a loop's body behind the loop: their numbers below.
std::vector<const Step*> all_steps(const Function& function);

/// One exchange of a function; in a loop each trip's is one.
struct CollectiveTime {
  int step = 0;  ///< of its first member, in all_steps()
  int members = 1;
  std::vector<int> axes;
  int64_t bytes = 0;   ///< sent by a rank
  double seconds = 0;  ///< undisturbed
  double exposed = 0;  ///< the compute lane waited so long for it
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

/// Plays a function, loops with all their trips (with a condition: the most there can be).
/// Compiling and playing need no rank, so any mesh will do.
FunctionTime time_of(const Function& function, const Costs& costs, bool spans = false);
/// The same, without single collectives and spans: of a loop some trips are played, and the others
/// count as these.
FunctionTime total_time(const Function& function, const Costs& costs);

}  // namespace tessera
