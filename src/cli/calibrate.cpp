// calibrate: measures this machine through the public API with all ranks working at once, and
// writes a profile: a grid of matmuls, memory and pointwise rates, the launch time of a step, and
// each collective over each mesh axis with all its groups active.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>

#include "base/cache_file.h"
#include "base/env.h"
#include "base/fail.h"
#include "base/files.h"
#include "base/median.h"
#include "cli/command_pages.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/step_timing.h"
#include "cli/terminal.h"
#include "tessera/tessera.h"

namespace tessera::cli {

namespace {

struct CalibrateFlags : Invocation {
  std::string mesh, out, html;
  int64_t threads = -1;
  double timeout = 120;
  void declare(FlagTable& table) {
    table.add(
        {{"--mesh AXES", &mesh, kAgree, "Axes to measure, one after the other (ranks:N)."},
         {"--threads", &threads, kAgree,
          "Number of threads of a rank. 0 divides the cores of the host among its ranks.",
          whole_number(0, kMostThreads)},
         {"--timeout", &timeout, kAgree,
          "Seconds to wait for another rank before an error names it (120).", finite_number(0)},
         {"--out FILE", &out, kOfRoot,
          "File of the profile. The default is the one that other commands read here."},
         html_flag(html)});
  }
};

Tensor parameter(Graph& g, const std::string& name, const Shape& shape) {
  return g.parameter(name, shape, nn::normal(1));
}

class Calibration {
 public:
  Calibration(const CalibrateFlags& args, const Mesh& mesh, Cluster& cluster)
      : args_(args), mesh_(mesh), cluster_(cluster) {}

  Machine run() {
    const std::time_t now = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    machine_.name = "here";
    machine_.date = date;
    machine_.device = fmt::format(
        "a rank of {} ({}), {}", mesh_.size(), cluster_.backend(),
        args_.threads > 0 ? fmt::format("{} thread{}", args_.threads, args_.threads == 1 ? "" : "s")
                          : std::string("its share of the cores"));
    machine_.source = fmt::format("tessera calibrate --mesh \"{}\"", mesh_.to_string());
    machine_.overlap.possible = false;  // the compute cores also move the bytes
    steps();
    matmuls();
    for (int axis = 0; axis < mesh_.rank(); ++axis) collectives(axis);
    links();
    measure_overlap();
    machine_.context = kernels_in_context(cluster_, options({}, {}), machine_);
    return machine_;
  }

 private:
  CompileOptions options(const std::vector<FunctionSpec>& functions, const Layout& layout) const {
    CompileOptions options{mesh_, layout, functions, 0,
                           static_cast<int>(std::max<int64_t>(args_.threads, 0))};
    options.profile = true;
    return options;
  }

  /// Measures the time of an empty step, memory rates by size, and pointwise instructions.
  void steps() {
    Graph g;
    std::vector<FunctionSpec> functions;
    const std::vector<int64_t> sizes = {64, 1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23};
    const auto add = [&](const std::string& name, Tensor y) {
      functions.push_back({name, {y.named(name)}, false});
    };
    for (int64_t n : sizes) {
      const Dim d("elements", n);
      const Tensor a = parameter(g, fmt::format("a{}", n), {d}),
                   b = parameter(g, fmt::format("b{}", n), {d});
      add(fmt::format("add{}", n), a + b);
      if (n != 1 << 15) continue;
      Tensor easy = a, hard = a;
      for (int i = 0; i < 32; ++i) easy = easy * b + a;
      for (int i = 0; i < 16; ++i) hard = exp(hard) * b;
      add("easy", easy);
      add("hard", hard);
    }
    add_attention(g, functions);
    Session session(g, cluster_, options(functions, {}));
    std::map<std::string, double> seconds;
    for (const FunctionSpec& f : functions) {
      for (const auto& [step, time] : step_times(session, f.name)) {
        seconds[f.name] += time;
        if (step.kernel == f.name)
          machine_.kernels.push_back({step.kernel, "", static_cast<double>(step.flops) / time, 0});
      }
    }
    machine_.launch = seconds["add64"];
    const auto work = [&](const std::string& name) {
      return std::max(seconds[name] - machine_.launch, 1e-9);
    };
    for (size_t i = 1; i < sizes.size(); ++i) {
      const double bytes = 12.0 * static_cast<double>(sizes[i]);
      machine_.memory_rates.push_back(
          {i + 1 < sizes.size() ? 2 * bytes : 0, bytes / work(fmt::format("add{}", sizes[i]))});
    }
    const double elements = 1 << 15, easy = 64 * elements / work("easy");
    machine_.kernels.push_back({"pointwise", "", easy, 0});
    const double hard = std::max(work("hard") - 16 * elements / easy, 1e-9);
    machine_.kernels.push_back({"pointwise_hard", "", 16 * elements / hard, 0});
  }

