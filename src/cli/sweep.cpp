// sweep: runs every layout of a model on a mesh. Layouts that lower to the same Program run once.
// Sessions run side by side and take turns step by step, so that disturbances of the machine affect
// all alike; as many at a time as memory allows.
#include "cli/sweep.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/fail.h"
#include "base/files.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

namespace tessera::cli {

namespace {

constexpr int64_t kAtOnceBytes = int64_t{4} << 30;
constexpr size_t kAtOnce = 12;
constexpr size_t kPlanned = 8;  ///< number of plans for --layouts auto
constexpr double kWriteEvery = 2;
constexpr size_t kFewSteps = 3;  ///< fewest steps whose median is kept

/// The seconds of a time such as "20m", "90s", "2h", "45".
double parse_budget(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  TESSERA_REQUIRE(end != text.c_str() && factor > 0 && value > 0,
                  "--budget '{}' is not a time; write 90s, 20m or 2h", text);
  return value * factor;
}

/// A row with the arguments to run it.
struct Candidate {
  SweepRow row;
  ModelFlags args;
  std::vector<double> seconds = {};
};

class Sweep {
 public:
  /// given: plans to run instead of the layouts of the arguments.
  Sweep(const SweepFlags& args, const std::vector<ModelSpec>& models,
        std::vector<AutoPlan> given = {})
      : args_(args),
        models_(models),
        given_(std::move(given)),
        machine_(find_machine(args)),
        end_(host_seconds() + parse_budget(args.budget)),
        steps_(args.steps) {
    if (!args.memory.empty()) limit_ = parse_bytes("--memory", args.memory);
    std::ifstream file(args.out);
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (const int ranks = launched_ranks(); ranks > 0) {  // all ranks continue from the root's file
      Cluster& cluster = cluster_for(ranks);
      text = cluster.first_text(cluster.is_root() ? text + "\n" : "");
      if (text == "\n") text.clear();
    }
    for (SweepRow& row : parse_sweep(text, args.out)) done_[row.key()] = std::move(row);
  }

  /// Adds one row for each layout, in order; rows with the Program of an earlier row refer to it.
  /// Lowering may use half of the budget; layouts that are not lowered by then are not run.
  void find() {
    const double half = (host_seconds() + end_) / 2;
    bool is_time = true;
    for (const auto& sets : combinations(args_.sets)) {
      for (const std::string& mesh : meshes_of(args_)) {
        ModelFlags args = args_;
        args.sets = sets;
        args.mesh = mesh;
        args.layout.clear();
        const bool is_planned = !given_.empty() || args_.layouts == "auto";
        if (is_planned && args.microbatch_size == "auto") args.microbatch_size.clear();
        for (const AutoPlan& plan : plans(args)) {
          args.layout = plan.layout;
          args.sets = sets;
          args.sets.insert(args.sets.end(), plan.sets.begin(), plan.sets.end());
          candidates_.push_back({{fmt::format("{}", fmt::join(args.sets, " ")), mesh, plan.layout,
                                  "", "", 0, 0, 0, 0},
                                 args});
          is_time = is_time && is_before(half);
          if (is_time) look(candidates_.back());
        }
      }
    }
  }

  void run() {
    std::vector<Candidate*> waiting;
    std::map<std::string, bool> seen;
    for (Candidate& c : candidates_) {
      if (auto it = done_.find(c.row.key()); it != done_.end() && it->second.measured > 0) {
        c.row.measured = it->second.measured;
        c.row.least = it->second.least;
      }
      if (!c.row.failure.empty() || c.row.program.empty()) continue;
      if (!seen.emplace(c.row.program + c.row.sets + c.row.mesh, true).second) continue;
      if (c.row.measured == 0) waiting.push_back(&c);
    }
    write();
    while (!waiting.empty() && is_before(end_)) {
      size_t count = 0;
      for (int64_t bytes = 0; count < std::min(waiting.size(), kAtOnce); ++count) {
        bytes += waiting[count]->row.memory * Mesh::parse(waiting[count]->row.mesh).size();
        if (count > 0 && bytes > kAtOnceBytes) break;
      }
      run_group({waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count)});
      waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(count));
      write();
    }
    write();
  }

  std::vector<SweepRow> rows() const {
    std::vector<SweepRow> rows;
    for (const Candidate& c : candidates_) rows.push_back(c.row);
    return rows;
  }
  /// Writes these rows, followed by those of earlier sweeps that are in the file.
  void write() {
    share_times();
    written_ = host_seconds();
    if (!is_root_ || args_.out.empty()) return;
    std::vector<SweepRow> all = rows();
    std::set<std::string> ours;
    for (const SweepRow& row : all) ours.insert(row.key());
    for (const auto& [key, row] : done_) {
      if (!ours.contains(key)) all.push_back(row);
    }
    write_sweep_csv(args_.out, all);
  }
  bool is_root() const { return is_root_; }
  /// The index of the fastest candidate, as measured by the root; 0 if none ran.
  size_t fastest() {
    const Candidate* best = &candidates_.at(0);
    for (const Candidate& c : candidates_) {
      const bool is_better = c.row.measured > 0 && c.row.failure.empty() &&
                             (best->row.measured == 0 || c.row.measured < best->row.measured);
      if (is_better) best = &c;
    }
    const auto at = static_cast<size_t>(best - candidates_.data());
    if (clusters_.empty()) return at;
    return std::stoul(clusters_.begin()->second.first_text(is_root_ ? fmt::format("{}", at) : ""));
  }

