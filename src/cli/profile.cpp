#include "cli/profile.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "cli/report_json.h"
#include "cli/source_text.h"
#include "cli/training.h"
#include "tessera/explain.h"

namespace tessera {

inline void to_json(nlohmann::json& json, const BucketTime& e) {
  TESSERA_JSON_FIELDS(json, e, kind, axes, tensor, source, collectives, bytes)
  json["exposed_ms"] = 1e3 * e.exposed;
  json["hidden_ms"] = 1e3 * e.hidden;
  json["predicted_exposed_ms"] = 1e3 * e.predicted_exposed;
  json["predicted_hidden_ms"] = 1e3 * e.predicted_hidden;
}

}  // namespace tessera

namespace tessera::cli {

inline void to_json(nlohmann::json& json, const ProfileRow& r) {
  TESSERA_JSON_FIELDS(json, r, op, source, name, steps, ms, flops, bytes)
  json["result_bytes"] = r.results;
}

std::vector<ProfileRow> profile_rows(const std::vector<StepTime>& steps) {
  std::map<std::pair<std::string, std::string>, ProfileRow> rows;
  for (const StepTime& s : steps) {
    if (s.runs == 0) continue;
    ProfileRow& row = rows[{s.kernel, s.source}];
    if (row.steps++ == 0) {
      row.op = s.kernel;
      row.name = s.name;
      row.source = s.source;
    }
    row.ms += 1e3 * s.seconds / static_cast<double>(s.runs);
    row.flops += static_cast<double>(s.flops);
    row.bytes += static_cast<double>(s.bytes);
    row.results += static_cast<double>(s.results);
  }
  std::vector<ProfileRow> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.ms > b.ms; });
  return sorted;
}

std::string profile_table(const std::vector<ProfileRow>& rows, double peak_flops) {
  double total = 0, peak = peak_flops;
  for (const ProfileRow& r : rows) {
    total += r.ms;
    if (peak > 0 && r.ms > 0) peak = std::max(peak, r.flops / (r.ms * 1e-3));
  }
  std::string text =
      fmt::format("{:>9} {:>6} {:>13} {:>6} {:>10} {:>10}  {:<18} {}\n", "ms", "share", "FLOP/s",
                  "peak", "B/s", "results", "op", "source, first name");
  constexpr size_t kShown = 30;
  double rest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ProfileRow& r = rows[i];
    if (i >= kShown) {
      rest += r.ms;
      continue;
    }
    const double seconds = r.ms > 0 ? r.ms * 1e-3 : 1;
    const bool computes = r.flops > 0;
    text += fmt::format(
        "{:>9.3f} {:>5.1f}% {:>13} {:>6} {:>10} {:>10}  {:<18} {}, {}\n", r.ms,
        total > 0 ? 100 * r.ms / total : 0, computes ? with_unit(r.flops / seconds, "FLOP/s") : "-",
        computes && peak > 0 ? fmt::format("{:.0f}%", 100 * r.flops / seconds / peak) : "-",
        r.bytes > 0 ? with_unit(r.bytes / seconds, "B/s") : "-", with_unit(r.results, "B"), r.op,
        r.source, r.name);
  }
  if (rest > 0)
    text += fmt::format("{:>9.3f} {:>5.1f}% in {} more\n", rest, 100 * rest / total,
                        rows.size() - kShown);
  text += fmt::format("{:>9.3f} in all, on the first local rank, a run", total);
  if (peak > 0) text += fmt::format("; the peak is {}", with_unit(peak, "FLOP/s"));
  if (peak > peak_flops && peak_flops > 0)
    text += fmt::format(" of the fastest op, more than the {} of a matmul before the first step",
                        with_unit(peak_flops, "FLOP/s"));
  return text;
}

std::string offload_text(const Session& session) {
  if (session.program().offloaded_bytes() == 0) return "";
  const bool moves = session.device() != "cpu";
  return fmt::format(", {} of optimizer state in host memory{}",
                     with_unit(static_cast<double>(session.program().offloaded_bytes()), "B"),
                     moves ? "" : ", which is the CPU's own: nothing is gained");
}

namespace {

/// The buckets of training steps. They have predictions only if the machine is known and knows the
/// mesh.
std::vector<BucketTime> buckets_of(const Run& run, std::string& machine) {
  std::vector<BucketTime> rows = run.session->bucket_times(run.job.machine.get());
  if (run.job.machine) machine = run.job.machine->name;
  std::erase_if(rows, [](const BucketTime& e) { return e.function != "train"; });
  return rows;
}

}  // namespace