  static void add_attention(Graph& g, std::vector<FunctionSpec>& functions) {
    const Dim heads("heads", 4), length("length", 256), memory("memory_length", 256),
        key("d_head", 32);
    const std::vector<Tensor> xs = {parameter(g, "query", {heads, length, key}),
                                    parameter(g, "key", {heads, memory, key}),
                                    parameter(g, "value", {heads, memory, key})};
    const Tensor seen = attention(xs[0], xs[1], xs[2]).named("seen");
    functions.push_back({"attention", {seen}, false});
    std::vector<Tensor> grads = gradients(mean_all(square(seen)), xs);
    functions.push_back({"attention_grad", grads, false});
  }

  void matmuls() {
    Graph g;
    std::vector<Tensor> outputs;
    std::vector<MatmulSample> samples;
    for (const auto& [m, n, k] : grid()) {
      const Dim rows("rows", m), columns("columns", n), depth("depth", k);
      const std::string name = fmt::format("{}x{}x{}", m, n, k);
      const Tensor a = parameter(g, "a" + name, {rows, depth}),
                   b = parameter(g, "b" + name, {depth, columns});
      outputs.push_back(einsum({a, b}, {rows, columns}).named("c" + name));
      samples.push_back({"float32", m, n, k, 0});
    }
    Session session(g, cluster_, options({{"run", outputs, false}}, {}));
    size_t next = 0;  // matmuls keep the order of the outputs
    for (const auto& [step, time] : step_times(session, "run")) {
      if (step.kernel != "matmul" || next == samples.size()) continue;
      MatmulSample& sample = samples[next++];
      TESSERA_CHECK(step.flops == 2 * sample.m * sample.n * sample.k,
                    "calibrate: matmul {} is not {}", step.name, outputs[next - 1].name());
      sample.seconds = std::max(time - machine_.launch, 1e-9);
    }
    TESSERA_CHECK(next == samples.size(), "calibrate: {} of {} matmuls ran", next, samples.size());
    fit_matmuls(std::move(samples));
  }

  static std::vector<std::array<int64_t, 3>> grid() {
    std::vector<std::array<int64_t, 3>> shapes;
    const std::vector<int64_t> sizes = {16, 64, 256, 1024};
    for (int64_t m : sizes) {
      for (int64_t n : sizes) {
        for (int64_t k : sizes) shapes.push_back({m, n, k});
      }
    }
    shapes.push_back({4096, 256, 256});
    shapes.push_back({4096, 1024, 256});
    return shapes;
  }

  /// Fits flops, depth, m_half and n_half by grid search over the mean error of log(seconds).
  void fit_matmuls(std::vector<MatmulSample> samples) {
    MatmulRate best;
    double least = 1e300;
    for (double depth : {0.0, 8.0, 16.0, 32.0, 64.0, 128.0}) {
      for (double m_half : {0.0, 2.0, 4.0, 8.0, 16.0, 32.0}) {
        for (double n_half : {0.0, 2.0, 4.0, 8.0, 16.0, 32.0}) {
          Machine trial;
          MatmulRate rate{"float32", 1, 1, 1, 1, depth, m_half, n_half, 0, 1};
          trial.matmuls = {rate};
          std::vector<double> ratios;
          for (const MatmulSample& s : samples)
            ratios.push_back(trial.matmul_seconds("float32", s.m, s.n, s.k) / s.seconds);
          rate.flops = median(ratios);
          double error = 0;
          for (double r : ratios) error += std::abs(std::log(r / rate.flops));
          if (error < least) least = error, best = rate;
        }
      }
    }
    machine_.matmuls.push_back(best);
    MatmulRate narrow = best;
    narrow.dtype = "bfloat16";  // converted to float32 when they are packed
    machine_.matmuls.push_back(narrow);
    narrow.dtype = "float64";
    narrow.flops /= 2;
    machine_.matmuls.push_back(narrow);
    machine_.residuals.emplace_back("matmuls", least / static_cast<double>(samples.size()));
    machine_.samples = std::move(samples);
  }

