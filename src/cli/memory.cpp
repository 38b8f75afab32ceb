// --memory LIMIT: checks whether a job fits on a rank, chooses recompute and the number of
// microbatches so that it does, and otherwise suggests flags. Nothing is run: each check only
// lowers the job.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/fail.h"
#include "base/units.h"
#include "base/words.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "tessera/explain.h"
#include "tessera/storage.h"

namespace tessera::cli {

namespace {

/// Cheapest first; the last one costs a second forward pass.
constexpr std::array kPolicies = {"none", "attention", "block"};

/// Memory of a background save: at most a copy of what the rank owns.
int64_t staging(const ModelFlags& args, const MemoryReport& m) {
  return std::min(args.staging_bytes, m.params + m.state);
}

int64_t total(const ModelFlags& args, const Job& job, const MemoryReport& m) {
  const int64_t own = job.device == "cpu" ? m.offloaded : 0;  // in memory of the rank itself
  return m.params + m.state + own + m.inputs + m.transient + staging(args, m);
}

/// Memory per rank for training `job`; nothing if its scopes or rules do not fit the model.
std::optional<MemoryReport> needs(const Job& job) {
  try {
    Trainer t;
    build_trainer(job, t, false);
    return tessera::explain(t.graph, options_of(job, t, std::max(1, threads_of(job)))).memory;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return {};
  }
}

Job with_recompute(Job job, const std::string& policy) {
  job.config.set("train.recompute", policy);
  return job;
}

std::string as_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

/// A change of the command's flags and the resulting job.
struct Change {
  std::string flags;
  Job job;
};

/// Changes that make `job` fit, cheapest first; or the one that comes closest.
class Remedies {
 public:
  Remedies(const ModelFlags& args, const Job& job, int64_t limit)
      : args_(args), job_(job), limit_(limit) {
    build_model(job, graph_, job.config.integer("train.batch"), false);
  }

  std::string text() {
    std::vector<std::string> alone;
    for (const auto& family : {microbatches(job_), reduce(job_), recompute(job_), storage(job_)}) {
      for (const Change& change : family) {
        if (!fits(change)) continue;
        alone.push_back(fmt::format("{} would fit with {}", change.flags, as_text(last_)));
        break;
      }
    }
    if (!alone.empty()) return fmt::format("{}", fmt::join(alone, ", "));
    std::vector<Change> stored = storage(job_);
    stored.insert(stored.begin(), {"", job_});
    for (const Change& s : stored) {
      std::vector<Change> policies = recompute(s.job);
      policies.insert(policies.begin(), {"", s.job});
      for (const Change& p : policies) {
        if (const std::string flags = first_fit(joined(s.flags, p.flags), p.job); !flags.empty())
          return fmt::format("{} would fit with {}", flags, as_text(last_));
      }
    }
    return fmt::format("{} comes closest with {}; use a larger mesh or a smaller model",
                       best_.empty() ? "as it is, it" : best_, as_text(least_));
  }

 private:
  static std::string joined(const std::string& a, const std::string& b) {
    return a.empty() || b.empty() ? a + b : a + " " + b;
  }

  /// `flags` if they make the job fit; else `flags` with the largest microbatch that fits; else "".
  std::string first_fit(const std::string& flags, const Job& job) {
    if (!flags.empty() && fits({flags, job})) return flags;
    std::vector<Change> smaller = microbatches(job);
    for (Change& change : smaller) change.flags = joined(flags, change.flags);
    if (smaller.empty() || !fits(smaller.back())) return "";
    for (const Change& change : smaller) {
      if (fits(change)) return change.flags;
    }
    return "";
  }

  bool fits(const Change& change) {
    const std::optional<MemoryReport> m = needs(change.job);
    if (!m) return false;
    last_ = total(args_, job_, *m);
    if (last_ < least_) {
      least_ = last_;
      best_ = change.flags;
    }
    return last_ <= limit_;
  }

  std::vector<Change> microbatches(const Job& job) const {
    std::vector<Change> changes;
    const int64_t now = microbatches_of(job.config);
    const int64_t own = job.config.integer("train.batch") / data_ranks(job);
    for (const int64_t count : microbatch_counts(job)) {
      if (count <= now || own % count != 0) continue;
      changes.push_back({fmt::format("--microbatch-size {}", own / count), job});
      changes.back().job.config.set("train.microbatches", fmt::format("{}", count));
    }
    return changes;
  }

