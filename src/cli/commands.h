// The subcommands, and functions that they share.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "tessera/checkpoint.h"
#include "tessera/cli.h"
#include "tessera/error.h"
#include "tessera/generate.h"
#include "tessera/machine.h"
#include "tessera/optim.h"
#include "tessera/session.h"
#include "tessera/tokenizer.h"

namespace tessera::cli {

/// Since host_seconds() was `start`.
inline double seconds_since(double start) { return host_seconds() - start; }
/// Other ranks wait this long before they report an error, so that rank 0 reports a common one.
inline constexpr std::chrono::seconds kForRoot{3};

/// A model with its resolved configuration, mesh and layout.
struct Job {
  const ModelSpec* spec;
  Config config;
  Mesh mesh;
  Layout layout;
  std::string device = "cpu";                     ///< CompileOptions::device
  std::shared_ptr<const Machine> machine;         ///< CompileOptions::machine
  std::set<std::string> given = {};               ///< keys set by a file or the command line
  std::shared_ptr<const ModelSpec> folder = {};   ///< `spec` if the model is a folder
  std::shared_ptr<const ModelSpec> program = {};  ///< `spec` if the model is a program of PyTorch
};

/// What the planner chose for a job.
struct AutoPlan {
  std::string layout;
  /// key=value of train.recompute, train.reshard_after_forward and train.microbatches where the
  /// plan differs from the job.
  std::vector<std::string> sets = {};
};

/// The key `name` in the table [model] of a TOML file; "gpt" by default.
std::string toml_model_name(const std::string& path);
/// The allowed values as text: "a whole number from 1 to 10000", "auto, or a number of at least 0",
/// "on or off"; "" for any text.
std::string range_text(const KeyRange& range);
/// The default configuration: the model's keys and those of [train], [data] and [layout].
Config default_config(const ModelSpec& spec);
/// Resolves the model name or file, --set and the flags. The mesh defaults to data:N over all
/// ranks.
Job resolve(const ModelFlags& args, const std::vector<ModelSpec>& models, bool tiny);
/// The same without asking the planner: automatic rules remain in the layout.
Job resolve_without_plan(const ModelFlags& args, const std::vector<ModelSpec>& models,
                         bool tiny = false);
/// Asks the planner for the axes of all dims with `auto`, and for recompute and the number of
/// microbatches if they are not given. Under a launcher all ranks must call it; the root plans.
void plan_layout(const ModelFlags& args, Job& job);
bool is_automatic(const Layout& layout);
/// "lr" and "3e-4" of "lr=3e-4". Throws a usage error for another text of --set.
std::pair<std::string, std::string> key_and_value(const std::string& setting);
/// The model's default layout without rules for axes that the job's mesh lacks.
Layout default_layout(const Job& job);
/// The planner's `most` best plans for the job's mesh, best first. All ranks must call it.
std::vector<AutoPlan> auto_plans(const ModelFlags& args, const Job& job, size_t most);
/// Applies the plan to the job's layout and keys.
void apply(const AutoPlan& plan, Job& job);
/// The bytes of a flag's value: "16GB", "512MiB", "2e9". Throws a usage error.
int64_t parse_bytes(const char* flag, const std::string& text);
/// The machine of --machine, else the calibrated profile of this machine, if there is one.
std::optional<Machine> find_machine(const MachineFlag& args);
/// The same, else the planner's default profile.
Machine machine_for_plans(const MachineFlag& args);
/// What --device says; else, of a command that only predicts, the kind of the devices of `machine`.
std::string device_of(const JobFlags& args, const std::string& machine = "");
/// The machine for which communication is scheduled: the planner's if it chooses the layout; else
/// that of find_machine(), if --machine is given or the profile knows the mesh.
std::shared_ptr<const Machine> machine_of(const ModelFlags& args, const Job& job);
/// Under a launcher every rank uses the root's machine. Collective.
void agree_on_machine(Cluster& cluster, Job& job);
/// With --memory: resolves train.recompute = auto to the cheapest policy that fits, and
/// train.microbatches = auto to the fewest that fit. Throws a usage error if the job does not fit,
/// with a breakdown and the cheapest flags that would make it fit.
void fit_memory(const ModelFlags& args, Job& job);
/// Bytes by which a job exceeds --memory (negative if it fits); 0 if unknown.
int64_t bytes_over(const ModelFlags& args, const Job& job);
/// The number of data-parallel ranks: those over which the layout splits `batch`.
int64_t data_ranks(const Job& job);
/// --microbatch-size: sets train.microbatches so that each data rank processes that many examples
/// at a time, or to auto. Throws a usage error with the arithmetic if the batch is not divisible.
void set_microbatch_size(const std::string& text, Job& job);
/// The values of train.microbatches that give each data rank equal microbatches, ascending.
std::vector<int64_t> microbatch_counts(const Job& job);
/// "16 examples = 2 in a microbatch x 4 data ranks x 2 accumulated".
std::string batch_text(const Job& job);
/// The layout rules of --layout: the text itself, or the content of the file for "@FILE". Throws io
/// errors, and a usage error for a file without a rule.
std::string layout_rules(const std::string& text);
/// A layout as commands print it.
inline std::string layout_text(const std::string& rules) {
  return rules.empty() ? "nothing split" : rules;
}
inline std::string layout_text(const Layout& layout) { return layout_text(layout.to_string()); }
/// The layouts of a file, one per line; blank lines and lines that begin with # are ignored. Throws
/// io errors, and a usage error for a file without a layout.
std::vector<std::string> layouts_in(const std::string& path);
/// Throws a usage error for a purpose rule that applies to no tensor of that purpose, such as
/// `@params batch:data`. Other rules are checked when they are lowered.
void require_purposes(const Graph& graph, const Layout& layout);
/// "" if the layout splits a dim over each axis; else a message that names the others, whose ranks
/// compute the same, and gives the layout that splits the examples over them, too.
std::string idle_axes_note(const Job& job);
/// The checkpoints of a directory, newest first. Throws a usage error if there is none.
std::vector<Checkpoint> checkpoints_of(const std::string& directory);
/// Loads parameters and state from the first readable checkpoint of `all`; unreadable ones are
/// named on stderr. Collective.
Checkpoint load_first(Session& session, const std::vector<Checkpoint>& all);
/// The same for the stored tensors of these names. `average`: moving averages of parameters, where
/// there are some.
Checkpoint load_first(Session& session, const std::vector<Checkpoint>& all,
                      const std::vector<std::string>& names, bool average = false);
/// Takes the [model] keys from the configuration stored in a checkpoint, so that they need not be
/// given again. Throws a usage error if one was given with another value, which the parameters
/// would not fit.
void take_stored_model(Job& job, const Checkpoint& checkpoint);
/// Takes what else says how examples are made of the data: the [data] keys but for path and
/// held_out, and the seed of masks and spans, unless they were given.
void take_stored_data(Job& job, const Checkpoint& checkpoint);
/// True for equal texts and for equal numbers in different notation: 1e-3 and 0.001.
bool same_value(const std::string& a, const std::string& b);
/// The configuration stored in a checkpoint; none if there is none. Throws a usage error if it is
/// that of another model.
std::optional<Config> stored_config(const Job& job, const Checkpoint& checkpoint);
/// Throws a usage error, with both values, if a [model] key of the stored configuration differs
/// from the job's, except for the keys in `free`.
void require_stored_model(const Job& job, const Checkpoint& checkpoint,
                          const std::set<std::string>& free);
/// The cluster for a job's mesh: MPI under a launcher, else threads.
Cluster make_cluster(const Job& job, const JobFlags& args);
/// The same without a job, so that only flags are compared.
Cluster make_cluster(int ranks, double timeout, const Invocation& how);

/// A model ready to train: graph, loss, optimizer, function "train" (and "grads" if
/// `fetch_gradients`).
struct Trainer {
  Graph graph;
  nn::Model model;
  Minimized minimized;
  Tensor lr;
  std::vector<FunctionSpec> functions;
};
void build_trainer(const Job& job, Trainer& trainer, bool fetch_gradients);
/// Adds what of the metrics a function does not return yet.
void add_outputs(const std::vector<Metric>& metrics, FunctionSpec& function);
/// Applies train.parameters and train.rounding to a graph before it is built.
void store_parameters(const Config& config, Graph& graph);
/// The last word of a key: "scan" of "model.scan".
std::string short_name(const std::string& key);
/// The chunks of train.numerics=strict.
inline constexpr int64_t kStrictChunks = 16;
/// Key train.numerics as CompileOptions::strict_chunks.
int64_t strict_chunks_of(const Config& config);
/// train.microbatches. Under strict numerics the next number, if there is one, that changes no bit.
int64_t microbatches_of(const Config& config);
/// Sets the compile options from train.numerics, train.overlap, train.chunks, train.offload,
/// train.grad_reduce_dtype, train.grad_reduce, train.matmul_precision and the job's device and
/// machine.
void set_schedule(const Job& job, CompileOptions& options);
/// The compile options of a job's trainer, with set_schedule(). `threads`: those of the job.
CompileOptions options_of(const Job& job, const Trainer& trainer, std::optional<int> threads = {});
/// CompileOptions::threads_per_rank of a job.
int threads_of(const Job& job);
/// Sets what a run without a checkpoint starts from: ModelSpec::start. Collective.
void start_parameters(const Job& job, Session& session);
/// The learning rate of a step, counted from 0.
double learning_rate(const Job& job, int64_t step);
/// Whether values are computed or parameters kept in a type of less than 32 bits.
bool is_narrow(const Config& config);
/// ModelSpec::tokens; 1 without it.
int64_t tokens_of_example(const Job& job);
/// ModelSpec::data; null for held-out data that a model has not. Throws a usage error for a model
/// without any.
std::unique_ptr<DataSource> open_data(const Job& job, bool held_out);
void feed_scalar(Session& session, Tensor input, double value);
/// Feeds synthetic examples: hashed numbers in the range of each input.
void feed_examples(Session& session, const nn::Model& model, int64_t step);

/// Results on the held-out data.
struct Evaluation {
  double loss = 0;
  double accuracy = -1;       ///< fraction of correct examples; -1 without "labels"
  NamedNumbers metrics = {};  ///< those of the model
};

/// Evaluates parameters on the held-out data; of a session that has moving averages, those.
class Evaluator {
 public:
  /// Opens the data, so that errors in them are reported now.
  Evaluator(const Job& job, Cluster& cluster);
  /// False: there are no held-out data, and run() must not be called.
  bool has_data() const { return source_ != nullptr; }
  /// Compiles the evaluation of a job that trains, so that its errors, lack of memory among them,
  /// come before the first step and not after the last one.
  void prepare_for_training();
  /// With the parameters of `trained`; after prepare_for_training().
  Evaluation run(Session& trained);
  /// With the parameters of this object's own session.
  Evaluation run();
  int64_t examples() const { return source_->examples(); }
  Session& session();

