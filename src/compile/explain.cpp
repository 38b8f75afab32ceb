#include "tessera/explain.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "compile/buffer_lives.h"
#include "compile/kernel_rows.h"
#include "compile/lowering.h"
#include "compile/probes.h"
#include "cost/function_time.h"
#include "ir/graph_internals.h"
#include "program/axes_text.h"
#include "program/loop_runs.h"

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
      report_steps(program, body, body_runs(step, times), report);
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
  report_steps(program, f, 1, report);
  std::stable_sort(report.redundant.begin(), report.redundant.end(),
                   [](const auto& a, const auto& b) {
                     return a.flops * (a.factor - 1) > b.flops * (b.factor - 1);
                   });
  leave_out_small(report);
  return report;
}

void add_bucket(const std::string& kind, const std::string& axes, const CollectiveTime& c,
                double start, FunctionReport& report) {
  auto row = std::find_if(report.buckets.begin(), report.buckets.end(),
                          [&](const auto& r) { return r.kind == kind && r.axes == axes; });
  if (row == report.buckets.end()) row = report.buckets.insert(row, {kind, axes, 0, 0, 0, 0});
  ++row->buckets;
  row->most = std::max(row->most, c.bytes);
  row->seconds += c.seconds;
  row->started += start;
}

void predict(const Program& program, const Machine& machine, const Mesh& mesh, Explanation& e) {
  const Costs costs(machine, mesh);
  e.machine = machine.name;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const std::vector<const Step*> steps = all_steps(program.functions[f]);
    FunctionReport& report = e.functions[f];
    const FunctionTime time = time_of(program.functions[f], costs);
    report.kernels = kernel_rows(program.functions[f], costs);
    report.time = {time.seconds, time.compute, time.slowed, 0, time.exposed};
    std::vector<size_t> row_of(steps.size());  // by collective step
    for (size_t s = 0, row = 0; s < steps.size(); ++s) {
      if (steps[s]->kind == StepKind::collective) row_of[s] = row++;
    }
    for (const CollectiveTime& c : time.collectives) {
      report.time.transfer += c.seconds;
      const Step& first = *steps[static_cast<size_t>(c.step)];
      add_bucket(name_of(first), axes_text(program, c.axes), c, costs.start(first), report);
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
    for (const auto& [buffer, span] : life) {
      if (span.first <= where && where <= span.second) {
        memory.at_peak.emplace_back(program.buffers[buffer].name, program.buffers[buffer].bytes);
      }
    }
  }
  std::sort(memory.at_peak.begin(), memory.at_peak.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  if (memory.at_peak.size() > 8) memory.at_peak.resize(8);
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

/// Of interleaved stages: the turns in which any has work, and those in which one has.
std::pair<int64_t, int64_t> turns_of_tables(const Function& f) {
  int64_t all = 0, busy = 0;
  for (const Step& step : f.steps) {
    if (!step.attrs.has("microbatches") || !has_table_of_stages(step)) continue;
    busy += step.attrs.get<int64_t>("microbatches");
    const int64_t stages = step.exprs[1].scalar_factor;
    for (int64_t turn = 0; turn < step.attrs.get<int64_t>("turns"); ++turn) {
      for (int64_t stage = 0; stage < stages; ++stage) {
        if (entry_of(step, turn, stage) >= 0) all = std::max(all, turn + 1);
      }
    }
  }
  return {all, busy};
}

/// How long the stages of the function's pipelines are idle.
void note_idle_stages(const Program& program, const Function& f, std::vector<std::string>& notes) {
  const auto [turns_with_work, busy] = turns_of_tables(f);
  for (const Step& step : f.steps) {
    for (const Function& body : step.body) note_idle_stages(program, body, notes);
    const int64_t microbatches = step.attrs.get<int64_t>("microbatches", 0);
    if (microbatches == 0) continue;
    const auto axis = static_cast<size_t>(step.exprs[1].axis_terms[0].first);
    const int64_t stages = program.axis_sizes[axis], rounds = microbatches + stages - 1;
    const bool has_table = step.exprs[1].table != nullptr;
    const int64_t turns = has_table ? turns_with_work : rounds * step.exprs[1].divisor;
    const double idle = has_table
                            ? 1 - static_cast<double>(busy) / static_cast<double>(turns_with_work)
                            : static_cast<double>(stages - 1) / static_cast<double>(rounds);
    std::string note = fmt::format(
        "{} microbatch{} pass{} through {} stages along '{}' in {} turns: a stage is idle in "
        "{:.0f} % of them; more microbatches make that less",
        microbatches, microbatches == 1 ? "" : "es", microbatches == 1 ? "es" : "", stages,
        program.axis_names[axis], turns, 100 * idle);
    if (std::find(notes.begin(), notes.end(), note) == notes.end())
      notes.push_back(std::move(note));
  }
}

std::string time_text(const TimeReport& t, const std::string& machine) {
  return fmt::format(
      "  predicted on {}: {:.3f} ms = {:.3f} compute + {:.3f} slowed by transfers + {:.3f} exposed "
      "communication ({:.3f} of {:.3f} ms hidden)\n",
      machine, 1e3 * t.seconds, 1e3 * t.compute, 1e3 * t.slowed, 1e3 * t.exposed,
      1e3 * (t.transfer - t.exposed), 1e3 * t.transfer);
}

}  // namespace

Explanation explain(
    const Graph& graph, const CompileOptions& options,
    const std::function<void(const std::string&, const std::function<std::string()>&)>& after_pass,
    const Machine* machine) {
  LowerOptions lowering = lowering_of(options, observe(graph, options).functions);
  lowering.workspace_bytes = workspace_on(options.device, options.threads_per_rank);
  lowering.after_pass = after_pass;
  const Program program = lower(graph, lowering);
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
      e.notes.push_back(
          fmt::format("dim '{}' of {} is padded to {}: {:.0f} % of its memory and work is wasted; "
                      "give it fewer ranks",
                      p.dim, p.size, p.padded, 100 * waste));
    }
  }
  for (const Function& f : program.functions) note_idle_stages(program, f, e.notes);
  if (machine != nullptr) predict(program, *machine, options.mesh, e);
  e.program_hash = hash(program);
  return e;
}