  static std::vector<Change> reduce(const Job& job) {
    if (microbatches_of(job.config) <= 1) return {};
    std::vector<Change> changes = {{"--set train.grad_reduce=microbatch", job}};
    changes[0].job.config.set("train.grad_reduce", "microbatch");
    return changes;
  }

  static std::vector<Change> recompute(const Job& job) {
    std::vector<Change> changes;
    for (const char* policy : kPolicies) {
      if (policy != kPolicies[0])
        changes.push_back({fmt::format("--recompute {}", policy), with_recompute(job, policy)});
    }
    return changes;
  }

  std::vector<Change> storage(const Job& job) const {
    std::vector<Change> changes;
    for (int stage = 1; stage <= 3; ++stage) {
      for (const MeshAxis& axis : job.mesh.axes()) {
        if (axis.size == 1) continue;
        const std::string more = storage_rules(graph_, job.mesh, job.layout, stage, axis.name);
        if (more.empty()) continue;
        changes.push_back({fmt::format("--zero {} --over {}", stage, axis.name), job});
        changes.back().job.layout = Layout::parse(job.layout.to_string() + ";" + more);
      }
    }
    return changes;
  }

  const ModelFlags& args_;
  const Job& job_;
  const int64_t limit_;
  Graph graph_;
  int64_t last_ = 0, least_ = std::numeric_limits<int64_t>::max();
  std::string best_;
};

}  // namespace

int64_t parse_bytes(const char* flag, const std::string& text) {
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
  TESSERA_REQUIRE(
      end > 0 && factor > 0 && number > 0,
      "{} '{}' is not a number of bytes; write 16GB, 512MiB or 2e9: units are B, kB, MB, GB, "
      "TB, KiB, MiB, GiB and TiB",
      flag, text);
  TESSERA_REQUIRE(number * factor < 1e18, "{} '{}' is {:g} bytes; at most 1e18 are counted", flag,
                  text, number * factor);
  TESSERA_REQUIRE(number * factor >= 1, "{} '{}' is less than a byte", flag, text);
  return static_cast<int64_t>(number * factor);
}

int64_t bytes_over(const ModelFlags& args, const Job& job) {
  const std::optional<MemoryReport> m = needs(job);
  return m ? total(args, job, *m) - parse_bytes("--memory", args.memory) : 0;
}

void fit_memory(const ModelFlags& args, Job& job) {
  const bool any_policy = job.config.text("train.recompute") == "auto";
  const bool any_count = job.config.text("train.microbatches") == "auto";
  for (const auto& [automatic, key] :
       {std::pair{any_policy, "train.recompute"}, std::pair{any_count, "train.microbatches"}}) {
    TESSERA_REQUIRE(!automatic || !args.memory.empty(),
                    "{} 'auto' needs --memory LIMIT, such as 16GB", key);
  }
  if (args.memory.empty()) return;
  const int64_t limit = parse_bytes("--memory", args.memory);
  std::vector<std::string> policies = {job.config.text("train.recompute")};
  if (any_policy) policies.assign(kPolicies.begin(), kPolicies.end());
  std::vector<std::string> counts = {job.config.text("train.microbatches")};
  if (any_count) counts.clear();
  for (const int64_t count : any_count ? microbatch_counts(job) : std::vector<int64_t>())
    counts.push_back(fmt::format("{}", count));
  job.config.set("train.recompute", policies[0]);
  job.config.set("train.microbatches", counts[0]);
  std::optional<MemoryReport> m;
  for (const std::string& policy : policies) {
    for (const std::string& count : counts) {
      if (m && total(args, job, *m) <= limit) return;
      Job other = with_recompute(job, policy);
      other.config.set("train.microbatches", count);
      const std::optional<MemoryReport> found = needs(other);
      if (!found || (m && total(args, job, *found) >= total(args, job, *m))) continue;
      m = found;
      job.config.set("train.recompute", policy);
      job.config.set("train.microbatches", count);
    }
  }
  if (!m || total(args, job, *m) <= limit) return;  // other errors are reported when it is built
  MemoryReport in_memory = *m;
  if (job.device == "cpu") in_memory.state += m->offloaded;  // in memory of the rank itself
  fail(ErrorKind::usage,
       "a rank needs {} but --memory is {}: {} + {} a copy to save beside the run; {}",
       as_text(total(args, job, *m)), as_text(limit), memory_parts_text(in_memory),
       as_text(staging(args, *m)), Remedies(args, job, limit).text());
}

}  // namespace tessera::cli
