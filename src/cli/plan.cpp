// plan: finds the layout of least predicted step time and reports it as text and JSON.
#include "base/fail.h"
#include "base/files.h"
#include "cli/auto_plan.h"
#include "cli/report.h"
#include "cli/say.h"

namespace tessera::cli {

namespace {

nlohmann::json to_json(const PricedPlan& p) {
  nlohmann::json axes = nlohmann::json::array(), transfers = nlohmann::json::array();
  for (const PlanAxes& a : p.by_axes) {
    axes.push_back(
        {{"axes", a.axes}, {"bytes", a.bytes}, {"seconds", a.seconds}, {"exposed", a.exposed}});
  }
  for (const PlanTransfer& t : p.transfers) {
    transfers.push_back(
        {{"kind", t.kind}, {"tensor", t.tensor}, {"axes", t.axes}, {"bytes", t.bytes}});
  }
  return {{"mesh", p.mesh.to_string()},
          {"layout", p.layout},
          {"rules", p.rules},
          {"scoped", p.scoped},
          {"zero", p.zero},
          {"over", p.over},
          {"recompute", p.build.recompute},
          {"reshard_after_forward", p.build.reshard_after_forward},
          {"microbatches", p.build.microbatches},
          {"seconds", p.seconds},
          {"compute", p.compute},
          {"update", p.update},
          {"slowed", p.slowed},
          {"exposed", p.exposed},
          {"axes", axes},
          {"transfers", transfers},
          {"whole", p.whole},
          {"memory",
           {{"params", p.params},
            {"state", p.state},
            {"inputs", p.inputs},
            {"transient", p.transient},
            {"total", p.memory()}}}};
}

nlohmann::json to_json(const Plan& plan) {
  nlohmann::json report = {{"best", to_json(plan.best)},
                           {"bound", plan.bound},
                           {"gap", plan.gap()},
                           {"optimal", plan.optimal},
                           {"machine", plan.machine},
                           {"memory_limit", plan.memory_limit},
                           {"table_seconds", plan.table_seconds},
                           {"saved_per_gib", plan.saved_per_gib},
                           {"plain_seconds", plan.plain_seconds},
                           {"scoped", plan.scoped},
                           {"space", plan.space},
                           {"priced", plan.priced},
                           {"illegal", plan.illegal},
                           {"too_large", plan.too_large},
                           {"first_seconds", plan.first_seconds},
                           {"proof_seconds", plan.proof_seconds},
                           {"search_seconds", plan.search_seconds}};
  report["runners_up"] = nlohmann::json::array();
  for (const PricedPlan& p : plan.runners_up) report["runners_up"].push_back(to_json(p));
  report["alternatives"] = nlohmann::json::array();
  for (const DimAlternative& a : plan.alternatives) {
    report["alternatives"].push_back({{"dim", a.dim},
                                      {"now", a.now},
                                      {"instead", a.instead},
                                      {"penalty", a.penalty},
                                      {"memory", a.memory},
                                      {"fits", a.fits}});
  }
  return report;
}

nlohmann::json to_json(const PipelinePlans& pipelines, const Plan& beside) {
  nlohmann::json plans = nlohmann::json::array();
  for (const PipelinePlan& p : pipelines.plans) {
    nlohmann::json plan = to_json(p.stage);
    plan["stages"] = p.stages;
    plan["chunks"] = p.chunks;
    plan["schedule"] = p.chunks > 1 ? "interleaved 1F1B" : "1F1B";
    plan["bubble"] = p.bubble;
    plan["transfer"] = p.transfer;
    plan["handed"] = p.handed;
    plan["times_as_long"] = p.stage.seconds / beside.best.seconds;
    plans.push_back(plan);
  }
  return {{"runs", false},
          {"plans", plans},
          {"bound", pipelines.bound},
          {"space", pipelines.space},
          {"priced", pipelines.priced},
          {"least_memory", pipelines.least_memory},
          {"search_seconds", pipelines.search_seconds}};
}

nlohmann::json to_json(const BreakEvenSide& side) {
  return {{"bandwidth", side.bandwidth > 0 ? nlohmann::json(side.bandwidth) : nlohmann::json()},
          {"instead", side.instead ? to_json(*side.instead) : nlohmann::json()},
          {"shown", side.shown}};
}

nlohmann::json to_json(const std::vector<BreakEven>& links) {
  nlohmann::json list = nlohmann::json::array();
  for (const BreakEven& link : links) {
    list.push_back({{"link", link.link},
                    {"axes", link.axes},
                    {"bandwidth", link.bandwidth},
                    {"below", to_json(link.below)},
                    {"above", to_json(link.above)}});
  }
  return list;
}

void write_page(const std::string& path, const std::string& title, const std::string& page) {
  if (path.empty()) return;
  std::string text;
  for (const char c : page) {
    text += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  write_text_file(
      path, "<!doctype html><meta charset=\"utf-8\"><title>" + title +
                "</title><style>body{margin:2em auto;max-width:70em}"
                "pre{font:14px/1.5 ui-monospace,monospace;white-space:pre-wrap}</style><pre>" +
                text + "</pre>\n");
}

}  // namespace

namespace {

constexpr double kBreakEvens = 0.3;  ///< minimum share of the search time for break-even bandwidths

/// The text page and the JSON report, printed and written section by section as they are known.
class Pages {
 public:
  Pages(const Arguments& args, const std::string& model)
      : args_(args), title_(model + ": plan"), page_(model + "\n") {
    say("{}", page_);
  }
  /// key: name of the section in the report; "": the report itself.
  void add(const char* key, const std::string& text, nlohmann::json section) {
    (*key == 0 ? report_ : report_[key]) = std::move(section);
    page_ += text;
    say("{}", text);
    std::fflush(stdout);
    write_page(args_.out, title_, page_);
    write_report(args_.json, report_);
  }