std::map<std::string, std::string> source_files(const Graph& graph) {
  return GraphInternals::of(graph).files;
}

std::string to_string(const Explanation& e) {
  std::string text;
  for (const FunctionReport& f : e.functions) {
    text += fmt::format("function {}: {} steps, {} flops and {} bytes sent on each rank\n", f.name,
                        f.steps, f.flops, f.bytes);
    if (!e.machine.empty()) text += time_text(f.time, e.machine);
    for (const BucketReport& x : f.buckets) {
      text += fmt::format(
          "  {} over {}: {} bucket{}, the largest sends {} B; starting them is {:.1f} % of "
          "{:.3f} ms\n",
          x.kind, x.axes, x.buckets, x.buckets == 1 ? "" : "s", x.most,
          x.seconds > 0 ? 100 * x.started / x.seconds : 0, 1e3 * x.seconds);
    }
    for (const CollectiveReport& c : f.collectives) {
      text += fmt::format("  {:<14} over {:<12} {:>12} B  {}{}{}  ({}){}\n", c.kind,
                          fmt::format("{} ({})", c.axes, c.ranks), c.bytes,
                          e.machine.empty() ? ""
                                            : fmt::format("{:.3f} ms ({:.3f} exposed)  ",
                                                          1e3 * c.seconds, 1e3 * c.exposed),
                          c.times > 1 ? fmt::format("{} times ", c.times) : "", c.tensor, c.source,
                          c.rule.empty() ? "" : "  because " + c.rule);
    }
    for (const RedundantReport& r : f.redundant) {
      text += fmt::format(
          "  redundant: {} ({}) is computed alike on {:.0f} ranks along {}: {} flops on each\n",
          r.node, r.source, r.factor, r.axes, r.flops);
    }
    if (f.redundant_left_out > 0) {
      text += fmt::format(
          "  redundant: {} {}small ones, {} flops on each rank ({:.2f} % of its work)\n",
          f.redundant_left_out, f.redundant.empty() ? "" : "more ", f.redundant_left_out_flops,
          100.0 * static_cast<double>(f.redundant_left_out_flops) / static_cast<double>(f.flops));
    }
  }
  text += fmt::format(
      "memory on each rank: params {} B, state {} B, inputs {} B, transient peak {} B\n",
      e.memory.params, e.memory.state, e.memory.inputs, e.memory.transient);
  if (e.memory.offloaded > 0)
    text += fmt::format("  and in host memory: optimizer state {} B\n", e.memory.offloaded);
  for (const auto& [name, bytes] : e.memory.at_peak)
    text += fmt::format("  {:>12} B  {}\n", bytes, name);
  for (const PaddingReport& p : e.padding)
    text += fmt::format("padding: dim '{}' {} -> {}\n", p.dim, p.size, p.padded);
  for (const std::string& note : e.notes) text += "warning: " + note + "\n";
  return text + fmt::format("program {:016x}\n", e.program_hash);
}

}  // namespace tessera