 private:
  Job job_of(const ModelFlags& args) const {
    Job job = resolve(args, models_, false);
    // An empty layout means that nothing is split.
    if (args.layout.empty()) job.layout = Layout();
    return job;
  }

  std::vector<AutoPlan> plans(const ModelFlags& args) const {
    if (!given_.empty()) return given_;
    if (args_.layouts == "auto") {
      ModelFlags free = args;
      free.layout = "auto";
      free.microbatch_size = args_.microbatch_size;
      return auto_plans(free, resolve_without_plan(free, models_), kPlanned);
    }
    std::vector<AutoPlan> plans;
    if (args_.layouts != "all") {
      for (const std::string& layout : layouts_in(args_.layouts)) plans.push_back({layout});
      return plans;
    }
    const Job job = job_of(args);
    Trainer t;
    build_trainer(job, t, false);
    for (const Layout& layout : legal_layouts(t.graph, job.mesh, t.functions))
      plans.push_back({layout.to_string()});
    return plans;
  }

  /// Lowers the candidate: its Program, memory and predicted time.
  void look(Candidate& c) {
    try {
      const Job job = job_of(c.args);
      if (launched_ranks() > 0) cluster_for(job.mesh.size());
      Trainer t;
      build_trainer(job, t, false);
      const Explanation e =
          tessera::explain(t.graph, options_of(job, t), {}, machine_ ? &*machine_ : nullptr);
      c.row.program = fmt::format("{:016x}", e.program_hash);
      c.row.memory = e.memory.params + e.memory.state + e.memory.inputs + e.memory.transient;
      c.row.predicted = e.functions.back().time.seconds;
      if (limit_ > 0 && c.row.memory > limit_)
        c.row.failure = fmt::format("needs {} bytes on a rank, more than --memory {}", c.row.memory,
                                    args_.memory);
    } catch (const Error& e) {
      c.row.failure = e.what();
    }
  }

  struct Running {
    Candidate* candidate;
    std::unique_ptr<Job> job;
    std::unique_ptr<Trainer> trainer;
    std::unique_ptr<Session> session;
  };

  Cluster& cluster_for(int ranks) {
    auto it = clusters_.find(ranks);
    if (it == clusters_.end()) {
      it = clusters_.emplace(ranks, make_cluster(ranks, args_.timeout, args_)).first;
      is_root_ = it->second.is_root();
    }
    return it->second;
  }

  /// The root's clock decides for all ranks.
  bool is_before(double end) {
    if (clusters_.empty()) return host_seconds() < end;
    Cluster& cluster = clusters_.begin()->second;
    const std::string mine = cluster.is_root() ? (host_seconds() < end ? "on" : "end") : "";
    return cluster.first_text(mine) == "on";
  }

  void run_group(const std::vector<Candidate*>& group) {
    std::vector<Running> running;
    for (Candidate* c : group) {
      try {
        Running r{c, std::make_unique<Job>(job_of(c->args)), std::make_unique<Trainer>(), nullptr};
        build_trainer(*r.job, *r.trainer, false);
        r.session = std::make_unique<Session>(r.trainer->graph, cluster_for(r.job->mesh.size()),
                                              options_of(*r.job, *r.trainer));
        feed_examples(*r.session, r.trainer->model, 0);
        feed_scalar(*r.session, r.trainer->lr, learning_rate(*r.job, 0));
        running.push_back(std::move(r));
      } catch (const Error& e) {
        c->row.failure = e.what();
      }
    }
    for (int64_t step = -2; step < steps_ && !running.empty() && (step <= 0 || is_before(end_));
         ++step) {
      std::erase_if(running, [&](Running& r) { return !take_turn(r, step >= 0); });
      if (host_seconds() < written_ + kWriteEvery) continue;
      for (Running& r : running) sum_up(*r.candidate, kFewSteps);
      write();
    }
    for (Running& r : running) sum_up(*r.candidate, 1);
  }

  static void sum_up(Candidate& c, size_t least) {
    if (c.seconds.size() < least) return;
    std::vector<double> seconds = c.seconds;
    std::sort(seconds.begin(), seconds.end());
    c.row.measured = seconds[seconds.size() / 2];
    c.row.least = seconds[0];
  }

  static bool take_turn(Running& r, bool counts) {
    try {
      const double begin = host_seconds();
      r.session->run("train");
      r.session->fetch_scalar(r.trainer->model.loss.name());
      if (counts) r.candidate->seconds.push_back(host_seconds() - begin);
      return true;
    } catch (const Error& e) {
      r.candidate->row.failure = e.what();
      return false;
    }
  }