 private:
  const Arguments& args_;
  std::string title_, page_;
  nlohmann::json report_;
};

/// The job with the rules of --layout or a file, which all plans keep, but without the model's
/// default rules.
Job job_to_plan(const Arguments& args, const std::vector<ModelSpec>& models) {
  Arguments plain = args;
  if (args.devices > 0) plain.mesh = fmt::format("data:{}", args.devices);  // overrides the file
  Job job = resolve_without_plan(plain, models);
  if (!args.layout.empty() || job.given.contains("layout.rules")) return job;
  plain.layout = "*:auto";
  return resolve_without_plan(plain, models);
}
}  // namespace

int plan(const Arguments& args, const std::vector<ModelSpec>& models) {
  require_place_for(args.json);
  require_place_for(args.out);
  require(args.devices == 0 || args.mesh.empty(),
          "--devices {} and --mesh '{}': give one of the two", args.devices, args.mesh);
  require(!args.pipeline || args.devices > 0,
          "--pipeline chooses the stages and the mesh of each; give --devices N{}",
          args.mesh.empty() ? "" : fmt::format(" instead of --mesh '{}'", args.mesh));
  require(args.microbatch_size.empty() || args.microbatch_size == "auto",
          "--microbatch-size {}: the planner chooses that; leave it out, or give "
          "--set microbatches=N",
          args.microbatch_size);
  const Job job = job_to_plan(args, models);
  const Machine machine = machine_for_plans(args);
  const PlanModel model = model_of(job);
  const PlanOptions options = options_of(args, job);
  const Plan found = args.devices > 0 ? tessera::plan(model, args.devices, machine, options)
                                      : tessera::plan(model, job.mesh, machine, options);
  Pages pages(args, model.name);
  pages.add("", to_string(found), to_json(found));
  if (!args.why_not.empty()) {
    const Mesh mesh = args.why_not_mesh.empty() ? found.best.mesh : Mesh::parse(args.why_not_mesh);
    const PricedPlan other =
        price(model, mesh, Layout::parse(layout_rules(args.why_not)), found.best.build, machine);
    pages.add("why_not", "\n" + compare(found, other), to_json(other));
  }
  const double seconds =
      std::max(kBreakEvens * options.seconds, options.seconds - found.search_seconds);
  const std::vector<BreakEven> links =
      args.devices > 0 ? break_even(model, args.devices, machine, options, found, seconds)
                       : break_even(model, job.mesh, machine, options, found, seconds);
  pages.add("break_even", to_string(links), to_json(links));
  if (args.pipeline) {
    const PipelinePlans pipelines = plan_pipeline(model, args.devices, machine, options);
    pages.add("pipeline", to_string(pipelines, found), to_json(pipelines, found));
  }
  return 0;
}

}  // namespace tessera::cli
