// verify: runs the same few training steps on one rank and under every legal layout, and those that
// the model's documentation names.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "cli/agreement.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/watchdog.h"
#include "pages/page.h"
#include "tessera/explain.h"

namespace tessera::cli {

namespace {

struct VerifyFlags : ModelFlags, ReportFlags {
  std::string layouts = "all";
  int64_t steps = 3;
  double tolerance = -1;
  bool bits = false;
  void declare(FlagTable& table) {
    ModelFlags::declare(table);
    table.add({batch_flag(sets),
               recompute_flag(sets),
               {"--layouts all|documented|FILE", &layouts, kAgree,
                "Layouts to verify: all (the legal ones, and those that the model's documentation "
                "names), documented (only the latter), or a file with one layout a line."},
               {"--steps", &steps, kAgree, "Number of training steps (3).", whole_number(1)},
               {"--tolerance", &tolerance, kAgree,
                "Largest relative difference (1e-10 in float64, 1e-5 in float32, 16 units of "
                "rounding in 16 bits, 0.25 in float8).",
                finite_number(0)},
               {"--bits", &bits, kAgree,
                "Trains with train.numerics=strict, unless another kind is set, and asks for equal "
                "bits of parameters and optimizer state: one hash."},
               dtype_flag(sets),
               init_flag(keys)});
    ReportFlags::declare(table);
  }
};

/// A layout as it was written.
struct Written {
  std::string text;
  Layout layout;
};

/// Those of the model's documentation whose axes the mesh has.
std::vector<Written> documented_layouts(const Job& job) {
  std::vector<Written> result;
  for (const std::string& text : job.spec->documented) {
    Layout layout = Layout::parse(text);
    const auto& rules = layout.rules();
    const bool fits = std::all_of(rules.begin(), rules.end(), [&](const LayoutRule& rule) {
      return std::all_of(rule.axes.begin(), rule.axes.end(),
                         [&](const std::string& axis) { return job.mesh.find(axis) >= 0; });
    });
    if (fits) result.push_back({text, std::move(layout)});
  }
  return result;
}

/// The legal ones and those of the documentation.
std::vector<Written> all_layouts(const Job& job) {
  Trainer t;
  build_trainer(job, t, true);
  std::vector<Written> result;
  std::set<std::string> known;
  for (Layout& layout : legal_layouts(t.graph, job.mesh, t.functions)) {
    const std::string text = layout.to_string();
    known.insert(text);
    result.push_back({text, std::move(layout)});
  }
  for (Written& written : documented_layouts(job)) {
    if (known.insert(written.layout.to_string()).second) result.push_back(std::move(written));
  }
  return result;
}

/// If --layout is given, only that.
std::vector<Written> layouts_of(const VerifyFlags& args, const Job& job) {
  if (args.layouts == "all" && !args.layout.empty()) return {{job.layout.to_string(), job.layout}};
  if (args.layouts == "all") return all_layouts(job);
  std::vector<Written> result;
  if (args.layouts == "documented") {
    result = documented_layouts(job);
    const auto& documented = job.spec->documented;
    TESSERA_REQUIRE(
        !result.empty(), "the documentation of {} names no layout for the axes of mesh '{}'{}",
        job.spec->name, job.mesh.to_string(),
        documented.empty() ? ""
                           : fmt::format("; it names '{}', so name the axes of --mesh so",
                                         fmt::join(documented, "', '")));
    return result;
  }
  for (const std::string& line : layouts_in(args.layouts))
    result.push_back({line, Layout::parse(line)});
  return result;
}

/// The job for the reference on one rank: for a planned layout, without the planner's choices.
Job reference_of(const VerifyFlags& args, const std::vector<ModelSpec>& models, const Job& job) {
  Job asked = resolve_without_plan(args, models, true);
  if (!is_automatic(asked.layout)) return job;
  for (const auto& [key, plain] : {std::pair{"train.recompute", "none"},
                                   {"train.reshard_after_forward", "none"},
                                   {"train.microbatches", "1"}}) {
    if (asked.config.text(key) == "auto") asked.config.set(key, plain);
  }
  return asked;
}

/// For 16-bit types 16 units of rounding: docs/explanation/precision.md. For float8 two of e5m2.
double tolerance_of(const std::string& dtype) {
  if (dtype == "float64") return 1e-10;
  if (dtype == "float32") return 1e-5;
  if (dtype == "float8") return 2.0 / 8;
  return dtype == "float16" ? 16.0 / 2048 : 16.0 / 256;
}

/// That of the type which values are computed in, or of 16 bits that parameters are rounded to.
double default_tolerance(const Config& config) {
  const double computed = tolerance_of(config.text("train.dtype"));
  if (!is_narrow(config)) return computed;
  return std::max(computed, tolerance_of(config.text("train.parameters")));
}

/// A loss scale under which one rank overflows leaves nothing to compare.
void require_gradients(const Outcome& reference, const Job& job) {
  for (const Array& g : reference.first_gradients) {
    for (int64_t i = 0; i < g.elements(); ++i)
      TESSERA_REQUIRE(
          std::isfinite(g.at(i)),
          "the gradients of the first step overflow on one rank (train.dtype {}, "
          "train.loss_scale {}): there is nothing to compare; give a smaller scale, as --set "
          "loss_scale=1024",
          job.config.text("train.dtype"), job.config.text("train.loss_scale"));
  }
}

std::string page_of(const Job& job, const nlohmann::json& report, double tolerance) {
  pages::Page page(fmt::format("{}: layouts against one rank", job.spec->name),
                   fmt::format("{} layouts of mesh {}, {} step{}, {}, tolerance {:g}",
                               report["layouts"].get<int64_t>(), job.mesh.to_string(),
                               report["steps"].get<int64_t>(), report["steps"] == 1 ? "" : "s",
                               job.config.text("train.dtype"), tolerance));
  nlohmann::json rows = report["by_layout"];
  int64_t different = 0;
  std::vector<double> x, y;
  nlohmann::json tips = nlohmann::json::array();
  for (auto& row : rows) {
    different += !row["equal"].get<bool>();
    // On a scale of logarithms 0 has no place: it is shown as less than any rounding.
    const auto worst = row["gradient"];
    x.push_back(static_cast<double>(x.size() + 1));
    y.push_back(worst.is_number() ? std::max(worst.get<double>(), 1e-17) : NAN);
    tips.push_back(row["layout"].get<std::string>().empty() ? "nothing split"
                                                            : row["layout"].get<std::string>());
    row["equal"] = row["equal"].get<bool>() ? "equal" : "NOT EQUAL";
    row["flipped"] = row["flipped"].get<bool>() ? "yes" : "";
    if (row["layout"] == "") row["layout"] = "nothing split";
  }
  page.cards({{std::to_string(rows.size()), "layouts"},
              {std::to_string(different), "differ from one rank"},
              {pages::with_unit(tolerance, "#"), "tolerance"}});
  if (different > 0) page.note(fmt::format("{} layouts are NOT EQUAL to one rank.", different));
  page.section("differences", "Largest differences");
  page.chart(
      {{"kind", "xy"},
       {"title", "largest relative difference of a gradient, by layout"},
       {"about", "Values below 1e-17 are shown there."},
       {"xs", {{{"key", "n"}, {"label", "layout, in the order of the table"}, {"unit", "#"}}}},
       {"y", {{"label", "difference"}, {"unit", ""}, {"log", true}}},
       {"series",
        {{{"name", "layout"},
          {"points", true},
          {"x", {{"n", x}}},
          {"y", pages::numbers(y)},
          {"tips", tips}}}},
       {"hlines", {{{"at", tolerance}, {"label", "tolerance"}}}}});
  page.section("layouts", "Layouts");
  page.table(
      "layout: layout | equal: result | loss: loss [#] | gradient: gradient [#] | "
      "parameter: parameter [#] | flipped: chose otherwise near a tie",
      rows, "No layout was compared.");
  return page.html();
}

/// The hash of one rank, and the layouts with another one.
struct Bits {
  std::string state_hash;
  std::vector<std::string> others = {};
  std::vector<std::string> refused = {};  ///< with --bits: why layouts cannot be strict
};

/// One hash, or the layout with another one and the command that finds the node.
void say_bits(const VerifyFlags& args, const Job& job, const Bits& bits) {
  if (!bits.refused.empty())
    say("{} layouts cannot be strict and are left out; the first one: {}\n", bits.refused.size(),
        bits.refused[0]);
  if (bits.others.empty())
    return say("equal: every layout has the bits of one rank, state {}\n", bits.state_hash);
  const std::string& layout = bits.others.front();
  say("NOT EQUAL: {} layouts have other bits than one rank, state {}, the first is '{}'\n"
      "for the first node: tessera compare {} \"\" \"{}\" --mesh \"{}\" --steps {} --tolerance 0 "
      "--set {}\n",
      bits.others.size(), bits.state_hash, layout, args.model, layout, job.mesh.to_string(),
      args.steps, fmt::join(args.sets, " "));
}

void print(const VerifyFlags& args, const Job& job, const Agreement& all, const Bits& bits,
           bool hidden_choices, double tolerance, size_t layouts) {
  const auto& [loss, first_gradient, gradient, parameter, flips] = all;
  const bool ok = all.is_equal(tolerance, job.config);
  say("{} layouts of mesh {}, {} step{}, {}\n", layouts, job.mesh.to_string(), args.steps,
      args.steps == 1 ? "" : "s", job.config.text("train.dtype"));
  if (args.bits) return say_bits(args, job, bits);
  if (flips.layouts > 0) say("{}\n", flips_text(flips, layouts, tolerance));
  say("largest relative difference from one rank on the CPU:\n"
      "  loss      {:.3e}  ({})\n"
      "  gradient  {:.3e}  ({}), of the first step {:.3e}\n"
      "  parameter {:.3e}  ({})\n{} (tolerance {:g})\n",
      loss.value, layout_text(loss.layout), gradient.value, layout_text(gradient.layout),
      first_gradient.value, parameter.value, layout_text(parameter.layout),
      ok ? "equal" : "NOT EQUAL", tolerance);
  if (!ok && hidden_choices)
    say("the model chooses (argmax, top_k) inside of a loop, where a choice that fell otherwise "
        "is not told from an error; build it without loops (--set scan=false microbatches=1), or "
        "compare in float32\n");
}

nlohmann::json report_of(const VerifyFlags& args, const Agreement& all, const Bits& bits, bool ok,
                         const nlohmann::json& rows) {
  const auto& [loss, first_gradient, gradient, parameter, flips] = all;
  return {{"layouts", rows.size()},
          {"steps", args.steps},
          {"max_rel_loss", json_number(loss.value)},
          {"worst_loss", loss.layout},
          {"max_rel_first_grad", json_number(first_gradient.value)},
          {"max_rel_grad", json_number(gradient.value)},
          {"worst_grad", gradient.layout},
          {"max_rel_param", json_number(parameter.value)},
          {"worst_param", parameter.layout},
          {"flipped_layouts", flips.layouts},
          {"max_flip_margin", json_number(flips.margin)},
          {"equal", ok},
          {"state_hash", bits.state_hash},
          {"other_bits", bits.others},
          {"by_layout", rows}};
}

int run_verify(const VerifyFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  require_writable(args.html);
  VerifyFlags with_numerics = args;
  if (args.bits) with_numerics.sets.insert(with_numerics.sets.begin(), "train.numerics=strict");
  const Job job = resolve(with_numerics, models, true);
  const double tolerance = args.tolerance >= 0 ? args.tolerance : default_tolerance(job.config);
  const std::vector<Written> layouts = layouts_of(args, job);
  TESSERA_REQUIRE(
      job.mesh.size() > 1 || job.device != "cpu",
      "mesh '{}' has one rank, so there is nothing to compare with one rank on the CPU; give "
      "more ranks, as --mesh \"data:2;model:2\"",
      job.mesh.to_string());
  Cluster single = Cluster::threads(1);
  const Outcome reference = train_some(reference_of(with_numerics, models, job),
                                       Mesh::parse("one:1"), Layout(), args.steps, "cpu", single);
  if (is_narrow(job.config)) require_gradients(reference, job);
  Cluster cluster = make_cluster(job, args);
  const Watchdog watchdog(cluster, args.timeout);
  Agreement all;
  Bits bits{reference.state_hash};
  nlohmann::json rows = nlohmann::json::array();
  for (const Written& written : layouts) {
    Outcome outcome;
    try {
      outcome = train_some(job, job.mesh, written.layout, args.steps, job.device, cluster);
    } catch (const Error& e) {
      if (!args.bits || e.kind() != ErrorKind::unsupported || layouts.size() == 1) throw;
      bits.refused.push_back(e.what());
      continue;
    }
    const Agreement found = agreement_of(outcome, reference, tolerance);
    all.see(found, written.layout.to_string());
    const bool same_bits = outcome.state_hash == reference.state_hash;
    if (!same_bits) bits.others.push_back(written.text);
    rows.push_back({{"layout", written.text},
                    {"equal", found.is_equal(tolerance, job.config)},
                    {"same_bits", same_bits},
                    {"flipped", found.flips.layouts > 0},
                    {"loss", json_number(found.loss.value)},
                    {"gradient", json_number(found.gradient.value)},
                    {"parameter", json_number(found.parameter.value)}});
  }
  const bool ok = args.bits ? bits.others.empty() : all.is_equal(tolerance, job.config);
  if (!cluster.is_root()) return ok ? 0 : 1;
  print(with_numerics, job, all, bits, reference.hidden_choices, tolerance, layouts.size());
  const nlohmann::json report = report_of(args, all, bits, ok, rows);
  write_report(args.json, report);
  if (!args.html.empty()) write_text_file(args.html, page_of(job, report, tolerance));
  return ok ? 0 : 1;
}

}  // namespace

Command verify_command() {
  return command("verify", "Trains under every legal layout and compares with one rank.",
                 "tessera verify gpt --mesh \"a:2;b:2;c:2\" --steps 20 --dtype float64",
                 Processes::all, run_verify);
}

}  // namespace tessera::cli
