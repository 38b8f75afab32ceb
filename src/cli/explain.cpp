#include "tessera/explain.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/cache_file.h"
#include "base/fail.h"
#include "base/files.h"
#include "base/words.h"
#include "cli/build_model.h"
#include "cli/command_pages.h"
#include "cli/commands.h"
#include "cli/plan_cache.h"
#include "cli/report.h"
#include "cli/report_json.h"
#include "cli/terminal.h"
#include "tessera/inspect.h"

namespace tessera::cli {

namespace {

/// "partition, ..., two_stage_reduce (cpu), ...".
std::string pass_list() {
  std::string text;
  for (const PassInfo& pass : passes()) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", pass.name);
    if (*pass.device != '\0') text += fmt::format(" ({})", pass.device);
  }
  return text;
}

struct ExplainFlags : ModelFlags, ReportFlags {
  std::string print_after;
  std::string show;  ///< glob of the tensors to sketch
  bool kernels = false, parameters = false, names = false;
  void declare(FlagTable& table) {
    ModelFlags::declare(table);
    table.add({batch_flag(sets), recompute_flag(sets)});
    JsonFlag::declare(table);
    table.add({
        {"--print-after PASS", &print_after, kOneProcess,
         "Prints the model after a pass: " + pass_list() + "."},
        {"--show GLOB", &show, kOneProcess,
         "Sketches how the tensors of these names are cut over the mesh, instead of the report: "
         "--show \"*.block0.mlp.*\"."},
        html_flag(html),
        {"--parameters", &parameters, kOneProcess,
         "Prints every parameter, with its dims, whether it is trained, and its weight decay, "
         "instead "
         "of the report."},
        {"--names", &names, kOneProcess,
         "Prints the dims that were found in a program of PyTorch, with their sizes and the "
         "tensors that have them, instead of the report."},
        {"--kernels", &kernels, kOneProcess,
         "Prints every kernel of a step with its flops, bytes and predicted time beside the "
         "roofline of --machine."},
    });
  }
};

nlohmann::json to_json(const FunctionReport& f, bool is_timed) {
  nlohmann::json json = {
      {"name", f.name},
      {"steps", f.steps},
      {"flops", f.flops},
      {"bytes", f.bytes},
      {"collectives", f.collectives},
      {"redundant_left_out",
       {{"steps", f.redundant_left_out}, {"flops", f.redundant_left_out_flops}}}};
  without(json["collectives"], {"times"});
  if (!is_timed) without(json["collectives"], {"seconds", "exposed"});
  if (is_timed) json["predicted"] = f.time;
  if (!f.pipelines.empty()) json["pipelines"] = f.pipelines;
  if (!f.kernels.empty()) json["kernels"] = f.kernels;
  if (!f.redundant.empty()) without(json["redundant"] = f.redundant, {"source"});
  if (f.buckets.empty()) return json;
  add_field(json["buckets"] = f.buckets, "count", f.buckets, [](auto& x) { return x.buckets; });
  without(json["buckets"], {"buckets"});
  return json;
}

nlohmann::json to_json(const Explanation& e) {
  nlohmann::json report = {{"warnings", e.notes},
                           {"program", fmt::format("{:016x}", e.program_hash)},
                           {"memory",
                            {{"params", e.memory.params},
                             {"state", e.memory.state},
                             {"inputs", e.memory.inputs},
                             {"transient", e.memory.transient},
                             {"offloaded", e.memory.offloaded}}}};
  for (const FunctionReport& f : e.functions)
    report["functions"].push_back(to_json(f, !e.machine.empty()));
  if (!e.padding.empty()) report["padding"] = e.padding;
  if (!e.machine.empty()) report["machine"] = e.machine;
  return report;
}

void require_pass(const std::string& name) {
  static const std::map<std::string, std::string> renamed = {
      {"masks", "insert_padding_masks"}, {"fuse", "fuse_pointwise"},
      {"epilogue", "fuse_epilogues"},    {"prologue", "fuse_prologues"},
      {"combine", "bucket_collectives"}, {"chunk", "collective_matmul"},
      {"memory", "plan_memory"}};
  std::vector<std::string> names;
  for (const PassInfo& pass : passes()) names.push_back(pass.name);
  const auto now = renamed.find(name);
  TESSERA_REQUIRE(name.empty() || std::find(names.begin(), names.end(), name) != names.end(),
                  "--print-after={}: there is no such pass{}", name,
                  now == renamed.end() ? suggestion(name, names)
                                       : fmt::format("; it is called {} now", now->second));
}

using AfterPass = std::function<void(const std::string&, const std::function<std::string()>&)>;

/// With predicted times if --machine is given or a calibrated profile knows the mesh.
Explanation explain_on(const ExplainFlags& args, const std::optional<Machine>& machine,
                       const Graph& graph, const CompileOptions& options, const AfterPass& after) {
  if (!machine) return tessera::explain(graph, options, after);
  try {
    return tessera::explain(graph, options, after, &*machine);
  } catch (const Error& e) {
    if (!args.machine.empty() || e.code() != ErrorCode::unknown_machine) throw;
    Explanation without = tessera::explain(graph, options);
    without.notes.push_back(fmt::format("no times are predicted: {}", e.what()));
    return without;
  }
}

/// "4.100 ms less idle, 5.000 ms more computing": what a step of `to` has otherwise than `from`.
std::string changes(const TimeReport& from, const Simulation& to) {
  std::string text;
  const auto add = [&](double change, const char* cause) {
    if (std::abs(change) < 0.5e-6) return;
    text += fmt::format("{}{:.3f} ms {} {}", text.empty() ? "" : ", ", 1e3 * std::abs(change),
                        change > 0 ? "more" : "less", cause);
  };
  add(to.bubble - from.bubble, "idle");
  add(to.compute + to.slowed - from.compute - from.slowed, "computing");
  add(to.exposed - from.exposed, "waiting for transfers");
  return text;
}

/// Whether another number of microbatches pays for a pipeline, and why or why not: prices the next
/// ones that the batch allows. A line each.
std::vector<std::string> price_microbatches(const Job& job, const Machine& machine,
                                            const Explanation& e) {
  const auto train = std::find_if(e.functions.begin(), e.functions.end(),
                                  [](const FunctionReport& f) { return f.name == "train"; });
  if (train == e.functions.end() || train->pipelines.empty() || train->time.seconds <= 0) return {};
  const int64_t now = microbatches_of(job.config);
  std::vector<int64_t> counts = microbatch_counts(job);
  std::sort(counts.begin(), counts.end());
  const auto more = std::upper_bound(counts.begin(), counts.end(), now),
             fewer = std::lower_bound(counts.begin(), counts.end(), now);
  std::vector<int64_t> others;
  if (more != counts.end()) others.push_back(*more);
  if (fewer != counts.begin()) others.push_back(*(fewer - 1));
  std::vector<std::string> lines;
  for (const int64_t count : others) {
    Job other = job;
    other.config.set("train.microbatches", fmt::format("{}", count));
    Simulation step;
    try {
      Trainer t;
      build_trainer(other, t, false);
      step = simulate(t.graph, options_of(other, t, 1), machine);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) throw;
      continue;  // its layout does not suit that number
    }
    const std::string why = changes(train->time, step);
    lines.push_back(fmt::format(
        "with {} microbatch{} instead of {} a step would take {:.3f} ms ({:+.1f} %){}{}", count,
        count == 1 ? "" : "es", now, 1e3 * step.seconds,
        100 * (step.seconds / train->time.seconds - 1), why.empty() ? "" : ": ", why));
  }
  return lines;
}