  /// Rows with the same Program share a time.
  void share_times() {
    std::map<std::string, const SweepRow*> measured;
    for (const Candidate& c : candidates_) {
      if (c.row.measured > 0) measured.emplace(c.row.program + c.row.sets + c.row.mesh, &c.row);
    }
    for (Candidate& c : candidates_) {
      auto it = measured.find(c.row.program + c.row.sets + c.row.mesh);
      if (c.row.measured > 0 || it == measured.end() || !c.row.failure.empty()) continue;
      c.row.measured = it->second->measured;
      c.row.least = it->second->least;
    }
  }

  const SweepFlags& args_;
  const std::vector<ModelSpec>& models_;
  std::vector<AutoPlan> given_;
  std::optional<Machine> machine_;
  double end_, written_ = 0;
  int64_t steps_, limit_ = 0;
  bool is_root_ = true;
  std::map<std::string, SweepRow> done_;
  std::vector<Candidate> candidates_;
  std::map<int, Cluster> clusters_;
};

}  // namespace

ModelFlags tuned(const ModelFlags& args, int64_t plans, const std::vector<ModelSpec>& models) {
  TESSERA_REQUIRE(plans >= 2, "--tune {}: it compares plans, at least 2", plans);
  const Job job = resolve_without_plan(args, models);
  TESSERA_REQUIRE(
      is_automatic(job.layout),
      "--tune {} tries what the planner finds, but layout '{}' leaves it nothing; write "
      "--layout auto",
      plans, job.layout.to_string());
  SweepFlags with;
  static_cast<ModelFlags&>(with) = args;
  with.mesh = job.mesh.to_string();
  const std::vector<AutoPlan> best = auto_plans(args, job, static_cast<size_t>(plans));
  Sweep sweep(with, models, best);
  sweep.find();
  sweep.run();
  for (const SweepRow& row : sweep.rows()) {
    if (!sweep.is_root()) break;
    say_to(stderr, "tune: {:10.3f} ms  {}{}{}\n", 1e3 * row.measured,
           row.layout.empty() ? "(nothing split)" : row.layout,
           row.sets.empty() ? "" : " --set " + row.sets,
           row.failure.empty() ? "" : " failed: " + row.failure);
  }
  const AutoPlan& fastest = best.at(sweep.fastest());
  ModelFlags result = args;
  result.layout = fastest.layout.empty() ? "# nothing is split" : fastest.layout;
  result.sets.insert(result.sets.end(), fastest.sets.begin(), fastest.sets.end());
  if (args.microbatch_size == "auto") result.microbatch_size.clear();  // set by the plan
  return result;
}

void SweepFlags::declare(FlagTable& table) {
  ModelFlags::declare(table);
  table.add(
      {{"--layouts all|auto|FILE", &layouts, kAgree,
        "Layouts to run: all, auto (the planner's best), or a file with one layout a line."},
       {"--devices N", &devices, kAgree, "Sweeps all meshes with N ranks.",
        whole_number(1, kMostDevices)},
       {"--meshes all", &meshes, kAgree, "With all: sweeps all meshes of the ranks there are."},
       {"--steps", &steps, kAgree, "Number of steps to take the median of (5).", whole_number(1)},
       {"--budget TIME", &budget, kOfRoot, "Time to measure for: 90s, 20m (default) or 2h."},
       {"--out FILE.csv", &out, kOfRoot,
        "Table of the results (sweep.csv); pages of the same name with .json, .svg and .html lie "
        "beside it. A sweep that was stopped continues from its table."}});
}

namespace {
int run_sweep(const SweepFlags& args, const std::vector<ModelSpec>& models) {
  SweepFlags with = args;
  if (with.out.empty()) with.out = "sweep.csv";
  TESSERA_REQUIRE(with.out.ends_with(".csv"), "--out '{}' does not end with .csv", with.out);
  require_writable(with.out);
  Sweep sweep(with, models);
  sweep.find();
  sweep.run();
  if (!sweep.is_root()) return 0;
  const std::vector<SweepRow> rows = sweep.rows();
  write_sweep_report(with.out, with.model, rows);
  say("{}{} and {}.html\n", sweep_table(rows), with.out, with.out.substr(0, with.out.size() - 4));
  const auto failed = [](const SweepRow& row) { return !row.failure.empty(); };
  TESSERA_REQUIRE(rows.empty() || !std::all_of(rows.begin(), rows.end(), failed),
                  "none of {} layouts ran; {} says why, the first: {}", rows.size(), with.out,
                  rows.empty() ? "" : rows[0].failure);
  return 0;
}

}  // namespace

Command sweep_command() {
  return command("sweep",
                 "Runs every layout of a model and prints measured beside predicted times.",
                 "tessera sweep gpt --devices 4 --set batch=8,16 --steps 10 --budget 20m",
                 Processes::all, run_sweep);
}

}  // namespace tessera::cli
