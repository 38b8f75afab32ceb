#include <algorithm>

#include "base/fail.h"
#include "cli/charts.h"
#include "cli/command_pages.h"
#include "cli/report_json.h"
#include "pages/page.h"

namespace tessera::cli {

namespace {

using pages::Json;
using pages::Page;

std::string time(double seconds) { return pages::with_unit(seconds, "s"); }

Json parts_of(const PricedPlan& p) {
  Json parts = Json::array();
  const auto add = [&](const std::string& name, double value) {
    if (value > 0) parts.push_back({name, value});
  };
  add("forward and backward", p.compute - p.update);
  add("update of parameters", p.update);
  add("slowed by transfers", p.slowed);
  for (const PlanAxes& axes : p.by_axes) add("waiting for " + axes.axes, axes.exposed);
  add(kBubble, p.bubble);
  return parts;
}

/// The proof as a sentence.
std::string proof_of(const Plan& plan) {
  const std::string looked =
      fmt::format("There are {} ways to give mesh axes to dims; {} plans were priced in {}.",
                  plan.space, plan.priced, time(plan.search_seconds));
  const std::string bounded = plan.scoped > 0 ? " (rules with a scope are tried, not proved)" : "";
  if (plan.optimal)
    return fmt::format(
        "No other plan is predicted to be faster: for each of the others a lower "
        "bound on its time is above this one{}. {}",
        bounded, looked);
  return fmt::format(
      "A faster plan may exist, but none can take less than {}: it would save {:.1f} % of this "
      "one's time at most{}. {}",
      time(plan.bound), 100 * plan.gap(), bounded, looked);
}

void add_winner(Page& page, const PlanFindings& f) {
  const PricedPlan& best = f.plan.best;
  page.cards(
      {{time(best.seconds), "a step, predicted"},
       {pages::bytes_text(best.memory()),
        f.plan.memory_limit > 0 ? "memory of a rank, of " + pages::bytes_text(f.plan.memory_limit)
                                : "memory of a rank"},
       {std::to_string(best.mesh.size()), "devices of " + f.plan.machine},
       {f.plan.optimal ? "proved" : fmt::format("{:.1f} %", 100 * f.plan.gap()),
        f.plan.optimal ? "best of its space" : "a better plan would save, at most"}});
  page.section("winner", "The best plan");
  page.command(f.job + " " + train_flags(best, true));
  page.text(proof_of(f.plan));
}

void add_step(Page& page, const PlanFindings& f) {
  page.section("step", "Where the step's time goes");
  Json rows = {{{"label", "best plan"}, {"parts", parts_of(f.plan.best)}}};
  if (f.other) rows.push_back({{"label", "--why-not"}, {"parts", parts_of(*f.other)}});
  page.chart({{"kind", "bars"}, {"title", "a step by cause"}, {"unit", "s"}, {"rows", rows}});
  page.table("kind: collective | axes: over | tensor: tensor | bytes: sent by a rank [B]",
             f.plan.best.transfers, "The plan sends nothing between ranks.");
  if (f.other) page.command(f.why_not);
}

void add_memory(Page& page, const PlanFindings& f) {
  page.section("memory", "Memory of a rank");
  const PricedPlan& p = f.plan.best;
  Json chart = memory_bar("best plan", p);
  // A bar that is small beside its limit would show nothing.
  if (f.plan.memory_limit > 0 && f.plan.memory_limit < 20 * p.memory())
    chart["limit"] = {{"at", f.plan.memory_limit},
                      {"label", "limit " + pages::bytes_text(f.plan.memory_limit)}};
  page.chart(chart);
  if (f.plan.saved_per_gib > 0)
    page.text(fmt::format("1 GiB more a device would save {} a step.", time(f.plan.saved_per_gib)));
}

/// Plans as points of time over memory.
class Points {
 public:
  void add(const std::string& name, const std::string& tip, double memory, double seconds) {
    for (Json& s : series_) {
      if (s["name"] != name) continue;
      s["x"]["m"].push_back(memory);
      s["y"].push_back(seconds);
      s["tips"].push_back(tip);
      return;
    }
    series_.push_back({{"name", name},
                       {"points", true},
                       {"color", series_.size()},
                       {"x", {{"m", {memory}}}},
                       {"y", {seconds}},
                       {"tips", {tip}}});
  }
  Json& series() { return series_; }