/// What strict numerics cost this layout: "strict numerics: 3.100 ms a step (2.400 by default),
/// ...".
std::string price_of_strict(const ExplainFlags& args, const std::optional<Machine>& machine,
                            const Job& job, const Explanation& strict) {
  Job other = job;
  other.config.set("train.numerics", "default");
  Trainer t;
  build_trainer(other, t, false);
  const Explanation by_default = explain_on(args, machine, t.graph, options_of(other, t, 1), {});
  const auto train = [](const Explanation& e) {
    return *std::ranges::find(e.functions, "train", &FunctionReport::name);
  };
  const auto memory = [](const Explanation& e) {
    const MemoryReport& m = e.memory;
    return bytes_text(static_cast<double>(m.params + m.state + m.inputs + m.transient));
  };
  const FunctionReport a = train(strict), b = train(by_default);
  const auto sent = [](const FunctionReport& f) {
    return bytes_text(static_cast<double>(f.bytes));
  };
  const std::string time = strict.machine.empty()
                               ? ""
                               : fmt::format("{:.3f} ms a step ({:.3f} by default), ",
                                             1e3 * a.time.seconds, 1e3 * b.time.seconds);
  return fmt::format(
      "strict numerics: {}{} sent by a rank ({} by default), {} of memory ({} by default)\n", time,
      sent(a), sent(b), memory(strict), memory(by_default));
}

}  // namespace

std::optional<Machine> find_machine(const MachineFlag& args) {
  if (!args.machine.empty()) return Machine::load(args.machine);
  const std::string path = Machine::calibrated_path();
  if (path.empty()) return std::nullopt;
  constexpr size_t kMostBytes = size_t{4} << 20;
  try {
    const std::optional<std::string> text = read_cache_file(path, kMostBytes);
    return text ? std::optional(Machine::parse(*text, path)) : std::nullopt;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage && e.kind() != ErrorKind::io) throw;
    warn_of_ignored_cache(fmt::format(
        "the profile of this machine is ignored; run `tessera calibrate` again: {}", e.what()));
    return std::nullopt;
  }
}

