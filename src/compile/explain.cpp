#include "tessera/explain.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/fail.h"
#include "base/layer_names.h"
#include "base/units.h"
#include "base/words.h"
#include "compile/buffer_lives.h"
#include "compile/kernel_rows.h"
#include "compile/lowering.h"
#include "compile/probes.h"
#include "compile/program_variants.h"
#include "cost/function_time.h"
#include "ir/graph_internals.h"
#include "program/axes_text.h"
#include "program/loop_runs.h"
#include "program/stage_ticks.h"

namespace tessera {

namespace {

/// Redundant work below 1 % of the function's is only counted.
void leave_out_small(FunctionReport& report) {
  std::vector<RedundantReport> shown;
  for (RedundantReport& r : report.redundant) {
    if (r.flops * 100 >= report.flops && shown.size() < 8) {
      shown.push_back(std::move(r));
    } else {
      ++report.redundant_left_out;
      report.redundant_left_out_flops += r.flops;
    }
  }
  report.redundant = std::move(shown);
}

/// Adds the steps of a function, or of a loop body that runs `times` times.
void report_steps(const Program& program, const Function& f, int64_t times,
                  FunctionReport& report) {
  report.steps += static_cast<int>(f.steps.size());
  for (const Step& step : f.steps) {
    for (const Function& body : step.body)
      report_steps(program, body, body_runs(step.loop, times), report);
    if (!step.body.empty()) continue;
    report.flops += times * step.flops;
    if (step.kind == StepKind::collective) {
      int ranks = 1;
      for (int axis : step.axes) ranks *= program.axis_sizes[axis];
      report.collectives.push_back({name_of(step), step.origin.name, step.origin.source,
                                    step.origin.reason, axes_text(program, step.axes), ranks,
                                    times * step.bytes, times, 0, 0});
      report.bytes += times * step.bytes;
    }
    if (!step.unused.empty() && step.flops > 0 && !info_of(step.kernel).is_elementwise) {
      double factor = 1;
      for (int axis : step.unused) factor *= program.axis_sizes[axis];
      report.redundant.push_back({step.origin.name, step.origin.source,
                                  axes_text(program, step.unused), times * step.flops, factor, ""});
    }
  }
}

FunctionReport report_function(const Program& program, const Function& f) {
  FunctionReport report;
  report.name = f.name;
  report.is_init = f.kind == FunctionKind::init;
  report_steps(program, f, 1, report);
  for (const StageCount& c : count_stages(program, f))
    report.pipelines.push_back({program.axis_names[static_cast<size_t>(c.axis)], c.stages,
                                c.microbatches, c.ticks, c.busy});
  std::stable_sort(report.redundant.begin(), report.redundant.end(),
                   [](const auto& a, const auto& b) {
                     return a.flops * (a.factor - 1) > b.flops * (b.factor - 1);
                   });
  leave_out_small(report);
  return report;
}

/// The row of buckets of this kind over these axes; added if there is none.
size_t bucket_row(const std::string& kind, const std::string& axes, FunctionReport& report) {
  auto row = std::find_if(report.buckets.begin(), report.buckets.end(),
                          [&](const auto& r) { return r.kind == kind && r.axes == axes; });
  if (row == report.buckets.end()) row = report.buckets.insert(row, {kind, axes, 0, 0, 0, 0});
  return static_cast<size_t>(row - report.buckets.begin());
}

void predict(const Program& program, const Machine& machine, const Mesh& mesh, Explanation& e) {
  const Costs costs(machine, mesh);
  e.machine = machine.name;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const std::vector<const Step*> steps = all_steps(program.functions[f]);
    FunctionReport& report = e.functions[f];
    const FunctionTime time = time_of(program.functions[f], costs);
    report.kernels = kernel_rows(program.functions[f], costs);
    report.time = {time.seconds, time.compute, time.slowed, 0, time.exposed, time.bubble};
    std::vector<size_t> row_of(steps.size());  // by collective step
    for (size_t s = 0, row = 0; s < steps.size(); ++s) {
      if (steps[s]->kind == StepKind::collective) row_of[s] = row++;
    }
    std::vector<double> runs;  // by row of buckets
    for (CollectiveTime c : time.collectives) {
      const double own = c.share;
      c.seconds *= own;
      c.exposed *= own;
      report.time.transfer += c.seconds;
      const Step& first = *steps[static_cast<size_t>(c.step)];
      const size_t row = bucket_row(name_of(first), axes_text(program, c.axes), report);
      BucketReport& bucket = report.buckets[row];
      runs.resize(report.buckets.size());
      bucket.buckets = static_cast<int>(std::lround(runs[row] += own));
      bucket.most = std::max(bucket.most, c.bytes);
      bucket.seconds += c.seconds;
      bucket.started += own * costs.start(first);
      for (int s = c.step; s < c.step + c.members; ++s) {
        const double share =
            c.bytes > 0 ? static_cast<double>(steps[s]->bytes) / static_cast<double>(c.bytes)
                        : 1.0 / c.members;
        report.collectives[row_of[s]].seconds += share * c.seconds;
        report.collectives[row_of[s]].exposed += share * c.exposed;
      }
    }
  }
}

/// The transient buffers alive at the step with most live bytes, largest first.
void find_peak(const Program& program, MemoryReport& memory) {
  int64_t best = 0;
  for (const Function& f : program.functions) {
    const auto life = buffer_lives(program, f, false);
    std::vector<int64_t> change(f.steps.size() + 1, 0);
    for (const auto& [buffer, span] : life) {
      change[span.first] += program.buffers[buffer].bytes;
      change[span.second + 1] -= program.buffers[buffer].bytes;
    }
    int64_t now = 0;
    int where = -1;
    for (size_t s = 0; s < f.steps.size(); ++s) {
      now += change[s];
      if (now > best) best = now, where = static_cast<int>(s);
    }
    if (where < 0) continue;
    memory.at_peak.clear();
    std::map<std::string, std::vector<int>> by_layers;
    for (const auto& [buffer, span] : life) {
      if (span.first <= where && where <= span.second)
        by_layers[without_layer(program.buffers[buffer].name)].push_back(buffer);
    }
    for (const auto& [name, buffers] : by_layers) {
      int64_t bytes = 0;
      for (const int buffer : buffers) bytes += program.buffers[buffer].bytes;
      memory.at_peak.emplace_back(buffers.size() == 1
                                      ? program.buffers[buffers[0]].name
                                      : fmt::format("{} ({} tensors)", name, buffers.size()),
                                  bytes);
    }
  }
  std::stable_sort(memory.at_peak.begin(), memory.at_peak.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr size_t kShown = 8;
  if (memory.at_peak.size() <= kShown) return;
  int64_t rest = 0;
  for (size_t i = kShown; i < memory.at_peak.size(); ++i) rest += memory.at_peak[i].second;
  const size_t others = memory.at_peak.size() - kShown;
  memory.at_peak.resize(kShown);
  memory.at_peak.emplace_back(fmt::format("{} more tensors", others), rest);
}

std::vector<PaddingReport> padding_of(const Program& program) {
  std::map<std::pair<std::string, int64_t>, int64_t> padded;
  for (const Port& port : program.ports) {
    for (size_t d = 0; d < port.sizes.size(); ++d) {
      int64_t whole = port.view.sizes[d];
      for (int axis : port.axes[d]) whole *= program.axis_sizes[axis];
      if (whole != port.sizes[d]) padded[{port.dims[d], port.sizes[d]}] = whole;
    }
  }
  std::vector<PaddingReport> result;
  for (const auto& [dim, size] : padded) result.push_back({dim.first, dim.second, size});
  return result;
}

/// How long the stages of the function's pipelines are idle.
void note_idle_stages(const FunctionReport& f, const std::string& machine,
                      std::vector<std::string>& notes) {
  for (const PipelineReport& p : f.pipelines) {
    const double idle = 1 - static_cast<double>(p.busy) / static_cast<double>(p.ticks);
    std::string note = fmt::format(
        "{} microbatch{} pass{} through {} stages along '{}' in {} ticks: a stage is idle in "
        "{:.0f} % of them",
        p.microbatches, p.microbatches == 1 ? "" : "es", p.microbatches == 1 ? "es" : "", p.stages,
        p.axis, p.ticks, 100 * idle);
    note += machine.empty()
                ? "; more microbatches make that less, but each of them has smaller matmuls: only "
                  "times, of a machine's profile, say which is faster"
                : fmt::format(", {:.3f} ms of the {:.3f} ms predicted on {}", 1e3 * f.time.bubble,
                              1e3 * f.time.seconds, machine);
    if (std::find(notes.begin(), notes.end(), note) == notes.end())
      notes.push_back(std::move(note));
  }
}

/// "1.935 over model, 0.071 over data, ": the exposed milliseconds, most first; "" for one axis.
std::string exposed_by_axes(const FunctionReport& f) {
  std::vector<std::pair<double, std::string>> by_axes;
  for (const CollectiveReport& c : f.collectives) {
    const auto same = std::find_if(by_axes.begin(), by_axes.end(),
                                   [&](const auto& known) { return known.second == c.axes; });
    (same == by_axes.end() ? by_axes.emplace_back(0, c.axes) : *same).first += c.exposed;
  }
  std::stable_sort(by_axes.begin(), by_axes.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [seconds, axes] : by_axes)
    text += fmt::format("{:.3f} over {}, ", 1e3 * seconds, axes);
  return by_axes.size() > 1 ? text : "";
}

std::string time_text(const FunctionReport& f, const std::string& machine) {
  const TimeReport& t = f.time;
  return fmt::format(
      "  predicted on {}: {:.3f} ms = {:.3f} compute + {:.3f} slowed by transfers + {:.3f} exposed "
      "communication{} ({}{:.3f} of {:.3f} ms hidden)\n",
      machine, 1e3 * t.seconds, 1e3 * t.compute, 1e3 * t.slowed, 1e3 * t.exposed,
      t.bubble > 0 ? fmt::format(" + {:.3f} {}", 1e3 * t.bubble, kBubble) : "", exposed_by_axes(f),
      1e3 * std::max(0.0, t.transfer - t.exposed), 1e3 * t.transfer);
}

}  // namespace

Explanation explain(
    const Graph& graph, const CompileOptions& options,
    const std::function<void(const std::string&, const std::function<std::string()>&)>& after_pass,
    const Machine* machine) {
  LowerOptions lowering = lowering_of(options, observe(graph, options).functions);
  lowering.workspace_bytes = workspace_on(options.device, options.threads_per_rank);
  lowering.after_pass = after_pass;
  const Program program = lower_chosen(graph, lowering);
  Explanation e;
  for (const Function& f : program.functions) e.functions.push_back(report_function(program, f));
  for (size_t i = 0; i < program.stored.size(); ++i) {
    const Buffer& buffer = program.buffers[program.ports[program.stored[i]].view.buffer];
    const bool is_parameter = graph.stored()[i].purpose == Purpose::params;
    (buffer.arena == ArenaKind::offloaded ? e.memory.offloaded
     : is_parameter                       ? e.memory.params
                                          : e.memory.state) += buffer.bytes;
  }
  e.memory.inputs = program.persistent_bytes - e.memory.params - e.memory.state;
  e.memory.transient = program.transient_bytes;
  find_peak(program, e.memory);
  e.padding = padding_of(program);
  for (const PaddingReport& p : e.padding) {
    const double waste = 1 - static_cast<double>(p.size) / static_cast<double>(p.padded);
    if (waste > 0.2) {
      e.notes.push_back(fmt::format(
          "dim '{}' of {} is padded to {}: {} % of its memory and work is wasted; "
          "give it fewer ranks",
          p.dim, p.size, p.padded, waste > 0.99 ? "over 99" : fmt::format("{:.0f}", 100 * waste)));
    }
  }
  if (machine != nullptr) predict(program, *machine, options.mesh, e);
  for (const FunctionReport& f : e.functions) note_idle_stages(f, e.machine, e.notes);
  e.program_hash = hash(program);
  return e;
}

std::map<std::string, std::string> source_files(const Graph& graph) {
  return GraphInternals::of(graph).files;
}

std::vector<CollectiveReport> by_layers(const std::vector<CollectiveReport>& all) {
  std::vector<CollectiveReport> rows;
  std::map<std::string, std::pair<size_t, int>> known;  // the number of its row, and of tensors
  for (const CollectiveReport& c : all) {
    const std::string name = without_layer(c.tensor),
                      key = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}", c.kind, c.axes, c.rule,
                                        c.source, c.bytes, c.times, name);
    auto& [row, tensors] = known.emplace(key, std::pair(rows.size(), 0)).first->second;
    if (++tensors == 1) {
      rows.push_back(c);
      continue;
    }
    CollectiveReport& sum = rows[row];
    sum.tensor = fmt::format("{} ({} tensors)", name, tensors);
    sum.bytes += c.bytes;
    sum.seconds += c.seconds;
    sum.exposed += c.exposed;
  }
  return rows;
}

