#include "tessera/explain.h"

#include "base/fail.h"
#include "cli/commands.h"
#include "cli/report.h"

namespace tessera::cli {

namespace {

nlohmann::json to_json(const Explanation& e) {
  nlohmann::json report;
  for (const FunctionReport& f : e.functions) {
    nlohmann::json function = {
        {"name", f.name}, {"steps", f.steps}, {"flops", f.flops}, {"bytes", f.bytes}};
    function["collectives"] = nlohmann::json::array();
    for (const CollectiveReport& c : f.collectives) {
      function["collectives"].push_back({{"kind", c.kind},
                                         {"tensor", c.tensor},
                                         {"source", c.source},
                                         {"rule", c.rule},
                                         {"axes", c.axes},
                                         {"ranks", c.ranks},
                                         {"bytes", c.bytes}});
    }
    for (const RedundantReport& r : f.redundant) {
      function["redundant"].push_back(
          {{"node", r.node}, {"axes", r.axes}, {"flops", r.flops}, {"factor", r.factor}});
    }
    function["redundant_left_out"] = {{"steps", f.redundant_left_out},
                                      {"flops", f.redundant_left_out_flops}};
    report["functions"].push_back(std::move(function));
  }
  report["memory"] = {{"params", e.memory.params},
                      {"state", e.memory.state},
                      {"inputs", e.memory.inputs},
                      {"transient", e.memory.transient}};
  for (const PaddingReport& p : e.padding)
    report["padding"].push_back({{"dim", p.dim}, {"size", p.size}, {"padded", p.padded}});
  report["warnings"] = e.notes;
  report["program"] = fmt::format("{:016x}", e.program_hash);
  return report;
}

}  // namespace

int explain(const Arguments& args, const std::vector<ModelSpec>& models) {
  Job job = resolve(args, models, false);
  fit_memory(args, job);
  Trainer t;
  build_trainer(job, t, false);
  std::vector<std::string> passes;
  bool printed = false;
  auto after = [&](const std::string& pass, const std::function<std::string()>& text) {
    passes.push_back(pass);
    if (pass != args.print_after) return;
    printed = true;
    std::fputs(text().c_str(), stdout);
  };
  const Explanation e = tessera::explain(t.graph, {job.mesh, job.layout, t.functions, 0, 1}, after);
  require(args.print_after.empty() || printed, "--print-after={}: there is no such pass{}",
          args.print_after, suggestion(args.print_after, passes));
  if (!printed) {
    fmt::print("{} on mesh {} ({} ranks), layout {}\n", job.spec->name, job.mesh.to_string(),
               job.mesh.size(), job.layout.to_string());
    std::fputs(to_string(e).c_str(), stdout);
  }
  write_report(args.json, to_json(e));
  return 0;
}

}  // namespace tessera::cli
