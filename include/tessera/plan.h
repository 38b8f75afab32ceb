// The planner: finds the layout, storage, recompute and microbatches with the least predicted step
// time on a machine, within its memory.
//
// The search space. Each mesh axis is assigned to a set of dim names of which no tensor has two, or
// to none; so a dim may have several axes. In addition: storage rules of ZeRO 1, 2 or 3 over the
// axes along which parameters are replicated; what backward recomputes, or gathers again; and the
// number of microbatches, the fewest that fit. An axis may also split the layers into the stages of
// a pipeline, with any number of microbatches and any schedule. A plan is priced by lowering models
// of one and of two layers and extrapolating (layers that are a loop, as in a pipeline, are lowered
// whole). The best plans are finally lowered whole.
//
// Estimates decide what is priced first. A lower bound proves that no better plan is left: it
// counts the matmuls, each split over all axes of its dims; and the compute time of a priced plan
// bounds all plans that differ only in storage. Finally the best plans get scoped rules for
// segments of the model (`@/*norm*/ length:model`) where that pays; the bound does not cover those.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/compile_options.h"
#include "tessera/graph.h"
#include "tessera/machine.h"
#include "tessera/mesh.h"

namespace tessera {

/// Options of building a training step, apart from its layout.
struct PlanBuild {
  int64_t layers = 1;              ///< number of repetitions of the layer
  std::string recompute = "none";  ///< scopes as in GradientOptions, comma-separated
  std::string reshard_after_forward = "none";
  int64_t microbatches = 1;
  bool looped = false;    ///< build the layers as a loop though the model unrolls them
  bool unrolled = false;  ///< unroll the layers though the model has a loop
  std::string pipeline_schedule = "1f1b";
  /// CompileOptions::reduce_each_microbatch, if the model does not ask for it anyway.
  bool reduce_each_microbatch = false;
};

/// A graph, and the functions of one training step.
struct PlanStep {
  std::shared_ptr<const Graph> graph;
  std::vector<FunctionSpec> functions;
};

/// The model to plan.
struct PlanModel {
  std::string name;
  std::function<PlanStep(const PlanBuild&)> build;
  int64_t layers = 1;    ///< of the whole model
  bool is_loop = false;  ///< the layers are a loop, lowered alike for any number
  /// Not empty: build() can make the layers a loop. Candidates are then priced as a loop; the best
  /// plan is lowered unrolled. For ZeRO-3 these scopes are then resharded after forward, so that
  /// layers do the same as iterations.
  std::string reshard_of_loop = {};
  /// Not empty: build() can make the layers a loop, which this setting does ("scan=true"). Plans
  /// may then split the layers into stages.
  std::string loop_setting = {};
  std::string microbatch_dim = "batch";  ///< the dim that microbatches split
  int64_t tokens = 0;                    ///< of a step; 0: not known
  std::vector<std::pair<std::string, std::string>> recompute_options = {
      {"none", "none"}};                    ///< (recompute, reshard_after_forward), cheapest first
  std::vector<int64_t> microbatches = {1};  ///< ascending
  std::vector<std::string> schedules = {"1f1b"};  ///< names of pipeline_schedules()
  std::string device = "cpu";  ///< CompileOptions::device: decides the workspaces of kernels
  /// Compile options of a step: see CompileOptions.
  bool overlap = true, wide_grad_reduce = false, reduce_each_microbatch = false,
       offload_state = false;
  int64_t strict_chunks = 0;
  /// True: plans may reduce gradients after each microbatch where that saves memory.
  bool may_reduce_each_microbatch = false;
  /// The options with which `functions` of the model are compiled under a layout.
  CompileOptions options(const Mesh& mesh, const Layout& layout,
                         const std::vector<FunctionSpec>& functions) const;
};

struct PlanOptions {
  /// Bytes of a device that plans may use; default: Machine::usable_memory().
  std::optional<int64_t> memory;
  double seconds = 10;  ///< time limit of the search
  size_t runners_up = 4;
  /// Rules that every plan keeps. With "*:auto" the planner may split all other dims, with
  /// "heads,ff:auto" only those. Without an automatic rule "*:auto" is assumed.
  Layout layout;
  /// True: examine all layouts of single tensors on the best plan's mesh, too (Plan::tensors).
  /// Takes up to as long as the search may.
  bool each_tensor = false;
};

/// Communication over one set of axes in a step.
struct PlanAxes {
  std::string axes;   ///< "data+model"
  int64_t bytes = 0;  ///< sent by each rank
  double seconds = 0, exposed = 0;
};

/// What the collectives of one kind of one tensor send in a step; numbers in its name are *, so
/// that repeated layers count together: "gpt.block*.mlp.up.w".
struct PlanTransfer {
  std::string kind, tensor, axes;
  int64_t bytes = 0;  ///< sent by each rank
};

/// A plan with its predicted time and memory.
struct PricedPlan {
  Mesh mesh;
  std::string layout;  ///< all its rules
  std::string rules;   ///< its rules but for those of storage: "batch:data;heads,ff,vocab:model"
  std::string scoped;  ///< the scoped ones of them: "@/*norm*/ length:model"
  int zero = 0;        ///< ZeRO stage, as in storage_rules()
  std::string over;    ///< the axes of ZeRO
  /// Further settings: "scan=true pipeline_schedule=gpipe grad_reduce=microbatch".
  std::string settings = {};
  PlanBuild build;
  double seconds = 0;         ///< predicted step time: compute + slowed + exposed + bubble
  double compute = 0;         ///< compute without communication
  double slowed = 0;          ///< slowdown of compute by concurrent communication
  double exposed = 0;         ///< communication not overlapped with compute
  double bubble = 0;          ///< of a pipeline: idle, while other stages work
  double bubble_compute = 0;  ///< part of `bubble` in which those compute
  double update = 0;          ///< part of `compute`: from the first optimizer update on
  std::vector<PlanAxes> by_axes;
  std::vector<PlanTransfer> transfers;                       ///< the largest
  int64_t params = 0, state = 0, inputs = 0, transient = 0;  ///< bytes per rank
  bool whole = false;  ///< lowered whole; false: extrapolated from one and two layers
  int64_t memory() const { return params + state + inputs + transient; }
};

/// The flags of `tessera train` that choose a plan: --mesh "data:2" --layout "batch:data" --zero 1
/// --over data --recompute block --set microbatches=4. written_out: the layout has all rules, those
/// of the storage instead of --zero too.
std::string train_flags(const PricedPlan& plan, bool written_out = false);

/// A plan in the words of people who train: "FSDP over 64", "HSDP over 8 x 64, experts over 64";
/// `example_dim`: the dim that counts examples.
std::string kind_of(const PricedPlan& plan, const std::string& example_dim);

/// The best plan that splits one dim differently.
struct DimAlternative {
  std::string dim, now, instead;  ///< axes, "-" for none
  double penalty = 0;             ///< additional seconds
  int64_t memory = 0;             ///< bytes of that plan
  bool fits = true;
};

/// What is known about all layouts of single tensors: one for each tensor, alike in all layers. The
/// seconds are those of the steps one after the other, with nothing fused and no transfer hidden,
/// of a step without microbatches that recomputes nothing.
struct PlanTensors {
  int64_t tensors = 0, ops = 0;  ///< of one layer and what stands around it; 0: not examined
  std::string left_out;          ///< why not
  Mesh mesh;
  double planned = 0;  ///< of the plan, with the rules that the optimum gave it
  double least = 0;    ///< of the best layouts found
  double bound = 0;    ///< no layouts take less
  /// Seconds that no layouts are predicted to take less than, with fusion and overlap: of kernels,
  /// of what is read and written anyway, and of transfers that nothing hides.
  double floor = 0;
  /// Scoped rules that bring that plan nearer to the best layouts, those of the fastest try; "":
  /// none were tried.
  std::string rules;
  double before = 0, simulated = 0;  ///< predicted step times without and with them
  /// True if no layouts take 0.1 % less than the plan's.
  bool is_proof() const { return tensors > 0 && bound >= 0.999 * planned; }
};

struct Plan {
  PricedPlan best;
  double bound = 0;      ///< lower bound in seconds, for plans without scoped rules
  bool optimal = false;  ///< proved: no plan without scoped rules is better, by this cost model
  std::vector<PricedPlan> runners_up;
  /// The fastest plans of other kinds (kind_of()) that people would try; some may not fit.
  std::vector<PricedPlan> usual;
  std::string microbatch_dim;        ///< of the model
  int64_t examples = 0, tokens = 0;  ///< of a step; 0: not known
  double flops = 0;                  ///< of the model in a step, nothing recomputed
  std::vector<DimAlternative> alternatives;
  double saved_per_gib = 0;   ///< seconds that 1 GiB more memory per device would save
  double table_seconds = 0;   ///< of the best, extrapolated from one and two layers
  int64_t memory_limit = 0;   ///< bytes; 0: none
  int64_t reserve = 0;        ///< bytes of a device that the limit leaves; 0 if it was given
  double plain_seconds = 0;   ///< best plan without scoped rules, extrapolated; 0: none fits
  int64_t scoped = 0;         ///< number of priced plans with scoped rules
  int64_t space = 0;          ///< number of assignments of axes to dims
  int64_t priced = 0;         ///< number of plans that were lowered and simulated
  int64_t illegal = 0;        ///< number of plans that proved illegal
  int64_t too_large = 0;      ///< number of assignments skipped because their estimate does not fit
  double first_seconds = 0;   ///< time until the first plan that fits
  double proof_seconds = 0;   ///< time until the proof, or until the gap was known
  double search_seconds = 0;  ///< total time
  std::string machine;
  PlanTensors tensors;
  /// (table_seconds - bound) / table_seconds; 0 if optimal.
  double gap() const;
};

/// Finds the best plan. Throws a usage error if no plan is legal, if none fits into memory (naming
/// the plan that needs least), and for rules with names that the model or mesh lacks.
Plan plan(const PlanModel& model, const Mesh& mesh, const Machine& machine,
          const PlanOptions& options = {});
/// The same over all meshes of up to three axes with `devices` devices.
Plan plan(const PlanModel& model, int64_t devices, const Machine& machine,
          const PlanOptions& options = {});
/// The same for given functions: plans layout and storage only.
Plan plan(const Graph& graph, const std::vector<FunctionSpec>& functions, const Mesh& mesh,
          const Machine& machine, const PlanOptions& options = {});

/// Prices one plan. `build.layers` is ignored: the model's number is used. `whole`: lower the whole
/// model instead of extrapolating.
PricedPlan price(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                 const PlanBuild& build, const Machine& machine, bool whole = false);

/// How far a link's bandwidth may change in one direction until another plan is faster.
struct BreakEvenSide {
  /// Bandwidth per device in bytes/s at which `instead` takes as long as the plan; 0: out of time.
  double bandwidth = 0;
  std::optional<PricedPlan> instead;  ///< none: the plan is best at least up to `bandwidth`
  /// True if proved that no plan is faster in between; false: none was found in the time limit.
  bool shown = false;
};

struct BreakEven {
  std::string link;      ///< a link of Machine::links that the plan uses
  std::string axes;      ///< axes that use it: "data, model"
  double bandwidth = 0;  ///< now
  BreakEvenSide below, above;
};

/// The break-even bandwidths of a plan that plan() found with the same arguments. Each bandwidth is
/// varied from 1/64 to 64 times its value, to a precision of 1 %. Takes about `seconds`.
std::vector<BreakEven> break_even(const PlanModel& model, const Mesh& mesh, const Machine& machine,
                                  const PlanOptions& options, const Plan& plan, double seconds);
std::vector<BreakEven> break_even(const PlanModel& model, int64_t devices, const Machine& machine,
                                  const PlanOptions& options, const Plan& plan, double seconds);

/// The execution of one microbatch in one chunk of layers of a stage.
struct StageSpan {
  int stage = 0, chunk = 0;  ///< chunk: index within the stage
  int64_t microbatch = 0;
  bool is_forward = true, hands_over = false;  ///< hands_over: sends to another stage
  double begin = 0, seconds = 0;
};

/// A pipeline as other frameworks run it: layers are divided into stages, each with its own
/// devices, embedding and head are on the first and the last one, and microbatches pass from stage
/// to stage. It is simulated; what a rule such as `layers:pipe` makes is a PricedPlan.
struct PipelinePlan {
  /// The plan of one stage's devices. Times are those of the slowest stage with its bubble, bytes
  /// the maximum over stages. build.microbatches microbatches pass through the stages.
  PricedPlan stage;
  int64_t stages = 1;
  int64_t chunks = 1;   ///< per stage; 1: 1F1B schedule, more: interleaved 1F1B
  double transfer = 0;  ///< seconds to send a microbatch to the next chunk
  int64_t handed = 0;   ///< bytes of that transfer, per rank
  double once = 0;      ///< seconds after the last microbatch: gradient reduction and update
  std::vector<StageSpan> spans = {};  ///< the schedule
};

/// `mesh` is the mesh of a stage; build.microbatches must be at least two. Throws a usage error if
/// the model cannot be divided into stages.
PipelinePlan price_pipeline(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                            const PlanBuild& build, int64_t stages, int64_t chunks,
                            const Machine& machine);

/// Reports as text.
std::string to_string(const Plan& plan);
std::string to_string(const std::vector<BreakEven>& links);
/// How much more another plan costs, and why.
std::string compare(const Plan& plan, const PricedPlan& other);

}  // namespace tessera