std::string bucket_table(const std::vector<BucketTime>& rows, const std::string& machine) {
  const bool predicts = !machine.empty();
  const std::string predictions =
      predicts ? fmt::format(" {:>10} {:>10}", "predicted:", "hidden") : "";
  std::string text = fmt::format("{:>10} {:>10}{} {:>10}  {}\n", "exposed ms", "hidden ms",
                                 predictions, "bytes", "collective");
  BucketTime sum;
  auto line = [&](const BucketTime& e, const std::string& what) {
    const std::string predicted =
        predicts ? fmt::format(" {:>10.3f} {:>10.3f}", 1e3 * e.predicted_exposed,
                               1e3 * e.predicted_hidden)
                 : "";
    text += fmt::format("{:>10.3f} {:>10.3f}{} {:>10}  {}\n", 1e3 * e.exposed, 1e3 * e.hidden,
                        predicted, with_unit(static_cast<double>(e.bytes), "B"), what);
  };
  for (const BucketTime& e : rows) {
    line(e, fmt::format("{} over {}: {}{}, {}", e.kind, e.axes, e.tensor,
                        e.collectives > 1 ? fmt::format(" and {} more", e.collectives - 1) : "",
                        e.source));
    sum.exposed += e.exposed;
    sum.hidden += e.hidden;
    sum.predicted_exposed += e.predicted_exposed;
    sum.predicted_hidden += e.predicted_hidden;
    sum.bytes += e.bytes;
  }
  line(sum, "in all; exposed from when the last rank has come");
  text.pop_back();
  return text;
}

std::string roofline_table(const std::vector<KernelReport>& rows) {
  std::string text = fmt::format("{:>9} {:>9} {:>9} {:>9} {:>8}  {}\n", "lost ms", "ms", "roofline",
                                 "predicted", "launches", "kernel");
  KernelReport sum, others;
  const auto add = [](KernelReport& to, const KernelReport& k) {
    to.times += k.times;
    to.measured += k.measured;
    to.roofline += k.roofline;
    to.seconds += k.seconds;
  };
  const auto line = [&](const KernelReport& k, const std::string& what) {
    text += fmt::format("{:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>8}  {}\n",
                        1e3 * (k.measured - k.roofline), 1e3 * k.measured, 1e3 * k.roofline,
                        1e3 * k.seconds, k.times, what);
  };
  constexpr size_t kShown = 40;
  for (size_t i = 0; i < rows.size(); ++i) {
    add(sum, rows[i]);
    if (i < kShown) {
      line(rows[i], fmt::format("{} {}, {}", rows[i].kernel, rows[i].tensor, rows[i].source));
    } else {
      add(others, rows[i]);
    }
  }
  if (rows.size() > kShown) line(others, fmt::format("{} others", rows.size() - kShown));
  line(sum, "all");
  text.pop_back();
  return text;
}

void report_profile(Run& run, double peak_flops, Progress& progress) {
  std::vector<StepTime> steps = run.session->profile();
  std::erase_if(steps, [](const StepTime& s) { return s.function != "train"; });
  const std::vector<ProfileRow> rows = profile_rows(steps);
  progress.note("profile of a training step:\n" + profile_table(rows, peak_flops));
  nlohmann::json table = rows, line = nlohmann::json::array(), kernels = nlohmann::json::array();
  for (const StepTime& s : steps)
    line.push_back({s.name, s.kernel, 1e3 * s.seconds / static_cast<double>(s.runs)});
  if (run.job.machine) {
    const std::vector<KernelReport> times = run.session->kernel_times("train", *run.job.machine);
    progress.note("kernels of a training step against the roofline of " + run.job.machine->name +
                  ", worst first:\n" + roofline_table(times));
    kernels = times;
    add_field(kernels, "launches", times, [](auto& k) { return k.times; });
    add_field(kernels, "ms", times, [](auto& k) { return 1e3 * k.measured; });
    add_field(kernels, "roofline_ms", times, [](auto& k) { return 1e3 * k.roofline; });
    add_field(kernels, "predicted_ms", times, [](auto& k) { return 1e3 * k.seconds; });
    without(kernels, {"times", "seconds", "roofline"});
  }
  std::string machine;
  const std::vector<BucketTime> sent = buckets_of(run, machine);
  nlohmann::json buckets = sent;
  if (!sent.empty()) {
    progress.note(fmt::format("communication of a training step, measured{}:\n{}",
                              machine.empty() ? "" : " and predicted on " + machine,
                              bucket_table(sent, machine)));
  }
  std::set<std::string> places;
  for (const nlohmann::json* list : {&table, &kernels, &buckets}) {
    for (const nlohmann::json& row : *list) places.insert(row["source"].get<std::string>());
  }
  progress.record({{"profile", table},
                   {"time_line", line},
                   {"kernels", kernels},
                   {"buckets", buckets},
                   {"code", code_around(places, source_files(run.trainer.graph))}});
}

std::string fallbacks_text(const Session& session) {
  constexpr size_t kShown = 8;
  const std::vector<std::string> all = session.fallbacks();
  std::string text;
  for (size_t k = 0; k < std::min(all.size(), kShown); ++k) text += "\nnote    " + all[k];
  if (all.size() > kShown) text += fmt::format("\nnote    and {} more", all.size() - kShown);
  return text;
}

}  // namespace tessera::cli
