// The planner: the layout, storage, recompute and microbatches of least predicted step time on a
// machine, within its memory.
//
// The space: a mesh axis is given to any set of dim names of which no tensor has two, or to none;
// so a dim may have several axes. On top of that come storage rules of ZeRO 1, 2 or 3 over the axes
// along which parameters are copies; values that backward recomputes, or parameters that it gathers
// anew; and microbatches, the fewest that fit. A plan is priced by lowering a model of one and of
// two layers and extrapolating (layers that are a loop are lowered whole). The best plans are
// lowered whole in the end.
//
// Estimates decide what is priced first. A bound shows that nothing better is left: matmuls, each
// split over all axes of its dims, take at least so long, and a plan whose computing is known
// bounds those that differ from it in storage only. In the end the best plans get scoped rules,
// which split segments of the model (`@/*norm*/ length:model`), where that pays; the bound says
// nothing about those.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/graph.h"
#include "tessera/machine.h"
#include "tessera/mesh.h"

namespace tessera {

/// How a training step is built, apart from its layout.
struct PlanBuild {
  int64_t layers = 1;              ///< how often the repeated layer occurs
  std::string recompute = "none";  ///< scopes of GradientOptions, joined by commas
  std::string reshard_after_forward = "none";
  int64_t microbatches = 1;
  bool looped = false;    ///< the layers as a loop, though the model has them one by one
  bool unrolled = false;  ///< the layers one by one, though the model has them as a loop
};

/// A graph, and the functions of one training step.
struct PlanStep {
  std::shared_ptr<const Graph> graph;
  std::vector<FunctionSpec> functions;
};

/// What is planned.
struct PlanModel {
  std::string name;
  std::function<PlanStep(const PlanBuild&)> build;
  int64_t layers = 1;    ///< of the whole model
  bool is_loop = false;  ///< the layers are a loop: any number of them is lowered alike
  /// If set, build() can make the layers a loop. Candidates are priced with that loop; the winner
  /// is lowered unrolled. Its layers do the same as iterations if these scopes are resharded after
  /// forward.
  std::string reshard_of_loop = {};
  std::string microbatch_dim = "batch";  ///< the dim that microbatches split
  std::vector<std::pair<std::string, std::string>> recompute_options = {
      {"none", "none"}};                    ///< recompute and reshard_after_forward, cheap to dear
  std::vector<int64_t> microbatches = {1};  ///< ascending
  /// How a step is compiled: see CompileOptions.
  bool overlap = true, wide_grad_reduce = false, reduce_each_microbatch = false,
       offload_state = false;
};

struct PlanOptions {
  std::optional<int64_t> memory;  ///< bytes of a device; else Machine::memory
  double seconds = 10;            ///< of the search
  size_t runners_up = 4;
  /// Rules that every plan has. With "*:auto" the planner may split all other dims, with
  /// "heads,ff:auto" only those; without any automatic rule it is as if "*:auto" were given.
  Layout layout;
};

/// What one set of axes carries in a step.
struct PlanAxes {
  std::string axes;   ///< "data+model"
  int64_t bytes = 0;  ///< sent by each rank
  double seconds = 0, exposed = 0;
};

/// What one tensor's collectives send in a step of a model with one layer.
struct PlanTransfer {
  std::string kind, tensor, axes;
  int64_t bytes = 0;  ///< by each rank
};

/// A plan with its price.
struct PricedPlan {
  Mesh mesh;
  std::string layout;  ///< all its rules
  std::string rules;   ///< those of computing: "batch:data;heads,ff,vocab:model"
  std::string scoped;  ///< of these, what the planner added for segments: "@/*norm*/ length:model"
  int zero = 0;        ///< the ZeRO stage, as for storage_rules()
  std::string over;    ///< the axes of ZeRO
  PlanBuild build;
  double seconds = 0;  ///< predicted, of a step: compute + slowed + exposed
  double compute = 0;  ///< computing
  double slowed = 0;   ///< computing slowed by communication at the same time
  double exposed = 0;  ///< waiting for communication
  double update = 0;   ///< of `compute`: from the first update on
  std::vector<PlanAxes> by_axes;
  std::vector<PlanTransfer> transfers;                       ///< the largest, in one layer
  int64_t params = 0, state = 0, inputs = 0, transient = 0;  ///< bytes of a rank
  bool whole = false;  ///< lowered whole, not extrapolated from one and two layers
  int64_t memory() const { return params + state + inputs + transient; }
};

/// The best plan that splits a dim otherwise.
struct DimAlternative {
  std::string dim, now, instead;  ///< axes, "-" for none
  double penalty = 0;             ///< seconds more
  int64_t memory = 0;             ///< of that plan
  bool fits = true;
};

struct Plan {
  PricedPlan best;
  double bound = 0;      ///< seconds that no plan of the space without scoped rules beats
  bool optimal = false;  ///< no such plan is better than `best`, by this cost model
  std::vector<PricedPlan> runners_up;
  std::vector<DimAlternative> alternatives;
  double saved_per_gib = 0;   ///< seconds that 1 GiB more a device would save (of plans priced)
  double table_seconds = 0;   ///< of the best, as extrapolated from one and two layers
  int64_t memory_limit = 0;   ///< bytes; 0: none
  double plain_seconds = 0;   ///< of the best plan without scoped rules, by table; 0: none fits
  int64_t scoped = 0;         ///< plans with scoped rules that were priced
  int64_t space = 0;          ///< assignments of axes to dims
  int64_t priced = 0;         ///< plans that were lowered and simulated
  int64_t illegal = 0;        ///< plans that turned out not to be legal
  int64_t too_large = 0;      ///< assignments that were left out: by estimate they do not fit
  double first_seconds = 0;   ///< from the start to the first plan that fits
  double proof_seconds = 0;   ///< from the start to the proof, or the gap
  double search_seconds = 0;  ///< of all
  std::string machine;
  /// (best - bound) / best; 0 if optimal.
  double gap() const;
};

/// Throws a usage error if no plan is legal, if none fits into memory (naming the plan that needs
/// least), and for rules that name what the model or mesh lacks.
Plan plan(const PlanModel& model, const Mesh& mesh, const Machine& machine,
          const PlanOptions& options = {});
/// The same over all meshes of up to three axes with so many devices.
Plan plan(const PlanModel& model, int64_t devices, const Machine& machine,
          const PlanOptions& options = {});
/// The same for functions that are already built: layout and storage only.
Plan plan(const Graph& graph, const std::vector<FunctionSpec>& functions, const Mesh& mesh,
          const Machine& machine, const PlanOptions& options = {});

/// The price of one plan. `build.layers` is ignored: the model has its layers. `whole`: lowered
/// whole.
PricedPlan price(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                 const PlanBuild& build, const Machine& machine, bool whole = false);

/// How far the bandwidth of a link class may change, one way, until another plan is faster.
struct BreakEvenSide {
  /// Bytes/s of a device at which `instead` takes as long as the plan; 0: the time was up.
  double bandwidth = 0;
  std::optional<PricedPlan> instead;  ///< none: the plan is the best up to `bandwidth` at least
  /// True if no plan of the space is faster in between; else none of those that were tried in time.
  bool shown = false;
};

struct BreakEven {
  std::string link;      ///< of Machine::links, used by the plan
  std::string axes;      ///< that use it: "data, model"
  double bandwidth = 0;  ///< as it is
  BreakEvenSide below, above;
};

/// The break-even bandwidths of a plan that plan() found with the same arguments: from a 64th of
/// each bandwidth to 64 times as much, to 1 %, in about `seconds`.
std::vector<BreakEven> break_even(const PlanModel& model, const Mesh& mesh, const Machine& machine,
                                  const PlanOptions& options, const Plan& plan, double seconds);
std::vector<BreakEven> break_even(const PlanModel& model, int64_t devices, const Machine& machine,
                                  const PlanOptions& options, const Plan& plan, double seconds);

/// One microbatch in one chunk of layers of a stage.
struct StageSpan {
  int stage = 0, chunk = 0;  ///< of the stage's, from 0
  int64_t microbatch = 0;
  bool is_forward = true, hands_over = false;  ///< hands_over: its result goes to another stage
  double begin = 0, seconds = 0;
};

/// A plan whose layers are dealt to stages, each with devices of its own, and whose microbatches
/// pass from stage to stage. Such plans are only priced: no Program has stages.
struct PipelinePlan {
  /// Of the devices of one stage. Seconds are those of the slowest stage, with its bubble; bytes
  /// those of the fullest. `build.microbatches` pass through the stages.
  PricedPlan stage;
  int64_t stages = 1;
  int64_t chunks = 1;   ///< of layers, on each stage; several: interleaved 1F1B, else 1F1B
  double bubble = 0;    ///< seconds in which that stage computes and exchanges nothing
  double transfer = 0;  ///< of one microbatch from a chunk to the next
  int64_t handed = 0;   ///< bytes of that transfer, of a rank
  double once = 0;      ///< behind the last microbatch: reduction of gradients, and the update
  std::vector<StageSpan> spans = {};  ///< of price_pipeline(): when each stage works
};

struct PipelinePlans {
  std::vector<PipelinePlan> plans;  ///< that fit, the best first
  int64_t space = 0;                ///< numbers of stages, with assignments of axes to dims
  int64_t priced = 0;
  int64_t least_memory = 0;  ///< of those priced
  double bound = 0;          ///< seconds that no plan of the space beats
  double search_seconds = 0;
};

/// Over numbers of stages that divide layers and devices, and meshes of up to two axes for a stage.
/// Throws a usage error where nothing can be cut into stages.
PipelinePlans plan_pipeline(const PlanModel& model, int64_t devices, const Machine& machine,
                            const PlanOptions& options = {});
/// The price of one: `mesh` is that of a stage, `build.microbatches` at least two.
PipelinePlan price_pipeline(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                            const PlanBuild& build, int64_t stages, int64_t chunks,
                            const Machine& machine);

/// A page for people.
std::string to_string(const Plan& plan);
std::string to_string(const std::vector<BreakEven>& links);
/// The best pipeline, beside the plan that runs.
std::string to_string(const PipelinePlans& pipelines, const Plan& beside);
/// A page on how much more another plan costs, and why.
std::string compare(const Plan& plan, const PricedPlan& other);

}  // namespace tessera
