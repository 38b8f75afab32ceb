#include "cli/charts.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "cli/plain_charts.h"

namespace tessera::cli {

namespace {

using pages::Json;

/// Beyond this many intervals the shortest are left out, so that a page stays small.
constexpr size_t kMostSpans = 12000;

/// Texts that occur often, by number.
class Names {
 public:
  size_t add(const std::string& name) {
    const auto [at, is_new] = index_.emplace(name, list_.size());
    if (is_new) list_.push_back(name);
    return at->second;
  }
  const Json& list() const { return list_; }

 private:
  std::map<std::string, size_t> index_;
  Json list_ = Json::array();
};

std::vector<const SimulatedStep*> longest(const std::vector<SimulatedStep>& steps) {
  std::vector<const SimulatedStep*> all;
  for (const SimulatedStep& s : steps) all.push_back(&s);
  if (all.size() <= kMostSpans) return all;
  std::nth_element(all.begin(), all.begin() + kMostSpans, all.end(),
                   [](const auto* a, const auto* b) { return a->seconds > b->seconds; });
  all.resize(kMostSpans);
  std::sort(all.begin(), all.end(),
            [](const auto* a, const auto* b) { return a->begin < b->begin; });
  return all;
}

}  // namespace

pages::Json time_line_chart(const std::string& title, const Simulation& s) {
  const bool is_pipeline = s.stages > 1;
  Json labels = Json::array(), rects = Json::array();
  const Json classes = is_pipeline
                           ? Json{"forward", "backward", "hand over", "once a step"}
                           : Json{"compute", "communication, hidden", "communication, exposed"};
  for (int64_t stage = 0; is_pipeline && stage < s.stages; ++stage) {
    labels.push_back(fmt::format("stage {}", stage));
    labels.push_back("sends");
  }
  if (!is_pipeline) labels.push_back("compute");
  for (size_t i = 0; !is_pipeline && i < s.by_axes.size(); ++i) labels.push_back(s.by_axes[i].axes);
  Names names;
  for (const SimulatedStep* step : longest(s.steps)) {
    const int64_t lane = is_pipeline ? 2 * step->stage + step->lane : step->lane;
    const double end = step->begin + step->seconds;
    std::string name = step->kernel == step->name ? step->name : step->kernel + " " + step->name;
    if (step->more > 0) name += fmt::format(" and {} more in its bucket", step->more);
    if (!step->rule.empty()) name += "\nbecause of " + step->rule;
    if (!step->source.empty()) name += "\n" + step->source;
    const auto add = [&](double from, double to, int kind) {
      if (to > from)
        rects.push_back({rounded(from), rounded(to), lane, lane + 1, kind, names.add(name)});
    };
    if (is_pipeline) {
      if (step->phase == SimulatedPhase::hand_over) name = step->name;
      add(step->begin, end, static_cast<int>(step->phase) - 1);
    } else if (step->lane == 0) {
      add(step->begin, end, 0);
    } else {
      // What compute waits for is the end of a transfer.
      name += fmt::format("\nsends {}", pages::with_unit(static_cast<double>(step->bytes), "B"));
      const double exposed = std::min(step->exposed, step->seconds);
      add(step->begin, end - exposed, 1);
      add(end - exposed, end, 2);
    }
  }
  Json chart = {{"kind", "rects"},
                {"title", title},
                {"x", {{"label", "time"}, {"unit", "s"}}},
                {"y", {{"labels", labels}}},
                {"classes", classes},
                {"names", names.list()},
                {"rects", rects}};
  std::string about;
  if (!s.stage_ticks.empty()) about = "Of a pipeline the first stage is shown. ";
  if (s.steps.size() > kMostSpans)
    about += fmt::format("The {} longest of {} steps.", kMostSpans, s.steps.size());
  if (!about.empty()) chart["about"] = about;
  return chart;
}

pages::Json stages_chart(const Simulation& s) {
  if (s.stage_ticks.empty()) return nullptr;
  const PipelineReport& p = s.pipelines[0];
  Json lanes = Json::array(), rects = Json::array(), texts = Json::array();
  Names names;
  bool has_weights = false;
  for (int64_t stage = 0; stage < p.stages; ++stage)
    lanes.push_back(fmt::format("stage {}", stage));
  for (const StageTick& t : s.stage_ticks) {
    if (rects.size() == kMostSpans) break;
    const bool is_layers = t.microbatch >= 0;
    const size_t name = names.add(
        is_layers ? fmt::format("stage {}, microbatch {}", t.stage, t.microbatch) : "all stages");
    if (name == texts.size()) texts.push_back(is_layers ? std::to_string(t.microbatch) : "");
    const int kind = t.phase == SimulatedPhase::forward    ? 0
                     : t.phase == SimulatedPhase::backward ? 1
                     : t.phase == SimulatedPhase::together ? 2
                     : t.phase == SimulatedPhase::update   ? 3
                                                           : 4;
    has_weights = has_weights || kind == 4;
    rects.push_back(
        {rounded(t.begin), rounded(t.begin + t.seconds), t.stage, t.stage + 1, kind, name});
  }
  std::string about = fmt::format(
      "A tick is a forward or a backward of a microbatch on a stage, where and as long as that "
      "stage is predicted to run it. A stage works in {} of {} ticks; what it waits for others is "
      "the bubble, {} of {}. Between ticks all stages compute the head and the loss. Else a stage "
      "waits for what was sent.",
      p.busy, p.ticks, pages::with_unit(s.bubble, "s"), pages::with_unit(s.seconds, "s"));
  if (s.stage_ticks.size() > kMostSpans)
    about += fmt::format(" The first {} of {} boxes.", kMostSpans, s.stage_ticks.size());
  Json classes = {"forward", "backward", "all stages: head, loss, hand over", "once a step"};
  if (has_weights) classes.push_back("gradients of parameters");
  return {{"kind", "rects"},
          {"title", "microbatches in the stages"},
          {"about", about},
          {"x", {{"label", "time"}, {"unit", "s"}, {"to", rounded(s.seconds)}}},
          {"y", {{"labels", lanes}}},
          {"classes", classes},
          {"names", names.list()},
          {"texts", texts},
          {"rects", rects}};
}

pages::Json memory_chart(const Placement& p) {
  std::vector<int64_t> live(p.steps.size() + 1, 0);
  for (const LiveBuffer& b : p.buffers) {
    live[static_cast<size_t>(b.first)] += b.bytes;
    live[static_cast<size_t>(b.last) + 1] -= b.bytes;
  }
  int64_t now = 0, most = 0;
  int peak = 0;
  for (size_t s = 0; s < p.steps.size(); ++s) {
    now += live[s];
    if (now > most) most = now, peak = static_cast<int>(s);
  }
  std::vector<const LiveBuffer*> all;
  for (const LiveBuffer& b : p.buffers) all.push_back(&b);
  std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) {
    return a->bytes * (a->last - a->first + 1) > b->bytes * (b->last - b->first + 1);
  });
  if (all.size() > kMostSpans) all.resize(kMostSpans);
  Json rects = Json::array();
  Names names;
  for (const LiveBuffer* b : all) {
    const bool at_peak = b->first <= peak && peak <= b->last;
    rects.push_back({b->first, b->last + 1, b->offset, b->offset + b->bytes, at_peak ? 1 : 0,
                     names.add(b->name)});
  }
  return {{"kind", "rects"},
          {"title", "transient memory over the step"},
          {"about",
           fmt::format("A box is a buffer: as wide as the steps in which it is needed, as high as "
                       "its bytes, where it lies in the arena of {}. Most is in use at step {}{}.",
                       pages::with_unit(static_cast<double>(p.transient_bytes), "B"), peak,
                       p.steps.empty() ? "" : ", " + p.steps[static_cast<size_t>(peak)])},
          {"x", {{"label", "step of the Program"}, {"unit", "#"}}},
          {"y", {{"label", ""}, {"unit", "B"}}},
          {"classes", {"buffer", "in use at the peak"}},
          {"names", names.list()},
          {"rects", rects}};
}

