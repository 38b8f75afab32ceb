// The subcommands, and functions that they share.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

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

inline constexpr int64_t kMostThreads = 1024;       ///< per rank
inline constexpr int64_t kMostKept = 1'000'000;     ///< checkpoints
inline constexpr int64_t kMostDevices = 1'000'000;  ///< per plan
/// Other ranks wait this long before they report an error, so that rank 0 reports a common one.
inline constexpr std::chrono::seconds kForRoot{3};

/// The command line as given, before it is resolved.
struct Arguments {
  std::string model;               ///< a model's name, a TOML file or a folder
  std::string init;                ///< key model.init of a folder
  std::string like;                ///< export: folder of the model
  std::vector<std::string> sets;   ///< key=value
  std::string data, mesh, layout;  ///< empty: as in the configuration
  std::string log, checkpoint, json, dump_dir, device, trace;
  std::vector<std::string> watch, dump, trainable;  ///< globs
  double save_retry = 60;
  int64_t save_every = 0, keep = 3, steps = -1, dump_every = 1, threads = -1;
  double timeout = 120, tolerance = -1;
  std::string csv, tensorboard, staging, on_nonfinite = "stop";
  std::optional<int64_t> check_replicas;  ///< steps between comparisons; 0: never; none: chosen
  bool resume = false, allow_changes = false, profile = false, quiet = false;
  std::string program = "tessera";  ///< its name, for commands to copy
  bool keep_best = false;           ///< train: the checkpoint of the lowest evaluation loss, too
  bool average = false;             ///< eval, export: moving averages instead of parameters
  bool adapter = false;             ///< export: the matrices of LoRA only
  bool alone = false;           ///< set by commands that run in only one of the launched processes:
                                ///< they need no ranks, or only predict what ranks would do
  int zero = 0;                 ///< ZeRO stage 1, 2 or 3 over the axes `over`
  std::string over, fsdp;       ///< axes
  std::string memory;           ///< limit per rank, with a unit
  std::string microbatch_size;  ///< a number or auto
  std::string machine;          ///< name or file of a machine profile
  std::string out;              ///< calibrate, sweep, report: output file
  std::string html;             ///< file of the page
  std::string show;             ///< explain: glob of the tensors to sketch
  bool follow = false;          ///< report: until the jobs are finished
  double stragglers = 0, failure_hours = 0, checkpoint_seconds = 30, restart_seconds = 300;
  std::string budget = "20m", meshes;  ///< sweep
  int64_t devices = 0;                 ///< sweep, plan: number of ranks of the meshes
  std::string layouts = "all", print_after, dtype = "float32";
  std::optional<double> seconds;       ///< search time limit; default: solve 60, plan 10
  std::string why_not, why_not_mesh;   ///< plan: a layout to compare, and its mesh if it differs
  int64_t stages = 0, interleave = 0;  ///< simulate: pipeline stages, chunks; 0: none, automatic
  std::string schedule;                ///< simulate: of pipeline_schedules()
  int64_t tune = 0;                    ///< train: number of plans to try out
  std::vector<int64_t> sizes;          ///< bench
  std::vector<std::string> words;      ///< bench: WHAT [MODEL]; compare: [MODEL] A B; ...
  std::vector<std::string> renames;    ///< convert: OLD=NEW
  std::string shard_size;              ///< export: with a unit
  bool all = false;                    ///< convert
  bool keys = false;                   ///< info
  bool kernels = false;                ///< explain
  std::string tokenizer, pattern;      ///< tokenize, generate: a tokenizer's path; its pattern
  std::vector<std::string> special;    ///< further special tokens of a tiktoken file
  std::string documents, json_key = "text";  ///< tokenize: jsonl, file or blank-lines; the key
  std::vector<std::string> prompts, stops;   ///< generate; prompts: also of samples in training
  Sampling sampling = {.temperature = 0.8};
  std::optional<int64_t> tokens;             ///< generate: most new ones (200); training: 64
  int64_t samples = 1, rows = 8;             ///< generate: texts of a prompt, and at a time
  int64_t sample_every = 0;                  ///< train: steps between samples; 0: none
  bool no_cache = false;                     ///< generate
  int64_t beams = 0;                         ///< generate; 0: tokens are chosen one by one
  double length_penalty = 1;                 ///< generate, with beams
  bool early_stopping = false;               ///< generate, with beams
  std::string host = "127.0.0.1";            ///< serve
  int64_t port = 8000, most_tokens = 65536;  ///< serve: the latter of all prompts of a request
  bool append_eod = false, skip_empty = false, special_in_text = false, add_special = false;
};