  void collectives(int axis) {
    const int64_t ranks = mesh_.axes()[static_cast<size_t>(axis)].size;
    if (ranks == 1) return;
    const std::string link = link_of(axis);
    for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter,
                                      CollectiveKind::all_gather, CollectiveKind::all_to_all}) {
      const auto same = [&](const CollectiveRate& r) {
        return r.kind == to_string(kind) && r.link == link && r.ranks == ranks;
      };
      if (std::any_of(machine_.collectives.begin(), machine_.collectives.end(), same)) continue;
      Graph g;
      std::vector<FunctionSpec> functions;
      std::string split;  // all groups of the axis work at the same time
      for (int64_t size = 64; size <= 1 << 22; size *= 8) {
        const std::string of = fmt::format("{}{}", to_string(kind), size * ranks);
        const CollectiveProbe probe = collective_probe(g, of, kind, size * ranks, ranks);
        functions.push_back({of, {probe.value}, false});
        split = probe.split + ":" + mesh_.axes()[static_cast<size_t>(axis)].name;
      }
      Session session(g, cluster_, options(functions, Layout::parse(split)));
      measure(session, functions, kind, {to_string(kind), link, ranks, 0, 0, {}});
    }
  }

  /// A collective that takes this long (seconds) is not measured at larger sizes.
  static constexpr double kLongExchange = 0.25;

  void measure(Session& session, const std::vector<FunctionSpec>& functions, CollectiveKind kind,
               CollectiveRate rate) {
    for (const FunctionSpec& f : functions) {
      double seconds = 0, bytes = 0;
      for (const auto& [step, time] : step_times(session, f.name)) {
        const bool is_kind = runs(step, kind);
        if (is_kind || step.waits) seconds += time;
        if (is_kind) bytes += static_cast<double>(step.bytes);
      }
      if (bytes > 0 && (rate.measured.empty() || bytes > rate.measured.back().first))
        rate.measured.emplace_back(bytes, seconds);
      const std::vector<double> all = cluster_.gather({seconds});
      if (*std::max_element(all.begin(), all.end()) > kLongExchange) break;
    }
    if (rate.measured.size() < 2) return;
    rate.latency = rate.measured.front().second;
    const auto& last = rate.measured.back();
    rate.bandwidth = last.first / std::max(last.second - rate.latency, 1e-9);
    machine_.collectives.push_back(std::move(rate));
  }

