// A plan as a page of text.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/units.h"
#include "base/words.h"
#include "plan/memory_limit.h"
#include "tessera/plan.h"

namespace tessera {

std::string train_flags(const PricedPlan& p, bool written_out) {
  const std::string& rules = written_out ? p.layout : p.rules;
  std::string text = fmt::format("--mesh \"{}\" --layout \"{}\"", p.mesh.to_string(), rules), sets;
  if (!written_out && p.zero > 0) text += fmt::format(" --zero {} --over {}", p.zero, p.over);
  if (p.build.recompute != "none") text += " --recompute " + p.build.recompute;
  if (p.build.reshard_after_forward != "none")
    sets += " reshard_after_forward=" + p.build.reshard_after_forward;
  if (p.build.microbatches > 1) sets += fmt::format(" microbatches={}", p.build.microbatches);
  if (!p.settings.empty()) sets += " " + p.settings;
  return sets.empty() ? text : text + " --set" + sets;
}

namespace {

/// Mesh axes of a plan, by what they split.
struct PlanParts {
  std::vector<std::pair<std::string, int64_t>> data, others;  ///< (axis, size), (dims, size)
  int64_t data_ranks = 1;
};

PlanParts parts_of(const PricedPlan& p, const std::string& example_dim) {
  PlanParts parts;
  const Layout rules = Layout::parse(p.rules);
  for (const MeshAxis& axis : p.mesh.axes()) {
    if (axis.size == 1) continue;
    std::string dims;
    bool is_data = false;
    for (const LayoutRule& rule : rules.rules()) {
      if (!rule.scope.empty() || rule.purpose != Purpose::none ||
          std::find(rule.axes.begin(), rule.axes.end(), axis.name) == rule.axes.end())
        continue;
      is_data = is_data || rule.dim == example_dim;
      if (rule.dim != example_dim) dims += (dims.empty() ? "" : ",") + rule.dim;
    }
    if (is_data) parts.data.emplace_back(axis.name, axis.size);
    if (is_data) parts.data_ranks *= axis.size;
    if (!dims.empty()) parts.others.emplace_back(dims, axis.size);
    if (!is_data && dims.empty()) parts.others.emplace_back("nothing", axis.size);
  }
  return parts;
}

std::string time_text(double seconds) {
  const double s = std::abs(seconds);
  return s >= 1       ? fmt::format("{:.3f} s", seconds)
         : s >= 1e-3  ? fmt::format("{:.3f} ms", seconds * 1e3)
         : s >= 1e-12 ? fmt::format("{:.1f} us", seconds * 1e6)
                      : "0";
}

std::string bar(double part, double whole) {
  constexpr double kWidth = 30;
  const int n = whole > 0 ? static_cast<int>(std::lround(kWidth * part / whole)) : 0;
  return std::string(static_cast<size_t>(std::clamp(n, 0, static_cast<int>(kWidth))), '#');
}

void row(std::string& text, const std::string& name, double seconds, double whole,
         const std::string& more = "") {
  const std::string hashes = bar(seconds, whole) + more;
  text += fmt::format("  {:<26} {:>11} {:>5.1f} %{}{}\n", name, time_text(seconds),
                      whole > 0 ? 100 * seconds / whole : 0.0, hashes.empty() ? "" : "  ", hashes);
}

void add_waterfall(std::string& text, const PricedPlan& p) {
  text += fmt::format("\nwhere the step's {} go\n", time_text(p.seconds));
  row(text, "forward and backward", p.compute - p.update, p.seconds);
  row(text, "update of parameters", p.update, p.seconds);
  if (p.slowed > 0) row(text, "slowed by transfers", p.slowed, p.seconds);
  for (const PlanAxes& axes : p.by_axes) {
    row(text, "waiting for " + axes.axes, axes.exposed, p.seconds,
        fmt::format("  (sends {}, {} of it hidden)", bytes_text(static_cast<double>(axes.bytes)),
                    time_text(std::max(0.0, axes.seconds - axes.exposed))));
  }
  if (p.bubble > 0) row(text, kBubble, p.bubble, p.seconds);
}

void add_memory(std::string& text, const PricedPlan& p, int64_t limit, int64_t reserve) {
  text += fmt::format("\nmemory of a rank: {}", bytes_text(static_cast<double>(p.memory())));
  if (limit > 0) text += fmt::format(" of {}", bytes_text(static_cast<double>(limit)));
  if (limit > 0 && reserve > 0) text += ", " + reserve_text(limit + reserve, reserve);
  text += "\n";
  for (const auto& [name, bytes] : memory_parts(p)) {
    const std::string hashes =
        bar(static_cast<double>(bytes), static_cast<double>(std::max(limit, p.memory())));
    text += fmt::format("  {:<26} {:>11}{}{}\n", name, bytes_text(static_cast<double>(bytes)),
                        hashes.empty() ? "" : "  ", hashes);
  }
}

/// Adds what scoped rules saved. Only the best plans were tried with them, so nothing is proved
/// about them.
void add_scoped(std::string& text, const Plan& plan) {
  if (plan.scoped == 0) return;
  text +=
      fmt::format("  scoped rules: {} plans with some priced, of the best without", plan.scoped);
  if (plan.best.scoped.empty()) {
    text += "; none pays\n";
  } else if (plan.plain_seconds == 0) {
    text += fmt::format("; only with '{}' does one fit\n", plan.best.scoped);
  } else {
    text += fmt::format("; '{}' saves {:.1f} % of {}\n", plan.best.scoped,
                        100 * (1 - plan.table_seconds / plan.plain_seconds),
                        time_text(plan.plain_seconds));
  }
}

/// Adds what is known about layouts of single tensors.
void add_tensors(std::string& text, const PlanTensors& t, double planned) {
  if (!t.left_out.empty())
    text += fmt::format("  layouts of single tensors are not examined: {}\n", t.left_out);
  if (t.tensors == 0) return;
  text += fmt::format("  single tensors: {} tensors and {} ops of a layer and what is around it, ",
                      t.tensors, t.ops);
  if (t.is_proof()) {
    text += fmt::format(
        "proved over all their layouts: none takes less than {}, step by step, nothing fused or "
        "hidden\n",
        time_text(t.planned));
  } else {
    text += fmt::format("step by step {}, the best layouts {}, none less than {} (gap {:.1f} %)\n",
                        time_text(t.planned), time_text(t.least), time_text(t.bound),
                        100 * (1 - t.bound / t.planned));
  }
  if (t.simulated > 0) {
    text += fmt::format("    written as rules, '{}': {} a step when simulated instead of {}\n",
                        t.rules, time_text(t.simulated), time_text(t.before));
  }
  text += fmt::format(
      "    fused and hidden, no layouts are predicted to take less than {} (gap {:.1f} %)\n",
      time_text(t.floor), 100 * (1 - t.floor / planned));
}

void add_certificate(std::string& text, const Plan& plan) {
  if (plan.optimal) {
    text += "\nproof: no plan of the space is predicted to be faster; it has no scoped rules";
  } else {
    text += fmt::format(
        "\nno proof: a faster plan may exist, but none under {} without scoped rules (gap {:.1f} "
        "%)",
        time_text(plan.bound), 100 * plan.gap());
  }
  text += fmt::format(
      "\n  {} assignments of axes to dims, {} plans priced, {} illegal; first plan after {:.2f} s, "
      "{} after {:.2f} s, all in {:.2f} s\n",
      plan.space, plan.priced, plan.illegal, plan.first_seconds, plan.optimal ? "proof" : "gap",
      plan.proof_seconds, plan.search_seconds);
  add_scoped(text, plan);
  add_tensors(text, plan.tensors, plan.table_seconds);
  if (plan.too_large > 0) {
    text += fmt::format(
        "  left out: {} assignments that by estimate need more than {:g} times the memory\n",
        plan.too_large, MemoryLimit::kTooLarge);
  }
}

/// "FSDP over 64, 2 examples a microbatch, recompute block".
std::string in_words(const PricedPlan& p, const Plan& plan) {
  std::string text = kind_of(p, plan.microbatch_dim);
  const int64_t at_once = p.build.microbatches * parts_of(p, plan.microbatch_dim).data_ranks;
  if (plan.examples > 0 && plan.examples % at_once == 0)
    text += fmt::format(", {} example{} a microbatch", plan.examples / at_once,
                        plan.examples == at_once ? "" : "s");
  return text + ", " +
         (p.build.recompute == "none" ? "no recompute" : "recompute " + p.build.recompute);
}

/// "512 TFLOP/s a device, 1.6 M tokens/s, 75.00 GB of 81.40 GB".
std::string rates_text(const Plan& plan) {
  const PricedPlan& p = plan.best;
  std::string text;
  if (plan.flops > 0)
    text += fmt::format("{:.3g} TFLOP/s a device, ",
                        1e-12 * plan.flops / p.seconds / static_cast<double>(p.mesh.size()));
  if (plan.tokens > 0)
    text += fmt::format("{:.3g} M tokens/s, ", 1e-6 * static_cast<double>(plan.tokens) / p.seconds);
  text += bytes_text(static_cast<double>(p.memory()));
  if (plan.memory_limit > 0) text += " of " + bytes_text(static_cast<double>(plan.memory_limit));
  return text;
}

/// Where another plan loses most.
std::string why_slower(const Plan& plan, const PricedPlan& p) {
  if (plan.memory_limit > 0 && p.memory() > plan.memory_limit)
    return fmt::format("does not fit: {}", bytes_text(static_cast<double>(p.memory())));
  const PricedPlan& best = plan.best;
  const std::pair<double, const char*> parts[] = {
      {p.exposed - best.exposed, "more waiting for transfers"},
      {p.compute - best.compute, "more compute"},
      {p.bubble - best.bubble, "more pipeline bubble"},
      {p.slowed - best.slowed, "more compute slowed by transfers"}};
  const auto most = std::max_element(std::begin(parts), std::end(parts));
  return most->first > 0 ? fmt::format("{} {}", time_text(most->first), most->second) : "a tie";
}

void add_usual(std::string& text, const Plan& plan) {
  if (!plan.usual.empty()) text += "\nusual layouts beside it\n";
  for (const PricedPlan& p : plan.usual) {
    text += fmt::format("  {:>+7.1f} %  {}: {}\n             {}\n",
                        100 * (p.seconds / plan.table_seconds - 1), in_words(p, plan),
                        why_slower(plan, p), train_flags(p));
  }
}

void add_reasons(std::string& text, const Plan& plan) {
  if (!plan.alternatives.empty()) text += "\nif a dim were split otherwise, at best\n";
  for (const DimAlternative& a : plan.alternatives) {
    text += fmt::format("  {:<13} {:>8} -> {:<8} {:>+7.1f} %  {:>10}{}\n", a.dim, a.now, a.instead,
                        100 * a.penalty / plan.table_seconds,
                        bytes_text(static_cast<double>(a.memory)), a.fits ? "" : ", does not fit");
  }
  if (plan.saved_per_gib > 0) {
    text +=
        fmt::format("\n1 GiB more a device would save {} a step\n", time_text(plan.saved_per_gib));
  }
  if (!plan.runners_up.empty()) text += "\nrunners-up\n";
  for (const PricedPlan& p : plan.runners_up) {
    const bool fits = plan.memory_limit == 0 || p.memory() <= plan.memory_limit;
    const double beside = p.whole ? plan.best.seconds : plan.table_seconds;
    text += fmt::format("  {:>+6.1f} %  {:>10}  {}{}\n", 100 * (p.seconds / beside - 1),
                        bytes_text(static_cast<double>(p.memory())), train_flags(p),
                        fits ? "" : ", does not fit");
  }
}

void add_transfers(std::string& text, const PricedPlan& p) {
  if (p.transfers.empty()) text += "    nothing is sent between ranks\n";
  for (const PlanTransfer& t : p.transfers) {
    text += fmt::format("    {:<14} over {:<12} {:>11}  {}\n", t.kind, t.axes,
                        bytes_text(static_cast<double>(t.bytes)), t.tensor);
  }
}

}  // namespace

std::string to_string(const Plan& plan) {
  const PricedPlan& p = plan.best;
  std::string text = fmt::format("best plan on {} {} devices: {} a step\n  {}: {}\n  {}\n",
                                 p.mesh.size(), plan.machine, time_text(p.seconds),
                                 in_words(p, plan), rates_text(plan), train_flags(p));
  if (time_text(p.seconds) != time_text(plan.table_seconds)) {
    text += fmt::format("  lowered as it will run; in the search it took {}\n",
                        time_text(plan.table_seconds));
  }
  add_waterfall(text, p);
  add_memory(text, p, plan.memory_limit, plan.reserve);
  add_usual(text, plan);
  add_certificate(text, plan);
  add_reasons(text, plan);
  return text;
}

std::string kind_of(const PricedPlan& p, const std::string& example_dim) {
  const PlanParts parts = parts_of(p, example_dim);
  std::vector<std::string> words;
  int64_t stored = 1;
  for (const auto& [axis, size] : parts.data) {
    if (fmt::format("+{}+", p.over).find("+" + axis + "+") != std::string::npos) stored *= size;
  }
  const int64_t copies = parts.data_ranks / stored;
  if (p.zero == 3 && copies > 1) {
    words.push_back(fmt::format("HSDP over {} x {}", copies, stored));
  } else if (p.zero == 3) {
    words.push_back(fmt::format("FSDP over {}", std::max(stored, parts.data_ranks)));
  } else if (parts.data_ranks > 1) {
    words.push_back(fmt::format("data parallel over {}{}", parts.data_ranks,
                                p.zero > 0 ? fmt::format(" with ZeRO-{}", p.zero) : ""));
  }
  for (const auto& [dims, size] : parts.others)
    words.push_back(fmt::format("{} over {}", dims, size));
  return words.empty() ? "one device" : fmt::format("{}", fmt::join(words, ", "));
}

namespace {

std::string side_text(const BreakEvenSide& side, const char* where) {
  const std::string at = bytes_text(side.bandwidth) + "/s";
  if (side.bandwidth == 0)
    return fmt::format("    {}: not known, the search time was over\n", where);
  const char* doubt = side.shown ? "" : ", of those tried in time";
  if (side.instead)
    return fmt::format("    {} {} faster{}: {}\n", where, at, doubt, train_flags(*side.instead));
  return fmt::format("    {}: none is faster up to {}{}\n", where, at, doubt);
}

}  // namespace

std::string to_string(const std::vector<BreakEven>& links) {
  std::string text = links.empty() ? "" : "\nbreak-even bandwidths\n";
  for (const BreakEven& link : links) {
    text += fmt::format("  {} ({}), now {}/s\n", link.link, link.axes, bytes_text(link.bandwidth));
    text += side_text(link.below, "below") + side_text(link.above, "above");
  }
  return text;
}

std::string compare(const Plan& plan, const PricedPlan& other) {
  const double more = other.seconds / plan.best.seconds - 1;
  std::string text = fmt::format(
      "why not {}\n  {} a step: {:+.1f} % beside the best plan{}\n", train_flags(other),
      time_text(other.seconds), 100 * more,
      plan.memory_limit > 0 && other.memory() > plan.memory_limit ? "; and it does not fit" : "");
  add_waterfall(text, other);
  add_memory(text, other, plan.memory_limit, plan.reserve);
  text += "\nthe largest transfers of a step, sent by a rank\n  this layout\n";
  add_transfers(text, other);
  text += "  the best plan\n";
  add_transfers(text, plan.best);
  return text;
}

}  // namespace tessera