/// A model with its resolved configuration, mesh and layout.
struct Job {
  const ModelSpec* spec;
  Config config;
  Mesh mesh;
  Layout layout;
  std::string device = "cpu";                    ///< CompileOptions::device
  std::shared_ptr<const Machine> machine;        ///< CompileOptions::machine
  std::set<std::string> given = {};              ///< keys set by a file or the command line
  std::shared_ptr<const ModelSpec> folder = {};  ///< `spec` if the model is a folder
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
Job resolve(const Arguments& args, const std::vector<ModelSpec>& models, bool tiny);
/// The same without asking the planner: automatic rules remain in the layout.
Job resolve_without_plan(const Arguments& args, const std::vector<ModelSpec>& models,
                         bool tiny = false);
/// Asks the planner for the axes of all dims with `auto`, and for recompute and the number of
/// microbatches if they are not given. Under a launcher all ranks must call it; the root plans.
void plan_layout(const Arguments& args, Job& job);
bool is_automatic(const Layout& layout);
/// The model's default layout without rules for axes that the job's mesh lacks.
Layout default_layout(const Job& job);
/// The planner's `most` best plans for the job's mesh, best first. All ranks must call it.
std::vector<AutoPlan> auto_plans(const Arguments& args, const Job& job, size_t most);
/// Applies the plan to the job's layout and keys.
void apply(const AutoPlan& plan, Job& job);
/// The bytes of a flag's value: "16GB", "512MiB", "2e9". Throws a usage error.
int64_t parse_bytes(const char* flag, const std::string& text);
/// The machine of --machine, else the calibrated profile of this machine, if there is one.
std::optional<Machine> find_machine(const Arguments& args);
/// The same, else the planner's default profile.
Machine machine_for_plans(const Arguments& args);
/// What --device says; else, of a command that only predicts, the kind of --machine's devices.
std::string device_of(const Arguments& args);
/// The machine for which communication is scheduled: the planner's if it chooses the layout; else
/// that of find_machine(), if --machine is given or the profile knows the mesh.
std::shared_ptr<const Machine> machine_of(const Arguments& args, const Job& job);
/// Under a launcher every rank uses the root's machine. Collective.
void agree_on_machine(Cluster& cluster, Job& job);
/// With --memory: resolves train.recompute = auto to the cheapest policy that fits, and
/// train.microbatches = auto to the fewest that fit. Throws a usage error if the job does not fit,
/// with a breakdown and the cheapest flags that would make it fit.
void fit_memory(const Arguments& args, Job& job);
/// Bytes by which a job exceeds --memory (negative if it fits); 0 if unknown.
int64_t bytes_over(const Arguments& args, const Job& job);
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
/// The layouts of a file, one per line; blank lines and lines that begin with # are ignored. Throws
/// io errors, and a usage error for a file without a layout.
std::vector<std::string> layouts_in(const std::string& path);
/// Throws a usage error for a purpose rule that applies to no tensor of that purpose, such as
/// `@params batch:data`. Other rules are checked when they are lowered.
void require_purposes(const Graph& graph, const Layout& layout);
/// The checkpoints of --checkpoint, newest first. Throws a usage error if there is none.
std::vector<Checkpoint> checkpoints_of(const Arguments& args);
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
Cluster make_cluster(const Job& job, const Arguments& args);

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
/// Applies train.parameters and train.rounding to a graph before it is built.
void store_parameters(const Config& config, Graph& graph);
/// The last word of a key: "scan" of "model.scan".
std::string short_name(const std::string& key);
/// Sets the compile options from train.overlap, train.chunks, train.offload,
/// train.grad_reduce_dtype, train.grad_reduce, train.matmul_precision and the job's device and
/// machine.
void set_schedule(const Job& job, CompileOptions& options);
/// The compile options of a job's trainer, with set_schedule().
CompileOptions options_of(const Job& job, const Trainer& trainer);
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

int train(const Arguments& args, const std::vector<ModelSpec>& models);
int eval(const Arguments& args, const std::vector<ModelSpec>& models);
int generate(const Arguments& args, const std::vector<ModelSpec>& models);
int serve(const Arguments& args, const std::vector<ModelSpec>& models);
/// The library that serve() uses, "cpp-httplib 0.11.4"; "no: ..." if it was not there.
std::string http_library();
int info(const Arguments& args, const std::vector<ModelSpec>& models);
int verify(const Arguments& args, const std::vector<ModelSpec>& models);
int explain(const Arguments& args, const std::vector<ModelSpec>& models);
int compare(const Arguments& args, const std::vector<ModelSpec>& models);
int solve(const Arguments& args);
int plan(const Arguments& args, const std::vector<ModelSpec>& models);
int bench(const Arguments& args, const std::vector<ModelSpec>& models);
int checkpoint(const Arguments& args);
int export_folder(const Arguments& args);
int convert(const Arguments& args);
int report(const Arguments& args);
int tokenize(const Arguments& args);
/// The tokenizer of --tokenizer. Throws its errors.
Tokenizer load_tokenizer(const Arguments& args);
int simulate(const Arguments& args, const std::vector<ModelSpec>& models);
int calibrate(const Arguments& args);
int sweep(const Arguments& args, const std::vector<ModelSpec>& models);
int diff(const Arguments& args, const std::vector<ModelSpec>& models);

/// Prints one error message per job instead of one per rank. The launcher ends all ranks when the
/// first exits, so an error that all ranks know is printed by rank 0, and an error of one rank by
/// that rank; the others print it later, in case the launcher does not end them. A rank that gave
/// up on a peer waits a while before it exits: mpirun detects an unreachable host only while it has
/// nothing to send to it. Returns the exit code.
int report_error(ErrorKind kind, const char* what, bool is_peers);

}  // namespace tessera::cli