 private:
  Job job_;
  Cluster& cluster_;
  int64_t count_hits(int64_t rows);
  Graph graph_;
  nn::Model model_;
  std::vector<Metric> means_;  ///< the loss, then the model's metrics
  std::unique_ptr<DataSource> source_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<Session> session_;
};

/// The tokenizer of --tokenizer. Throws its errors.
Tokenizer load_tokenizer(const TokenizerFlags& args);

Command info_command();
Command train_command();
Command eval_command();
Command generate_command();
Command serve_command();
Command tokenize_command();
Command checkpoint_command();
Command convert_command();
Command report_command();
Command export_command();
Command explain_command();
Command verify_command();
Command compare_command();
Command bench_command();
Command plan_command();
Command simulate_command();
Command calibrate_command();
Command sweep_command();
Command diff_command();
Command solve_command();
Command completion_command();
/// All of these, in the order of the help.
std::vector<Command> all_commands();
/// Adds the options of commands to a parser, which needs one of them.
void add_commands(CLI::App& app, const std::vector<Command>& commands);

/// Prints one error message per job instead of one per rank. The launcher ends all ranks when the
/// first exits, so an error that all ranks know is printed by rank 0, and an error of one rank by
/// that rank; the others print it later, in case the launcher does not end them. A rank that gave
/// up on a peer waits a while before it exits: mpirun detects an unreachable host only while it has
/// nothing to send to it. Returns the exit code.
int report_error(ErrorKind kind, const char* what, bool is_peers);

}  // namespace tessera::cli