std::string to_string(const Explanation& e) {
  const auto bytes = [](int64_t n) { return bytes_text(static_cast<double>(n)); };
  const auto flops = [](int64_t n) { return flops_text(static_cast<double>(n)); };
  std::string text;
  for (const FunctionReport& f : e.functions) {
    text += fmt::format("function {}: {} steps, {} on each rank, {} sent by a rank\n", f.name,
                        f.steps, flops(f.flops), bytes(f.bytes));
    if (!e.machine.empty()) text += time_text(f, e.machine);
    for (const BucketReport& x : f.buckets) {
      text += fmt::format(
          "  {} over {}: {} bucket{}, the largest sends {}; starting them is {:.1f} % of "
          "{:.3f} ms\n",
          x.kind, x.axes, x.buckets, x.buckets == 1 ? "" : "s", bytes(x.most),
          x.seconds > 0 ? 100 * x.started / x.seconds : 0, 1e3 * x.seconds);
    }
    for (const CollectiveReport& c : by_layers(f.collectives)) {
      text += fmt::format("  {:<14} over {:<12} {:>10}  {}{}{}{}{}\n", c.kind,
                          fmt::format("{} ({})", c.axes, c.ranks), bytes(c.bytes),
                          e.machine.empty() ? ""
                                            : fmt::format("{:.3f} ms ({:.3f} exposed)  ",
                                                          1e3 * c.seconds, 1e3 * c.exposed),
                          c.times > 1 ? fmt::format("{} times ", c.times) : "", c.tensor,
                          c.source.empty() ? "" : fmt::format("  ({})", c.source),
                          c.rule.empty() ? "" : "  because " + c.rule);
    }
    for (const RedundantReport& r : f.redundant) {
      text += fmt::format(
          "  redundant: {} ({}) is computed alike on {:.0f} ranks along {}: {} on "
          "each\n",
          r.node, r.source, r.factor, r.axes, flops(r.flops));
    }
    if (f.redundant_left_out > 0) {
      text += fmt::format(
          "  redundant: {} {}small one{}, {} on each rank ({:.2f} % of its work)\n",
          f.redundant_left_out, f.redundant.empty() ? "" : "more ",
          f.redundant_left_out == 1 ? "" : "s", flops(f.redundant_left_out_flops),
          100.0 * static_cast<double>(f.redundant_left_out_flops) / static_cast<double>(f.flops));
    }
  }
  text += memory_text(e.memory) + "\n";
  if (e.memory.offloaded > 0)
    text += fmt::format("  and in host memory: {} optimizer state\n", bytes(e.memory.offloaded));
  for (const auto& [name, size] : e.memory.at_peak)
    text += fmt::format("  {:>10}  {}\n", bytes(size), name);
  for (const PaddingReport& p : e.padding)
    text += fmt::format("padding: dim '{}' {} -> {}\n", p.dim, p.size, p.padded);
  for (const std::string& note : e.notes) text += "warning: " + note + "\n";
  return text + fmt::format("program {:016x}\n", e.program_hash);
}

}  // namespace tessera
