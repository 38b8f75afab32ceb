// The subcommands, and what they share.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/checkpoint.h"
#include "tessera/cli.h"
#include "tessera/error.h"
#include "tessera/machine.h"
#include "tessera/optim.h"
#include "tessera/session.h"

namespace tessera::cli {

inline constexpr int64_t kMostThreads = 1024;       ///< of a rank
inline constexpr int64_t kMostDevices = 1'000'000;  ///< of a plan
/// What rank 0 is given to say what all know, before another one ends the job.
inline constexpr std::chrono::seconds kForRoot{3};

/// What the command line says, before it is resolved.
struct Arguments {
  std::string model;               ///< a model's name or a TOML file
  std::vector<std::string> sets;   ///< key=value
  std::string data, mesh, layout;  ///< empty: the configuration's
  std::string log, checkpoint, json, prompt, dump_dir, device = "cpu", trace;
  std::vector<std::string> watch, dump;  ///< globs
  int64_t save_every = 0, keep = 3, tokens = 200, steps = -1, dump_every = 1, threads = -1;
  double timeout = 120, temperature = 0.8, tolerance = -1;
  std::string csv, tensorboard, staging, on_nonfinite = "stop";
  std::optional<int64_t> check_replicas;  ///< steps between comparisons; 0: never; none: chosen
  bool resume = false, allow_changes = false, profile = false;
  bool alone = false;           ///< set by a command that needs no other process of its launch
  int zero = 0;                 ///< 1, 2 or 3, with `over`
  std::string over, fsdp;       ///< axes
  std::string memory;           ///< limit of a rank, with a unit
  std::string microbatch_size;  ///< a number, or auto
  std::string machine;          ///< name or file of a profile
  std::string out;              ///< calibrate, sweep, report: what they write
  double stragglers = 0, failure_hours = 0, checkpoint_seconds = 30, restart_seconds = 300;
  std::string budget = "20m", meshes;  ///< sweep
  int64_t devices = 0;                 ///< sweep, plan: meshes of so many ranks
  std::string layouts = "all", print_after, dtype = "float32";
  std::optional<double> seconds;       ///< of a search: solve (60), the planner (10)
  std::string why_not, why_not_mesh;   ///< plan: a layout, and its mesh if not the plan's
  bool pipeline = false;               ///< plan: with a pipeline, what if
  int64_t stages = 0, interleave = 0;  ///< simulate: of a pipeline; 0: none, chosen
  std::string schedule;                ///< simulate: 1f1b or interleaved
  int64_t tune = 0;                    ///< train: plans of the planner to be tried
  std::vector<int64_t> sizes;          ///< bench
  std::vector<std::string> words;      ///< bench: WHAT [MODEL]; compare: [MODEL] A B; ...
  std::vector<std::string> renames;    ///< convert: OLD=NEW
  bool all = false;                    ///< convert
  bool keys = false;                   ///< info
};

/// A model with its resolved configuration on a cluster.
struct Job {
  const ModelSpec* spec;
  Config config;
  Mesh mesh;
  Layout layout;
  std::string device = "cpu";              ///< CompileOptions::device
  std::shared_ptr<const Machine> machine;  ///< CompileOptions::machine
  std::set<std::string> given = {};        ///< keys that a file or the command line gave
};

/// What the planner chose for a job.
struct AutoPlan {
  std::string layout;
  /// key=value of train.recompute, train.reshard_after_forward and train.microbatches, as far as it
  /// says otherwise than the job.
  std::vector<std::string> sets = {};
};

/// [model] name of a TOML file; "gpt" if it has none.
std::string toml_model_name(const std::string& path);
/// What a value may be: "a whole number from 1 to 10000", "auto, or a number of at least 0",
/// "on or off"; "" for any text.
std::string range_text(const KeyRange& range);
/// All keys that commands know: those of the model and [train], [data], [layout].
Config default_config(const ModelSpec& spec);
/// Resolves model name or file, --set and the flags; the mesh defaults to data:N over the ranks
/// there are.
Job resolve(const Arguments& args, const std::vector<ModelSpec>& models, bool tiny);
/// The same with rules that are left to the planner.
Job resolve_without_plan(const Arguments& args, const std::vector<ModelSpec>& models,
                         bool tiny = false);
/// Gives every dim that the layout leaves to the planner (`auto`) its axes, and says what backward
/// recomputes and how many microbatches there are where nobody has. Under a launcher all ranks
/// must call it: the root plans.
void plan_layout(const Arguments& args, Job& job);
bool is_automatic(const Layout& layout);
/// The planner's best for the job's mesh, at most so many, the best first. As above.
std::vector<AutoPlan> auto_plans(const Arguments& args, const Job& job, size_t most);
/// The plan becomes the layout and the keys of the job.
void apply(const AutoPlan& plan, Job& job);
/// Bytes of "16GB", "512MiB", "2e9", the value of a flag. Throws a usage error.
int64_t parse_bytes(const char* flag, const std::string& text);
/// --machine, else the calibrated profile of this machine, if there is one.
std::optional<Machine> find_machine(const Arguments& args);
/// The same, or the planner's default profile.
Machine machine_for_plans(const Arguments& args);
/// The machine that communication is scheduled for: the planner's machine for a layout that it
/// chooses, else find_machine(), if it was asked for or knows such a mesh.
std::shared_ptr<const Machine> machine_of(const Arguments& args, const Job& job);
/// Under a launcher every rank takes the root's machine. Collective.
void agree_on_machine(Cluster& cluster, Job& job);
/// With --memory: resolves train.recompute = auto to what costs least and fits, and
/// train.microbatches = auto to the fewest that fit, and refuses a job that does not fit on a rank,
/// with a breakdown and the cheapest flags that would do.
void fit_memory(const Arguments& args, Job& job);
/// By how much a job exceeds --memory, as that counts; 0 where that cannot be told.
int64_t bytes_over(const Arguments& args, const Job& job);
/// Ranks that have a share of a batch of their own: those that the layout splits `batch` over.
int64_t data_ranks(const Job& job);
/// --microbatch-size: sets train.microbatches so that a data rank computes so many examples at a
/// time, or to auto. Throws a usage error with the arithmetic where the batch is no such product.
void set_microbatch_size(const std::string& text, Job& job);
/// The values of train.microbatches for which each data rank has equal microbatches, from 1 on.
std::vector<int64_t> microbatch_counts(const Job& job);
/// "16 examples = 2 in a microbatch x 4 data ranks x 2 accumulated".
std::string batch_text(const Job& job);
/// The rules that a text is, or those of the file that "@FILE" names. Throws io errors, and a usage
/// error for a file without a rule.
std::string layout_rules(const std::string& text);
/// The layouts of a file, one a line; blank lines and those that begin with # are none. Throws io
/// errors, and a usage error for a file without a layout.
std::vector<std::string> layouts_in(const std::string& path);
/// Throws a usage error for a rule of a purpose that no tensor of it heeds: `@params batch:data`.
/// Rules of all tensors are checked where they are lowered.
void require_purposes(const Graph& graph, const Layout& layout);
/// The checkpoints of --checkpoint, the newest first. Throws a usage error if there is none.
std::vector<Checkpoint> checkpoints_of(const Arguments& args);
/// Loads what a session stores from the first of `all` that can be read; those that are passed over
/// are told on stderr. Collective.
Checkpoint load_first(Session& session, const std::vector<Checkpoint>& all);
/// Takes the [model] keys from the configuration that a checkpoint stores, so that they need not be
/// repeated.
void take_stored_model(Job& job, const Checkpoint& checkpoint);
/// The cluster for a job's mesh: MPI under a launcher, else threads.
Cluster make_cluster(const Job& job, const Arguments& args);

/// A model ready to train: graph, loss, optimizer, "train" (and "grads" if `fetch_gradients`).
struct Trainer {
  Graph graph;
  nn::Model model;
  Minimized minimized;
  Tensor lr;
  std::vector<FunctionSpec> functions;
};
void build_trainer(const Job& job, Trainer& trainer, bool fetch_gradients);
/// train.parameters and train.rounding, for a graph that is about to be built.
void store_parameters(const Config& config, Graph& graph);
/// train.overlap, train.chunks, train.offload, train.grad_reduce_dtype, train.grad_reduce,
/// train.matmul_precision and the job's machine.
void set_schedule(const Job& job, CompileOptions& options);
/// Of a job's trainer, with that schedule.
CompileOptions options_of(const Job& job, const Trainer& trainer);
/// CompileOptions::threads_per_rank.
int threads_of(const Job& job);
/// Of a step, from 0.
double learning_rate(const Job& job, int64_t step);
void feed_scalar(Session& session, Tensor input, double value);
/// Examples that need no file: hashed numbers in the range of each input.
void feed_examples(Session& session, const nn::Model& model, int64_t step);

/// What the held-out data say of a model.
struct Evaluation {
  double loss = 0;
  double accuracy =
      -1;  ///< share of examples whose largest logit is the label; -1 for models without "labels"
};

/// Mean loss over the held-out data, with the parameters of `trained`.
class Evaluator {
 public:
  /// Opens the data, so that what is wrong with them is told now; the rest is made when it is first
  /// needed.
  Evaluator(const Job& job, Cluster& cluster);
  /// Without data there is nothing to run.
  bool has_data() const { return source_ != nullptr; }
  Evaluation run(Session& trained);
  /// With the parameters that the session has.
  Evaluation run();
  int64_t examples() const { return source_->examples(); }
  Session& session();