 private:
  Json series_ = Json::array();
};

void add_others(Page& page, const PlanFindings& f) {
  page.section("others", "Other plans");
  const Plan& plan = f.plan;
  Points points;
  points.add("best plan", train_flags(plan.best), static_cast<double>(plan.best.memory()),
             plan.best.seconds);
  points.series()[0]["big"] = true;
  for (const PricedPlan& p : plan.runners_up)
    points.add("runner-up", train_flags(p), static_cast<double>(p.memory()), p.seconds);
  for (const DimAlternative& a : plan.alternatives)
    points.add("a dim split otherwise", fmt::format("{}: {} -> {}", a.dim, a.now, a.instead),
               static_cast<double>(a.memory), plan.table_seconds + a.penalty);
  if (f.other)
    points.add("--why-not", train_flags(*f.other), static_cast<double>(f.other->memory()),
               f.other->seconds);
  Json chart = {{"kind", "xy"},
                {"title", "time over memory"},
                {"about", "Each point is a priced plan; the better ones are at the bottom left."},
                {"xs", {{{"key", "m"}, {"label", "memory of a rank"}, {"unit", "B"}}}},
                {"square", true},
                {"y", {{"label", "a step"}, {"unit", "s"}, {"log", false}}},
                {"series", points.series()}};
  if (plan.memory_limit > 0 && plan.memory_limit < 4 * plan.best.memory())
    chart["vlines"] = {{{"at", plan.memory_limit}, {"label", "limit"}}};
  page.chart(chart);
  Json rows = plan.alternatives;
  add_field(rows, "share", plan.alternatives,
            [&](auto& a) { return plan.table_seconds > 0 ? a.penalty / plan.table_seconds : 0; });
  add_field(rows, "fits", plan.alternatives, [](auto& a) { return a.fits ? "yes" : "no"; });
  page.table(
      "dim: if dim | now: were split not over | instead: but over | "
      "penalty: a step takes longer by [s] | share: that is [%] | memory: memory [B] | "
      "fits: fits",
      rows, "No dim could be split otherwise.");
  rows = Json::array();
  for (const PricedPlan& p : plan.runners_up)
    rows.push_back({{"flags", train_flags(p)}, {"seconds", p.seconds}, {"memory", p.memory()}});
  page.table("seconds: a step [s] | memory: memory [B] | flags: runner-up", rows,
             "There are no runners-up.");
}

void add_links(Page& page, const std::vector<BreakEven>& links) {
  page.section("links", "If links were slower or faster");
  Json rows = Json::array(), now = Json::array(), labels = Json::array(), rects = Json::array(),
       names = Json::array();
  for (const BreakEven& link : links) {
    const size_t lane = labels.size();
    labels.push_back(link.link);
    const double low = link.below.bandwidth, high = link.above.bandwidth;
    for (const auto& [side, what] : {std::pair{&link.below, "below"}, {&link.above, "above"}}) {
      rows.push_back({{"link", fmt::format("{} ({})", link.link, link.axes)},
                      {"now", link.bandwidth},
                      {"side", what},
                      {"at", side->bandwidth > 0 ? Json(side->bandwidth) : Json()},
                      {"instead", side->bandwidth == 0 ? "not known: the search time was over"
                                  : side->instead      ? train_flags(*side->instead)
                                                       : "none is faster up to there"},
                      {"shown", side->shown ? "proved" : "of those tried in time"}});
    }
    const auto span = [&](double from, double to, int kind, const std::string& name) {
      if (!(to > from)) return;
      names.push_back(name);
      rects.push_back(
          {from / link.bandwidth, to / link.bandwidth, lane, lane + 1, kind, names.size() - 1});
    };
    span(low > 0 ? low : link.bandwidth, high > 0 ? high : link.bandwidth, 0,
         link.link + ": the plan stays best");
    const double least = link.bandwidth / 2, most = 2 * link.bandwidth;
    if (link.below.instead)
      span(std::min(least, low / 2), low, 1, train_flags(*link.below.instead));
    if (link.above.instead)
      span(high, std::max(most, 2 * high), 1, train_flags(*link.above.instead));
  }
  if (!rects.empty())
    page.chart({{"kind", "rects"},
                {"title", "bandwidths at which the plan stays best"},
                {"about", "As a multiple of the bandwidth of today, which is 1."},
                {"x", {{"label", "times the bandwidth of today"}, {"unit", "#"}}},
                {"xlog", true},
                {"y", {{"labels", labels}}},
                {"classes", {"this plan", "another plan is faster"}},
                {"names", names},
                {"rects", rects}});
  page.table(
      "link: link (axes) | now: now [B/s] | side: side | at: break-even [B/s] | "
      "instead: then faster | shown: shown",
      rows, "The plan uses no links.");
}

}  // namespace

std::string plan_page(const PlanFindings& f) {
  Page page(f.model + ": plan",
            fmt::format("best plan on {} {} devices", f.plan.best.mesh.size(), f.plan.machine));
  add_winner(page, f);
  add_step(page, f);
  if (const Json stages = f.step ? stages_chart(*f.step) : nullptr; !stages.is_null()) {
    page.section("stages", "What the stages do, turn by turn");
    page.chart(stages);
  }
  add_memory(page, f);
  add_others(page, f);
  if (f.links) add_links(page, *f.links);
  if (f.placement) {
    page.section("tensors", "Where every tensor lies under the best plan");
    page.chart(mesh_chart_on(f.plan.best.mesh, &f.machine));
    page.chart(cut_chart(*f.placement));
  }
  page.section("text", "The same as text");
  page.command(to_string(f.plan) + (f.links ? to_string(*f.links) : ""));
  return page.html();
}

}  // namespace tessera::cli
