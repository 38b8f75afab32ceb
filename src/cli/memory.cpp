// --memory LIMIT: whether a job fits on a rank, which values backward makes again so that it does,
// and what would help where it does not. Nothing runs: every question is a lowering.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/fail.h"
#include "cli/commands.h"
#include "tessera/explain.h"
#include "tessera/storage.h"

namespace tessera::cli {

namespace {

/// From what costs nothing to what costs a second forward pass.
constexpr std::array kPolicies = {"none", "attention", "block"};

/// What saving takes beside the run: a copy of what the rank owns, at most.
int64_t staging(const Arguments& args, const MemoryReport& m) {
  if (args.checkpoint.empty()) return 0;
  const int64_t most = args.staging.empty() ? Checkpoints::kStaging : parse_bytes(args.staging);
  return std::min(most, m.params + m.state);
}

int64_t total(const Arguments& args, const MemoryReport& m) {
  return m.params + m.state + m.inputs + m.transient + staging(args, m);
}

/// What training `job` needs on a rank; nothing if its scopes or rules do not fit the model.
std::optional<MemoryReport> needs(const Job& job) {
  try {
    Trainer t;
    build_trainer(job, t, false);
    const int threads = std::max(1, threads_of(job));
    return tessera::explain(t.graph, {job.mesh, job.layout, t.functions, 0, threads}).memory;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return {};
  }
}

Job with_recompute(Job job, const std::string& policy) {
  job.config.set("train.recompute", policy);
  return job;
}

std::string as_text(int64_t bytes) {
  const double b = static_cast<double>(bytes);
  return bytes >= 1'000'000'000 ? fmt::format("{:.2f} GB", b / 1e9)
         : bytes >= 1'000'000   ? fmt::format("{:.2f} MB", b / 1e6)
                                : fmt::format("{:.1f} kB", b / 1e3);
}

/// The first changes of the command that make `job` fit, from cheap to dear; or the closest.
std::string remedy(const Arguments& args, const Job& job, int64_t limit) {
  std::string best = "nothing here does";
  int64_t least = std::numeric_limits<int64_t>::max();
  Graph graph;
  job.spec->build(graph, job.config, job.config.integer("train.batch"), false);
  for (int stage = 0; stage <= 3; ++stage) {
    for (const MeshAxis& axis : job.mesh.axes()) {
      if ((stage == 0 && axis.name != job.mesh.axes()[0].name) || (stage > 0 && axis.size == 1))
        continue;
      Job other = job;
      if (stage > 0) {
        const std::string more = storage_rules(graph, job.mesh, job.layout, stage, axis.name);
        if (more.empty()) continue;
        other.layout = Layout::parse(job.layout.to_string() + ";" + more);
      }
      for (const char* policy : kPolicies) {
        const std::optional<MemoryReport> m = needs(with_recompute(other, policy));
        if (!m || total(args, *m) >= least) continue;
        least = total(args, *m);
        best = fmt::format(
            "{}{}", stage > 0 ? fmt::format("--zero {} --over {} ", stage, axis.name) : "",
            std::string(policy) == "none" ? "" : fmt::format("--recompute {} ", policy));
        if (least <= limit) return fmt::format("{}would fit with {}", best, as_text(least));
      }
    }
  }
  return fmt::format("{}comes closest with {}; use a larger mesh or a smaller train.batch",
                     best.empty() ? "as it is, it " : best, as_text(least));
}

}  // namespace

int64_t parse_bytes(const std::string& text) {
  size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  double factor = 0;
  int power = 0;
  for (const char prefix : {'k', 'M', 'G', 'T'}) {
    ++power;
    if (unit == fmt::format("{}B", prefix) || unit == std::string(1, prefix))
      factor = std::pow(1e3, power);
    if (unit == fmt::format("{}iB", prefix == 'k' ? 'K' : prefix)) factor = std::pow(1024.0, power);
  }
  if (unit.empty() || unit == "B") factor = 1;
  require(end > 0 && factor > 0 && number > 0,
          "--memory '{}' is not a number of bytes; write 16GB, 512MiB or 2e9", text);
  return static_cast<int64_t>(number * factor);
}

void fit_memory(const Arguments& args, Job& job) {
  const bool automatic = job.config.text("train.recompute") == "auto";
  require(!automatic || !args.memory.empty(),
          "train.recompute 'auto' needs --memory LIMIT, such as 16GB");
  if (args.memory.empty()) return;
  const int64_t limit = parse_bytes(args.memory);
  std::optional<MemoryReport> m;
  if (automatic) {
    for (const char* policy : kPolicies) {
      const Job other = with_recompute(job, policy);
      const std::optional<MemoryReport> found = needs(other);
      if (!found || (m && total(args, *found) >= total(args, *m))) continue;
      m = found;
      job.config.set("train.recompute", policy);
      if (total(args, *m) <= limit) break;
    }
  } else {
    m = needs(job);
  }
  if (!m || total(args, *m) <= limit) return;  // what is wrong otherwise is said when it is built
  fail(ErrorKind::usage,
       "a rank needs {} but --memory is {}: parameters {}, optimizer state {}, inputs {}, "
       "everything else at the peak {}, a copy to save beside the run {}; {}",
       as_text(total(args, *m)), as_text(limit), as_text(m->params), as_text(m->state),
       as_text(m->inputs), as_text(m->transient), as_text(staging(args, *m)),
       remedy(args, job, limit));
}

}  // namespace tessera::cli