 private:
  Job job_;
  Cluster& cluster_;
  int64_t count_hits(int64_t rows);
  Graph graph_;
  nn::Model model_;
  std::unique_ptr<DataSource> source_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<Session> session_;
};

int train(const Arguments& args, const std::vector<ModelSpec>& models);
int eval(const Arguments& args, const std::vector<ModelSpec>& models);
int generate(const Arguments& args, const std::vector<ModelSpec>& models);
int info(const Arguments& args, const std::vector<ModelSpec>& models);
int verify(const Arguments& args, const std::vector<ModelSpec>& models);
int explain(const Arguments& args, const std::vector<ModelSpec>& models);
int compare(const Arguments& args, const std::vector<ModelSpec>& models);
int solve(const Arguments& args);
int plan(const Arguments& args, const std::vector<ModelSpec>& models);
int bench(const Arguments& args, const std::vector<ModelSpec>& models);
int checkpoint(const Arguments& args);
int convert(const Arguments& args);
int report(const Arguments& args);
int simulate(const Arguments& args, const std::vector<ModelSpec>& models);
int calibrate(const Arguments& args);
int sweep(const Arguments& args, const std::vector<ModelSpec>& models);
int diff(const Arguments& args, const std::vector<ModelSpec>& models);

/// One message for a job, not one a rank: the launcher ends the others when the first one exits, so
/// that what is known to all is printed by rank 0, and what another rank says of itself by that
/// one. Where the launcher does not, the others print too, later. A rank that gave up a peer stays
/// for a while: mpirun notices a host that is cut off only as long as it has nothing to send there.
/// The exit code.
int report_error(ErrorKind kind, const char* what, bool is_peers);

}  // namespace tessera::cli
