// What a training run says of itself at its start: on the terminal, and in the first line of its
// log.
#include <unistd.h>

#include <set>

#include "base/fail.h"
#include "cli/profile.h"
#include "cli/report_json.h"
#include "cli/run_summary.h"
#include "cli/source_text.h"
#include "cli/training.h"
#include "tessera/build_info.h"
#include "tessera/explain.h"

namespace tessera::cli {

namespace {

/// (name, number of ranks) of each host, in order of rank.
std::vector<std::pair<std::string, int64_t>> ranks_by_host(const std::vector<std::string>& hosts) {
  std::vector<std::pair<std::string, int64_t>> all;
  for (const std::string& host : hosts) {
    if (all.empty() || all.back().first != host) all.emplace_back(host, 0);
    ++all.back().second;
  }
  return all;
}

}  // namespace

int64_t Run::parameters() {
  int64_t elements = 0;
  for (const Tensor& p : trainer.graph.parameters()) elements += p.shape().elements();
  return elements;
}

RunData::RunData(Run& run) : source(open_data(run.job, false)), fingerprint(source->fingerprint()) {
  run.cluster.require_same({{"the training data", fingerprint}});
  BatchOptions options;
  options.seed = static_cast<uint64_t>(run.job.config.integer("train.seed"));
  batcher = std::make_unique<Batcher>(*source, run.job.config.integer("train.batch"), options);
  evaluator = std::make_unique<Evaluator>(run.job, run.cluster);
  if (run.args.sample_every > 0)
    samples = std::make_unique<Samples>(run.args, run.args.model, run.job, run.cluster);
}

std::string banner(Run& run, const Saver& saver) {
  const Config defaults = default_config(*run.job.spec);
  std::string text = "keys   ";
  size_t others = 0;
  for (const ConfigKey& k : run.job.config.keys()) {
    if (k.value == defaults.text(k.name) && !run.job.given.contains(k.name))
      ++others;
    else if (!k.name.starts_with("layout."))
      text += fmt::format(" {}={}", k.name, k.value);
  }
  text += fmt::format("  ({} at their defaults: {} info --keys)\n", others, run.args.program);
  const auto bytes = [](int64_t n) { return with_unit(static_cast<double>(n), "B"); };
  const int64_t stored = run.session->program().persistent_bytes(),
                transient = run.session->program().transient_bytes();
  return text +
         fmt::format(
             "mesh    {} ({} ranks, {})\nlayout  {}\nbatch   {}\nmemory  {} parameters; of a rank: "
             "{} = "
             "{} parameters, optimizer state, inputs + {} transient, at the peak{}{}",
             run.job.mesh.to_string(), run.cluster.size(), run.cluster.backend(),
             run.job.layout.rules().empty() ? "(nothing split)" : run.job.layout.to_string(),
             batch_text(run.job), run.parameters(), bytes(stored + transient), bytes(stored),
             bytes(transient), offload_text(*run.session),
             saver.is_on()
                 ? fmt::format(", {} to save beside the run", bytes(saver.staging_bytes()))
                 : "") +
         fallbacks_text(*run.session);
}

void add_plan(Run& run, const Saver& saver, nlohmann::json& head) {
  const Explanation plan = explain(run.trainer.graph, run.compile);
  nlohmann::json at_peak = nlohmann::json::array(), sent = nlohmann::json::array();
  for (const auto& [tensor, bytes] : plan.memory.at_peak)
    at_peak.push_back({{"tensor", tensor}, {"bytes", bytes}});
  for (const FunctionReport& f : plan.functions) {
    for (const CollectiveReport& c : f.collectives) sent.push_back(c);
  }
  without(sent, {"ranks", "times", "seconds", "exposed"});
  head["memory"] = {{"params", plan.memory.params},     {"state", plan.memory.state},
                    {"inputs", plan.memory.inputs},     {"transient", plan.memory.transient},
                    {"staging", saver.staging_bytes()}, {"at_peak", at_peak}};
  head["communication"] = sent;
  std::set<std::string> places;
  for (const nlohmann::json& row : sent) places.insert(row["source"].get<std::string>());
  head["code"] = code_around(places, source_files(run.trainer.graph));
}

nlohmann::json header(Run& run, const RunState& state) {
  nlohmann::json config;
  for (const ConfigKey& k : run.job.config.keys()) config[k.name] = k.value;
  return {{"config", config},
          {"version", build_info().version},
          {"program", fmt::format("{:016x}", run.session->program().hash())},
          {"ranks", run.cluster.size()},
          {"backend", run.cluster.backend()},
          {"hosts", ranks_by_host(run.hosts)},
          {"process", getpid()},
          {"parameters", run.parameters()},
          {"first_step", state.first_step}};
}

std::string next_command(const Run& run) {
  const TrainFlags& a = run.args;
  if (a.checkpoint.empty())
    return a.files.log.empty()
               ? ""
               : fmt::format("{} report {}", shell_word(a.program), shell_word(a.files.log));
  const ModelSpec& spec = *run.job.spec;
  const bool writes = spec.transformer && spec.transformer(run.job.config).causal;
  std::string next =
      fmt::format("{} {} {} --checkpoint {}", shell_word(a.program), writes ? "generate" : "eval",
                  shell_word(a.model), shell_word(a.checkpoint));
  if (writes && !a.tokenizer.empty()) next += " --tokenizer " + shell_word(a.tokenizer);
  const std::string data = "data.path=";
  for (const std::string& key : a.keys) {
    if (!writes && key.starts_with(data)) next += " --data " + shell_word(key.substr(data.size()));
  }
  return next;
}

}  // namespace tessera::cli