pages::Json mesh_chart_on(const Mesh& mesh, const Machine* machine) {
  const LinkTier* inner = machine && !machine->links.empty() ? &machine->links[0] : nullptr;
  const int64_t ranks = mesh.size(),
                together = inner && inner->devices > 0 ? std::min(inner->devices, ranks) : ranks;
  Json domains = Json::array();
  for (int64_t first = 0; first < ranks; first += together)
    domains.push_back(
        {together < ranks ? fmt::format("{} {}", inner->name, domains.size()) : "ranks",
         std::min(together, ranks - first)});
  return mesh_chart(mesh, domains,
                    machine ? axis_links(mesh, *machine) : std::vector<std::string>());
}

pages::Json cut_chart(const Placement& p) {
  constexpr size_t kMostTensors = 4000;
  Json mesh = Json::array(), tensors = Json::array();
  for (const MeshAxis& axis : p.mesh.axes()) mesh.push_back({axis.name, axis.size});
  for (const PlacedTensor& t : p.tensors) {
    if (tensors.size() == kMostTensors) break;
    Json dims = Json::array();
    for (const PlacedDim& d : t.dims) dims.push_back({d.name, d.size, d.padded, d.axes});
    tensors.push_back({{"name", t.name},
                       {"kind", t.kind},
                       {"made", t.made},
                       {"source", t.source},
                       {"dtype", t.dtype},
                       {"bytes", t.bytes},
                       {"partial", t.partial},
                       {"combiner", t.combiner},
                       {"dims", dims}});
  }
  Json chart = {
      {"kind", "cut"}, {"title", "where a tensor lies"}, {"mesh", mesh}, {"tensors", tensors}};
  if (p.tensors.size() > kMostTensors)
    chart["about"] = fmt::format("The first {} of {} tensors; explain --show NAME has any.",
                                 kMostTensors, p.tensors.size());
  return chart;
}

Causes causes_of(const Simulation& s) {
  Causes parts = {{"compute", s.compute}, {"slowed by transfers", s.slowed}};
  for (const SimulatedAxes& a : s.by_axes) parts.emplace_back("waiting for " + a.axes, a.exposed);
  parts.emplace_back(kBubble, s.bubble);
  return parts;
}

}  // namespace tessera::cli
