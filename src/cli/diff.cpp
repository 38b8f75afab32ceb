// diff: shows which steps of the Program differ between two layouts, and by how many milliseconds.
#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "base/layer_names.h"
#include "cli/charts.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/source_text.h"
#include "cli/terminal.h"
#include "tessera/explain.h"
#include "tessera/simulate.h"

namespace tessera::cli {

namespace {

struct DiffFlags : JobFlags, MachineFlag, ReportFlags {
  std::string model, a, b;  ///< a and b: layouts
  void declare(FlagTable& table) {
    table.add({{"MODEL", &model, kOneProcess, "Name of a model, or a TOML file.", {}, true},
               {"A", &a, kOneProcess, "A layout.", any_text(), true},
               {"B", &b, kOneProcess, "The layout to compare it with.", any_text(), true}});
    JobFlags::declare(table);
    MachineFlag::declare(table);
    ReportFlags::declare(table);
  }
};

/// The cost of one node under one layout: its time on the compute stream, or a collective's exposed
/// time.
struct Cost {
  double seconds = 0;
  int64_t flops = 0, bytes = 0;
  int steps = 0;
};

struct Line {
  std::string name, kernel, source, rule;
  Cost a, b;
  int64_t more = 0;  ///< collectives that a bucket has besides this tensor's, under A or B
  int nodes = 1;     ///< that are alike in their layers, see by_layers()
  /// The tensor or those of all layers, and how many others share its buckets.
  std::string tensor() const {
    const std::string layers =
        nodes > 1 ? fmt::format("{} ({} nodes)", without_layer(name), nodes) : name;
    return more > 0 ? fmt::format("{} and {} more", layers, more) : layers;
  }
};

struct Simulated {
  Simulation step;
  std::map<std::string, std::string> files;
};

Simulated simulate_layout(const DiffFlags& args, const std::vector<ModelSpec>& models,
                          const std::string& layout, const Machine& machine) {
  ModelFlags with(args, args.model, layout);
  with.machine = args.machine;
  Job job = resolve(with, models, false);
  if (layout.empty()) job.layout = Layout();
  Trainer t;
  build_trainer(job, t, false);
  return {tessera::simulate(t.graph, options_of(job, t, 1), machine), source_files(t.graph)};
}

void add(const Simulation& s, bool is_a,
         std::map<std::pair<std::string, std::string>, Line>& lines) {
  for (const SimulatedStep& step : s.steps) {
    const std::string kernel = step.lane == 0 ? step.kernel : step.kernel + " over " + step.axes;
    Line& line = lines[{step.name, kernel}];
    line.name = step.name;
    line.kernel = kernel;
    line.source = step.source;
    if (!step.rule.empty()) line.rule = step.rule;
    line.more = std::max<int64_t>(line.more, step.more);
    Cost& cost = is_a ? line.a : line.b;
    cost.seconds += step.lane == 0 ? step.seconds : step.exposed;
    cost.flops += step.flops;
    cost.bytes += step.bytes;
    ++cost.steps;
  }
}

bool differs(const Line& l) {
  return l.a.steps != l.b.steps || l.a.flops != l.b.flops || l.a.bytes != l.b.bytes;
}

double delta(const Line& l) { return l.b.seconds - l.a.seconds; }

/// Nodes that layers have alike as one with the sum of their costs, in order of the first.
std::vector<Line> by_layers(const std::vector<Line>& lines) {
  std::vector<Line> rows;
  std::map<std::string, size_t> known;
  for (const Line& l : lines) {
    const std::string key =
        fmt::format("{}\n{}\n{}\n{}", l.kernel, l.rule, l.source, without_layer(l.name));
    const auto [at, is_new] = known.emplace(key, rows.size());
    if (is_new) {
      rows.push_back(l);
      continue;
    }
    Line& row = rows[at->second];
    for (const auto& [to, from] : {std::pair{&row.a, &l.a}, {&row.b, &l.b}}) {
      to->seconds += from->seconds;
      to->flops += from->flops;
      to->bytes += from->bytes;
      to->steps += from->steps;
    }
    row.more = std::max(row.more, l.more);
    ++row.nodes;
  }
  return rows;
}

std::string causes_table(const Simulation& a, const Simulation& b) {
  std::string text = fmt::format("  {:>10} {:>10} {:>10}  ms, by cause\n", "A", "B", "B - A");
  const auto row = [&](const std::string& name, double x, double y) {
    text += fmt::format("  {:>10.3f} {:>10.3f} {:>+10.3f}  {}\n", 1e3 * x, 1e3 * y, 1e3 * (y - x),
                        name);
  };
  for (const CauseOfBoth& c : causes_of_both(causes_of(a), causes_of(b))) row(c.name, c.a, c.b);
  row("a step", a.seconds, b.seconds);
  return text;
}

std::string verdict_of(const Simulation& a, const Simulation& b) {
  return verdict("A", causes_of(a), "B", causes_of(b));
}

pages::Json by_axes(const Simulation& a, const Simulation& b) {
  std::map<std::string, pages::Json> rows;
  for (const SimulatedAxes& x : a.by_axes)
    rows[x.axes].update({{"axes", x.axes}, {"a_bytes", x.bytes}, {"a", x.exposed}});
  for (const SimulatedAxes& x : b.by_axes)
    rows[x.axes].update({{"axes", x.axes}, {"b_bytes", x.bytes}, {"b", x.exposed}});
  pages::Json list = pages::Json::array();
  for (auto& [axes, row] : rows) list.push_back(std::move(row));
  return list;
}

std::string page_of(const DiffFlags& args, const Simulation& a, const Simulation& b,
                    const std::vector<Line>& changed,
                    const std::map<std::string, std::string>& files) {
  const std::string name_a = "A: " + args.a, name_b = "B: " + args.b;
  pages::Page page(fmt::format("{}: two layouts", args.model),
                   fmt::format("{}; {}; on {}. {}", name_a, name_b, a.machine, verdict_of(a, b)));
  const auto memory = [](const Simulation& s) {
    return pages::with_unit(static_cast<double>(s.memory), "B");
  };
  page.cards({{pages::with_unit(a.seconds, "s"), "a step of A"},
              {pages::with_unit(b.seconds, "s"), "a step of B"},
              {pages::with_unit(b.seconds - a.seconds, "s"), "B - A"},
              {memory(a), "memory of a rank, A"},
              {memory(b), "memory of a rank, B"}});
  page.section("time", "Where the time goes");
  pages::Json bars = bar_chart("a step by cause", "s", name_a, causes_of(a));
  bars["rows"].push_back(bar_chart("", "s", name_b, causes_of(b))["rows"][0]);
  page.chart(bars);
  nlohmann::json causes = nlohmann::json::array();
  for (const CauseOfBoth& c : causes_of_both(causes_of(a), causes_of(b)))
    causes.push_back({{"cause", c.name}, {"a", c.a}, {"b", c.b}, {"delta", c.b - c.a}});
  page.table("cause: cause | a: A [s] | b: B [s] | delta: B - A [s]", causes, "");
  std::vector<pages::Json> lines = {time_line_chart(name_a, a), time_line_chart(name_b, b)};
  size_t longest = 0;
  for (const pages::Json& chart : lines) {
    for (const pages::Json& label : chart["y"]["labels"])
      longest = std::max(longest, label.get_ref<const std::string&>().size());
  }
  for (pages::Json& chart : lines) {  // one left edge and one scale for both
    chart["x"]["to"] = std::max(a.seconds, b.seconds);
    chart["y"]["room"] = longest;
    page.chart(chart);
  }
  page.section("communication", "Communication by axis");
  page.table(
      "axes: over | a_bytes: A: sent by a rank [B] | b_bytes: B: sent by a rank [B] | "
      "a: A: exposed [s] | b: B: exposed [s]",
      by_axes(a, b), "Neither layout sends anything between ranks.");
  page.section("nodes", "What differs");
  nlohmann::json rows = nlohmann::json::array();
  std::set<std::string> places;
  for (const Line& l : changed) {
    places.insert(l.source);
    rows.push_back({{"name", l.tensor()},
                    {"kernel", l.kernel},
                    {"rule", l.rule},
                    {"source", l.source},
                    {"a", l.a.seconds},
                    {"b", l.b.seconds},
                    {"delta", delta(l)}});
  }
  page.code(code_around(places, files));
  page.table(
      "kernel: kernel or collective | name: tensor | rule: because of | "
      "source: source [@] | a: A [s] | b: B [s] | delta: B - A [s]",
      rows, "No step differs.");
  return page.html();
}

int run_diff(const DiffFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  require_writable(args.html);
  const std::optional<Machine> machine = find_machine(args);
  TESSERA_REQUIRE(
      machine.has_value(),
      "diff needs --machine, a profile ({}) or a TOML file; or measure this machine with "
      "tessera calibrate",
      fmt::join(Machine::names(), ", "));
  const auto [a, files] = simulate_layout(args, models, args.a, *machine);
  const Simulation b = simulate_layout(args, models, args.b, *machine).step;
  std::map<std::pair<std::string, std::string>, Line> lines;
  add(a, true, lines);
  add(b, false, lines);
  std::vector<Line> changed;
  double same = 0;
  for (auto& [key, line] : lines) {
    if (differs(line)) {
      changed.push_back(std::move(line));
    } else {
      same += delta(line);
    }
  }
  std::vector<Line> rows = by_layers(changed);
  for (std::vector<Line>* list : {&changed, &rows}) {
    std::stable_sort(list->begin(), list->end(), [](const Line& x, const Line& y) {
      return std::abs(delta(x)) > std::abs(delta(y));
    });
  }
  say("A  {}\nB  {}\non {}: {}\n{}{}\n", args.a, args.b, a.machine, verdict_of(a, b),
      causes_table(a, b),
      changed.empty() ? "no node differs"
                      : fmt::format("{} nodes differ, most first; those that do not {:+.3f} ms",
                                    changed.size(), 1e3 * same));
  nlohmann::json json = {{"a", a.seconds}, {"b", b.seconds}, {"machine", a.machine}};
  json["causes"] = nlohmann::json::array();
  for (const CauseOfBoth& c : causes_of_both(causes_of(a), causes_of(b)))
    json["causes"].push_back({{"cause", c.name}, {"a", c.a}, {"b", c.b}});
  json["nodes"] = nlohmann::json::array();
  for (const Line& l : changed)
    json["nodes"].push_back({{"name", l.name},
                             {"kernel", l.kernel},
                             {"a", l.a.seconds},
                             {"b", l.b.seconds},
                             {"a_bytes", l.a.bytes},
                             {"b_bytes", l.b.bytes},
                             {"a_flops", l.a.flops},
                             {"b_flops", l.b.flops}});
  constexpr size_t kShown = 20;
  size_t shown = 0;
  double left_out = 0;
  for (const Line& l : rows) {
    if (shown == kShown || std::abs(delta(l)) < 0.5e-6) {  // would be 0.000
      left_out += delta(l);
      continue;
    }
    ++shown;
    say("  {:>10.3f} {:>10.3f} {:>+10.3f}  {}, {}\n", 1e3 * l.a.seconds, 1e3 * l.b.seconds,
        1e3 * delta(l), l.kernel, l.tensor());
  }
  if (shown < rows.size())
    say("  {:>10} {:>10} {:>+10.3f}  {} more rows; --html and --json have all\n", "", "",
        1e3 * left_out, rows.size() - shown);
  write_report(args.json, json);
  if (!args.html.empty()) write_text_file(args.html, page_of(args, a, b, rows, files));
  return 0;
}

}  // namespace

Command diff_command() {
  return command("diff", "Shows which steps differ between two layouts, and what they cost.",
                 "tessera diff gpt \"batch:data\" \"batch:data;ff:model\" --machine h100 "
                 "--mesh \"data:2;model:2\"",
                 Processes::first, run_diff);
}

}  // namespace tessera::cli