namespace {

/// --show: the sketches of the tensors whose names match.
void show_tensors(const std::string& glob, const Placement& placement) {
  constexpr int kMost = 20;
  int shown = 0, matching = 0;
  std::vector<std::string> names;
  for (const PlacedTensor& t : placement.tensors) {
    names.push_back(t.name);
    if (!glob_match(glob, t.name)) continue;
    if (++matching > kMost) continue;
    say("{}{}", shown++ > 0 ? "\n" : "", sketch(t, placement.mesh));
  }
  TESSERA_REQUIRE(matching > 0, "--show {}: no tensor of the step is called like that{}", glob,
                  suggestion(glob, names));
  if (matching > kMost) say("\nand {} more; give a narrower name to --show\n", matching - kMost);
}

void write_page(const ExplainFlags& args, const Job& job, const Explanation& e,
                const std::vector<std::string>& notes, const std::optional<Machine>& machine,
                const Graph& graph, const CompileOptions& options) {
  if (args.html.empty()) return;
  std::optional<Simulation> simulation;
  if (!e.machine.empty()) simulation = simulate(graph, options, *machine);
  write_text_file(
      args.html,
      explain_page(fmt::format("{}: a step under this layout", job.spec->name),
                   fmt::format("mesh {} ({} ranks), layout {}", job.mesh.to_string(),
                               job.mesh.size(), job.layout.to_string()),
                   e, notes, placement(graph, options), simulation ? &*simulation : nullptr,
                   machine ? &*machine : nullptr, source_files(graph)));
}

/// What a comparison of the ranks' copies costs.
std::string replica_text(const Explanation& e, const std::optional<Machine>& machine) {
  const auto bytes = static_cast<double>(e.memory.params + e.memory.state + e.memory.offloaded);
  const std::string time =
      e.machine.empty() || !machine || machine->device_type != "cpu"
          ? ""
          : fmt::format(", {:.3g} ms to read them", 1e3 * machine->memory_seconds(bytes));
  return fmt::format("replicas: before each save a rank compares checksums of its {}{}\n",
                     bytes_text(bytes), time);
}

int run_explain(const ExplainFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  require_writable(args.html);
  require_pass(args.print_after);
  if (args.names) {
    const Job asked = resolve_without_plan(args, models);
    TESSERA_REQUIRE(asked.program != nullptr,
                    "--names is for a program of PyTorch, FILE.pt2; '{}' is none", args.model);
    say("{}", names_of_program(asked.config, args.model));
    return 0;
  }
  Job job = resolve(args, models, false);
  fit_memory(args, job);
  Trainer t;
  build_trainer(job, t, false);
  bool printed = false;
  auto after = [&](const std::string& pass, const std::function<std::string()>& text) {
    if (pass != args.print_after) return;
    printed = true;
    say("{}", text());
  };
  const CompileOptions options = options_of(job, t, 1);
  if (!args.show.empty()) {
    show_tensors(args.show, placement(t.graph, options));
    return 0;
  }
  if (args.parameters) {
    say("{}", parameter_table(t.graph));
    return 0;
  }
  const std::optional<Machine> machine = find_machine(args);
  Explanation e = explain_on(args, machine, t.graph, options, after);
  std::vector<std::string> notes;
  if (!e.machine.empty()) notes = price_microbatches(job, *machine, e);
  if (job.program)
    for (const std::string& note : plain_ops_of_program(job.config, args.model))
      notes.push_back(note);
  TESSERA_REQUIRE(
      !args.kernels || !e.machine.empty(),
      "--kernels needs times; give a profile with --machine ({}), or measure this machine with "
      "tessera calibrate",
      fmt::join(Machine::names(), ", "));
  TESSERA_REQUIRE(
      args.print_after.empty() || printed,
      "--print-after={}: this pass does not run for a device '{}'; give another --device",
      args.print_after, options.device);
  if (!printed) {
    say("{} on mesh {} ({} ranks), layout {}\n{}\n", job.spec->name, job.mesh.to_string(),
        job.mesh.size(), job.layout.to_string(), batch_text(job));
    say("{}", to_string(e));
    if (job.mesh.size() > 1) say("{}", replica_text(e, machine));
    if (options.strict_chunks > 0) say("{}", price_of_strict(args, machine, job, e));
    if (machine && machine->reserve > 0)
      say("memory of a device: {}\n", reserve_text(machine->memory, machine->reserve));
    for (const std::string& note : notes) say("note: {}\n", note);
    if (args.kernels) say("{}", kernel_table(e));
  }
  nlohmann::json report = to_json(e);
  if (!notes.empty()) report["notes"] = notes;
  write_report(args.json, report);
  write_page(args, job, e, notes, machine, t.graph, options);
  return 0;
}

}  // namespace

Command explain_command() {
  return command(
      "explain",
      "Explains a layout without running it: every collective and why it is there, memory, and "
      "redundant compute.",
      "tessera explain gpt --mesh \"data:4;model:8\" --layout \"batch:data;heads,ff,vocab:model\"",
      Processes::first, run_explain);
}

}  // namespace tessera::cli
