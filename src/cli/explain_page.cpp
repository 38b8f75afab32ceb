#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "cli/charts.h"
#include "cli/command_pages.h"
#include "cli/report_json.h"
#include "cli/source_text.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

void add_time(Page& page, const FunctionReport& f, const Simulation* simulation,
              const Explanation& e, const std::vector<std::string>& notes) {
  page.section("time", "Time of a step");
  if (simulation == nullptr) {
    page.note(
        "No times are predicted. Give a machine profile, as --machine h100, or measure this "
        "machine with tessera calibrate.");
    return;
  }
  page.chart(bar_chart("where the step's time goes, predicted on " + e.machine, "s", "a step",
                       causes_of(*simulation)));
  if (const Json stages = stages_chart(*simulation); !stages.is_null()) page.chart(stages);
  for (const std::string& note : notes) page.text(note);
  page.chart(time_line_chart("time line of the step", *simulation));
  Json rows = f.buckets;
  add_field(rows, "start", f.buckets,
            [](auto& b) { return b.seconds > 0 ? b.started / b.seconds : 0; });
  if (!rows.empty())
    page.table(
        "kind: collective | axes: over | buckets: buckets [#] | "
        "most: the largest sends [B] | seconds: all take [s] | start: of that, starting [%]",
        rows, "");
}

void add_collectives(Page& page, const FunctionReport& f, bool timed) {
  page.section("collectives", "Collectives, and why they are there");
  const std::vector<CollectiveReport> collectives = by_layers(f.collectives);
  Json rows = collectives;
  add_field(rows, "axes", collectives,
            [](auto& c) { return fmt::format("{} ({})", c.axes, c.ranks); });
  if (rows.size() > Page::kMostRows) {
    const char* const most = timed ? "exposed" : "bytes";
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const Json& a, const Json& b) { return a[most] > b[most]; });
  }
  std::vector<pages::Column> columns = pages::columns(
      "kind: collective | axes: over (ranks) | tensor: tensor | rule: because of | "
      "source: source [@] | times: times [#] | bytes: sent by a rank [B]");
  if (timed)
    columns.insert(columns.end(), {{"seconds", "takes", "s"}, {"exposed", "exposed", "s"}});
  page.table(columns, rows, "A step has no collectives: nothing is sent between ranks.");
}

/// The largest matmul rate of the profile.
double peak_of(const Machine& machine) {
  double peak = 0;
  for (const MatmulRate& rate : machine.matmuls) peak = std::max(peak, rate.flops);
  return peak;
}

void add_kernels(Page& page, const FunctionReport& f, const Machine& machine) {
  page.section("kernels", "Kernels");
  Json rows = f.kernels, x = Json::array(), y = Json::array(), tips = Json::array();
  add_field(rows, "lost", f.kernels, [](auto& k) { return std::max(0.0, k.seconds - k.roofline); });
  double low = INFINITY, high = 0;
  for (const KernelReport& k : f.kernels) {
    if (k.flops == 0 || k.bytes == 0 || k.seconds <= 0) continue;
    const double intensity = static_cast<double>(k.flops) / static_cast<double>(k.bytes);
    x.push_back(intensity);
    y.push_back(static_cast<double>(k.flops) / k.seconds);
    tips.push_back(
        fmt::format("{} {}, {} of a step", k.kernel, k.tensor, pages::with_unit(k.seconds, "s")));
    low = std::min(low, intensity);
    high = std::max(high, intensity);
  }
  const double peak = peak_of(machine),
               bandwidth = machine.memory_rates.empty() ? 0 : machine.memory_rates.back().bandwidth;
  if (!x.empty() && peak > 0 && bandwidth > 0) {
    const double ridge = peak / bandwidth;
    std::vector<double> at = {std::min(low, ridge / 4), ridge, std::max(high, 4 * ridge)}, roof;
    for (const double i : at) roof.push_back(std::min(peak, i * bandwidth));
    page.chart(
        {{"kind", "xy"},
         {"title", "kernels under the roofline of " + machine.name},
         {"about",
          fmt::format("Memory gives {}, matmuls {} at most. A point far below the line "
                      "loses time to launches or small sizes.",
                      pages::with_unit(bandwidth, "B/s"), pages::with_unit(peak, "FLOP/s"))},
         {"xs", {{{"key", "i"}, {"label", "operations for a byte"}, {"unit", ""}}}},
         {"xlog", true},
         {"square", true},
         {"y", {{"label", "rate"}, {"unit", "FLOP/s"}, {"log", true}}},
         {"series",
          {{{"name", "kernel"}, {"points", true}, {"x", {{"i", x}}}, {"y", y}, {"tips", tips}},
           {{"name", "roofline"}, {"quiet", true}, {"x", {{"i", at}}}, {"y", roof}}}}});
  }
  page.table(
      "kernel: kernel | tensor: tensor | source: source [@] | times: launches [#] | "
      "flops: operations [FLOP] | bytes: touched [B] | seconds: takes [s] | "
      "lost: over the roofline [s]",
      rows, "No kernels.");
}