  /// "node" if every group of the axis lies on one host, else "network".
  std::string link_of(int axis) {
    const std::vector<std::string> hosts = cluster_.hosts();
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      std::vector<int> first = mesh_.coordinates(rank);
      first[static_cast<size_t>(axis)] = 0;
      if (hosts[static_cast<size_t>(rank)] != hosts[static_cast<size_t>(mesh_.rank_of(first))])
        return "network";
    }
    return "node";
  }

  /// Derives link tiers for unmeasured collectives from the measured all-gathers.
  void links() {
    const std::vector<std::string> hosts = cluster_.hosts();
    const auto on_first = std::count(hosts.begin(), hosts.end(), hosts[0]);
    for (const char* link : {"node", "network"}) {
      for (const CollectiveRate& rate : machine_.collectives) {
        if (rate.link != link || rate.kind != to_string(CollectiveKind::all_gather)) continue;
        const double steps = static_cast<double>(rate.ranks - 1);
        const bool is_node = rate.link == "node";
        const bool more = on_first < mesh_.size();
        machine_.links.push_back(
            {link, is_node && more ? on_first : 0, rate.latency / steps, rate.bandwidth, 0});
        break;
      }
    }
  }

  /// Transfers overlap with compute only if messages are sent: in memory shared by ranks of a host
  /// nothing moves by itself.
  void measure_overlap() {
    int axis = -1;
    for (int a = 0; a < mesh_.rank(); ++a) {
      if (mesh_.axes()[static_cast<size_t>(a)].size == 1) continue;
      if (link_of(a) != "network") return;
      axis = a;
    }
    if (axis < 0) return;
    const Chain alone = run_chain(axis, 8, true);
    const double one = alone.computed / 8;
    const std::vector<double> all = cluster_.gather({2 * alone.sum / one});  // equal on all ranks
    const double most = *std::max_element(all.begin(), all.end());
    const auto matmuls = static_cast<int>(std::clamp(most, 9.0, 2000.0));
    const Chain by_itself = run_chain(axis, matmuls, false), both = run_chain(axis, matmuls, true);
    if (both.hidden <= 0) return;
    const double moved = std::max(alone.sum - both.exposed, 1e-9);
    const double slower = std::clamp((both.computed - by_itself.computed) / both.hidden, 0.0, 0.9);
    const Chain smaller = run_chain(axis, matmuls, true, 1 << 18);  // typical size, all hidden
    machine_.overlap = {true, 1 / (1 - slower), std::max(1.0, both.hidden / moved),
                        smaller.exposed};
  }

  /// An all_reduce over an axis concurrent with a chain of matmuls; seconds per run.
  struct Chain {
    double computed = 0, sum = 0;  ///< of the matmuls; of the all_reduce without overlap
    double exposed = 0, hidden = 0;
  };
  Chain run_chain(int axis, int matmuls, bool with_all_reduce, int64_t size = 1 << 20) const {
    Graph g;
    const MeshAxis& ranks = mesh_.axes()[static_cast<size_t>(axis)];
    const CollectiveProbe probe =
        collective_probe(g, "sum", CollectiveKind::all_reduce, size, ranks.size);
    FunctionSpec both{"sum", {probe.value}, false};
    const Dim rows("rows", 256), depth("depth", 256), cols("cols", 256);
    const Tensor w = g.parameter("w", {depth, cols}, nn::normal(1.0 / 16));
    Tensor x = parameter(g, "x", {rows, depth});
    for (int i = 0; i < matmuls; ++i) x = rename(einsum({x, w}, {rows, cols}), "cols", "depth");
    if (!with_all_reduce) both.outputs.clear();
    both.outputs.push_back(x.named("chain"));
    CompileOptions how = options({both}, Layout::parse("pieces:" + ranks.name));
    how.overlap = matmuls > 8;
    Session session(g, cluster_, how);
    Chain result;
    for (const auto& [step, time] : step_times(session, both.name)) {
      const bool sums = step.collective == CollectiveKind::all_reduce || step.waits;
      (sums ? result.sum : result.computed) += time;
    }
    for (const BucketTime& e : session.bucket_times()) {
      if (e.function == both.name) result.exposed += e.exposed, result.hidden += e.hidden;
    }
    return result;
  }

  const CalibrateFlags& args_;
  const Mesh& mesh_;
  Cluster& cluster_;
  Machine machine_;
};

int run_calibrate(const CalibrateFlags& args, const std::vector<ModelSpec>&) {
  std::string path = args.out;
  if (path.empty()) {
    TESSERA_REQUIRE(!cache_folder().empty(),
                    "there is no cache folder to keep the profile in; give --out FILE");
    make_folders(cache_folder());
    path = cache_folder() + "/machine.toml";
  }
  require_writable(path);
  require_writable(args.html);
  const Mesh mesh = Mesh::parse(
      args.mesh.empty() ? fmt::format("ranks:{}", std::max(1, launched_ranks())) : args.mesh);
  Cluster cluster = make_cluster(mesh.size(), args.timeout, args);
  double load = 0;
  ::getloadavg(&load, 1);
  const Machine machine = Calibration(args, mesh, cluster).run();
  if (!cluster.is_root()) return 0;
  if (args.out.empty()) {
    write_cache_file(path, machine.to_toml());
  } else {
    write_text_file(path, machine.to_toml());
  }
  const MatmulRate& rate = machine.matmuls[0];
  say("matmuls {:.1f} GFLOP/s (fit within {:.1f} % on {} shapes), memory {:.1f} GB/s, a step "
      "{:.2f} us\n",
      rate.flops / 1e9, 100 * machine.residuals[0].second, machine.samples.size(),
      machine.memory_rates.back().bandwidth / 1e9, 1e6 * machine.launch);
  for (const CollectiveRate& c : machine.collectives)
    say("{} of {} ranks ({}): {:.1f} us, {:.2f} GB/s\n", c.kind, c.ranks, c.link, 1e6 * c.latency,
        c.bandwidth / 1e9);
  say("profile: {}\n", path);
  const std::string busy = busy_note(load, usable_cores());
  if (!busy.empty()) say("note: {}\n", busy);
  if (!args.html.empty()) write_text_file(args.html, machine_page(machine, path));
  return 0;
}

}  // namespace

Command calibrate_command() {
  return command(
      "calibrate",
      "Measures this machine and writes its profile, for explain, plan, simulate, sweep and diff.",
      "mpirun -n 2 tessera calibrate --threads 1 --out here.toml", Processes::all, run_calibrate);
}

}  // namespace tessera::cli
