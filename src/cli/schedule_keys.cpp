// The keys that control how a job is scheduled on a machine: overlap, reductions and memory.
#include <algorithm>
#include <bit>
#include <charconv>

#include "base/fail.h"
#include "cli/commands.h"
#include "tessera/compile_options.h"
#include "tessera/pipeline_schedules.h"

namespace tessera::cli {

void store_parameters(const Config& c, Graph& graph) {
  const DType dtype = parse_dtype(c.text("train.parameters").c_str());
  const bool stochastic = c.text("train.rounding") == "stochastic";
  TESSERA_REQUIRE(dtype == DType::float32 || is_narrow(dtype),
                  "key 'train.parameters' is '{}'; it is float32, bfloat16 or float16",
                  c.text("train.parameters"));
  TESSERA_REQUIRE(
      !stochastic || is_narrow(dtype),
      "train.rounding=stochastic is for parameters in 16 bits, and train.parameters is {}; say "
      "train.parameters=bfloat16",
      c.text("train.parameters"));
  graph.store_parameters_as(dtype, stochastic);
}

namespace {
/// Refuses a schedule that wants chunks of layers, of which the layout has none.
std::string pipeline_schedule_of(const Job& job) {
  const std::string name = job.config.text("train.pipeline_schedule");
  const std::vector<LayoutRule>& rules = job.layout.rules();
  const bool has_chunks = std::any_of(rules.begin(), rules.end(),
                                      [](const LayoutRule& rule) { return rule.intervals > 1; });
  const PipelineSchedule& schedule = pipeline_schedule(name);
  TESSERA_REQUIRE(
      takes_chunks(schedule, 1) || has_chunks,
      "train.pipeline_schedule={} wants {} chunks of layers a stage, and layout '{}' has one; "
      "write layers:AXIS*{}, or pipeline_schedule={}",
      name, schedule.least_chunks, job.layout.to_string(), schedule.least_chunks,
      pipeline_schedules()[0].name);
  return name;
}
}  // namespace

int64_t strict_chunks_of(const Config& config) {
  const std::string text = config.text("train.numerics"), strict = "strict";
  constexpr int64_t kMost = int64_t{1} << 20;
  if (text == "default") return 0;
  if (text == strict) return kStrictChunks;
  int64_t chunks = 0;
  const char* const end = text.data() + text.size();
  const bool is_number = text.starts_with(strict + ":") &&
                         std::from_chars(text.data() + strict.size() + 1, end, chunks).ptr == end;
  TESSERA_REQUIRE(is_number && chunks > 0 && chunks <= kMost &&
                      std::has_single_bit(static_cast<uint64_t>(chunks)),
                  "key 'train.numerics' is '{}'; it is default, strict, or strict:C with a power "
                  "of two C up to {}, the chunks of a sum",
                  text, kMost);
  return chunks;
}

int64_t microbatches_of(const Config& config) {
  const int64_t count = config.integer("train.microbatches"), chunks = strict_chunks_of(config);
  return chunks == 0 ? count : subtree_microbatches(config.integer("train.batch"), count, chunks);
}

void set_schedule(const Job& job, CompileOptions& options) {
  options.strict_chunks = strict_chunks_of(job.config);
  options.device = job.device;
  options.overlap = job.config.text("train.overlap") == "on";
  options.offload_state = job.config.text("train.offload") == "state";
  options.wide_grad_reduce = job.config.text("train.grad_reduce_dtype") == "float32";
  options.reduce_each_microbatch = job.config.text("train.grad_reduce") == "microbatch";
  options.pipeline_schedule = pipeline_schedule_of(job);
  options.tf32 = job.config.text("train.matmul_precision") == "tf32";
  options.machine = job.machine;
  const bool is_auto = job.config.text("train.chunks") == "auto";
  options.chunks = is_auto ? 0 : static_cast<int>(job.config.integer("train.chunks"));
  TESSERA_REQUIRE(is_auto || options.chunks >= 1,
                  "key 'train.chunks' is {}; it is auto, or at least 1", options.chunks);
}

CompileOptions options_of(const Job& job, const Trainer& trainer, std::optional<int> threads) {
  CompileOptions options{job.mesh, job.layout, trainer.functions, 0,
                         threads.value_or(threads_of(job))};
  set_schedule(job, options);
  return options;
}

namespace {
bool knows(const Machine& machine, const Mesh& mesh) {
  const auto has = [&](const MeshAxis& axis) {
    return axis.link.empty() ||
           std::any_of(machine.links.begin(), machine.links.end(),
                       [&](const LinkTier& tier) { return tier.name == axis.link; });
  };
  if (mesh.size() > 1 && machine.links.empty()) return false;
  const int64_t most = machine.links.empty() ? 0 : machine.links.back().devices;
  return (most == 0 || most >= mesh.size()) &&
         std::all_of(mesh.axes().begin(), mesh.axes().end(), has);
}
}  // namespace

std::shared_ptr<const Machine> machine_of(const ModelFlags& args, const Job& job) {
  std::optional<Machine> found;
  if (is_automatic(job.layout)) {
    found = machine_for_plans(args);
  } else {
    found = find_machine(args);
  }
  if (!found || (args.machine.empty() && !knows(*found, job.mesh))) return {};
  return std::make_shared<const Machine>(std::move(*found));
}

void agree_on_machine(Cluster& cluster, Job& job) {
  if (launched_ranks() <= 1) return;
  const std::string none = "none", mine = job.machine ? job.machine->to_toml() : none;
  const std::string text = cluster.first_text(cluster.is_root() ? mine : "");
  job.machine.reset();
  if (text != none) job.machine = std::make_shared<const Machine>(Machine::parse(text, "the root"));
}

}  // namespace tessera::cli