void add_memory(Page& page, const Explanation& e, const Placement& placement) {
  page.section("memory", "Memory of a rank");
  page.chart(memory_bar("planned", e.memory));
  if (e.memory.offloaded > 0)
    page.text(fmt::format("In host memory: {} of optimizer state.",
                          pages::bytes_text(e.memory.offloaded)));
  page.chart(memory_chart(placement));
  Json rows = Json::array();
  for (const auto& [name, size] : e.memory.at_peak)
    rows.push_back({{"tensor", name}, {"bytes", size}});
  page.table("tensor: largest at the peak | bytes: bytes [B]", rows, "No transient tensors.");
}

void add_waste(Page& page, const Explanation& e, const FunctionReport& f) {
  page.section("waste", "Redundant work and padding");
  Json rows = f.redundant;
  const double all = std::max(1.0, static_cast<double>(f.flops));
  add_field(rows, "share", f.redundant,
            [&](auto& r) { return static_cast<double>(r.flops) / all; });
  page.table(
      "node: computed alike | source: source [@] | axes: on all ranks along | "
      "factor: ranks [#] | flops: on each [FLOP] | share: of its work [%]",
      rows, "No op of 1 % of the work or more is computed alike on several ranks.");
  page.table("dim: dim | size: size [#] | padded: padded to [#]", e.padding, "No dim is padded.");
}

std::set<std::string> places_of(const FunctionReport& f, const Placement& placement) {
  std::set<std::string> places;
  for (const CollectiveReport& c : f.collectives) places.insert(c.source);
  for (const KernelReport& k : f.kernels) places.insert(k.source);
  for (const RedundantReport& r : f.redundant) places.insert(r.source);
  for (const PlacedTensor& t : placement.tensors) places.insert(t.source);
  return places;
}

}  // namespace

std::string explain_page(const std::string& title, const std::string& subtitle,
                         const Explanation& e, const std::vector<std::string>& notes,
                         const Placement& placement, const Simulation* simulation,
                         const Machine* machine, const std::map<std::string, std::string>& files) {
  Page page(title, subtitle);
  const auto train = std::find_if(e.functions.begin(), e.functions.end(),
                                  [](const FunctionReport& f) { return f.name == "train"; });
  TESSERA_CHECK(train != e.functions.end(), "explain: no function 'train'");
  const int64_t memory = e.memory.params + e.memory.state + e.memory.inputs + e.memory.transient;
  std::vector<std::pair<std::string, std::string>> cards;
  if (simulation != nullptr)
    cards.emplace_back(pages::with_unit(simulation->seconds, "s"), "a step, predicted");
  cards.emplace_back(pages::with_unit(static_cast<double>(train->flops), "FLOP"), "on each rank");
  cards.emplace_back(pages::bytes_text(train->bytes),
                     fmt::format("sent by a rank, in {} collectives", train->collectives.size()));
  cards.emplace_back(pages::bytes_text(memory), "memory of a rank");
  page.cards(cards);
  for (const std::string& note : e.notes) page.note(note);
  add_time(page, *train, simulation, e, notes);
  add_memory(page, e, placement);
  page.section("tensors", "Where every tensor lies");
  if (placement.mesh.size() > 1)
    page.chart(mesh_chart_on(placement.mesh, simulation ? machine : nullptr));
  page.chart(cut_chart(placement));
  add_collectives(page, *train, simulation != nullptr);
  if (machine != nullptr && simulation != nullptr) add_kernels(page, *train, *machine);
  add_waste(page, e, *train);
  page.code(code_around(places_of(*train, placement), files));
  return page.html();
}

}  // namespace tessera::cli
