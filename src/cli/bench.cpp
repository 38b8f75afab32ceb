// bench: measures a matmul, a collective or a training step on this machine through the public API,
// so it times exactly what user Programs run.
#include <algorithm>

#include "base/clock.h"
#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/step_timing.h"
#include "cli/terminal.h"
#include "tessera/tessera.h"

namespace tessera::cli {

namespace {

struct BenchFlags : JobFlags, JsonFlag {
  std::string what;
  std::optional<std::string> model;
  std::string layout, dtype = "float32";
  std::vector<int64_t> sizes;
  int64_t steps = 20;
  void declare(FlagTable& table) {
    table.add({{"WHAT",
                &what,
                kAgree,
                "What to measure: matmul, all_reduce, all_gather, reduce_scatter, all_to_all or "
                "train.",
                {},
                true},
               {"MODEL", &model, kAgree, "Model of train (gpt), with its dims in --set."}});
    JobFlags::declare(table);
    table.add({layout_flag(layout, kAgree,
                           "Layout of train, or of matmul over the dims rows, depth and cols (rows "
                           "split)."),
               {"--size", &sizes, kAgree,
                "Rows, columns and depth of a matmul (1024), or elements of a collective "
                "(1048576)."},
               {"--steps", &steps, kAgree,
                "Number of runs to take the median of, after three (20).", whole_number(1)},
               {"--dtype DTYPE", &dtype, kAgree,
                "Dtype of a matmul or collective: float32, float64, bfloat16 or float16. For "
                "train, use --set dtype=."}});
    JsonFlag::declare(table);
  }
};

constexpr int kUncounted = 3;

const std::vector<std::string> kKinds = {"matmul",
                                         to_string(CollectiveKind::all_reduce),
                                         to_string(CollectiveKind::all_gather),
                                         to_string(CollectiveKind::reduce_scatter),
                                         to_string(CollectiveKind::all_to_all),
                                         "train"};

/// A workload without its ranks.
struct Work {
  Graph graph;
  std::vector<FunctionSpec> functions;
  Layout layout;
};

std::string axes_of(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes()) names.push_back(axis.name);
  return fmt::format("{}", fmt::join(names, "+"));
}

Tensor random_parameter(Graph& g, const char* name, const Shape& shape, DType dtype) {
  return g.parameter(name, shape, nn::normal(1), dtype);
}

/// A matmul of two square matrices; by default each rank has a slice of the rows.
void build_matmul(Work& work, const Mesh& mesh, int64_t size, DType dtype,
                  const std::string& layout) {
  const Dim rows("rows", size), depth("depth", size), cols("cols", size);
  const Tensor a = random_parameter(work.graph, "a", {rows, depth}, dtype);
  const Tensor b = random_parameter(work.graph, "b", {depth, cols}, dtype);
  work.functions = {{"run", {einsum({a, b}, {rows, cols}).named("c")}, false}};
  work.layout = Layout::parse(layout.empty() ? "rows:" + axes_of(mesh) : layout);
}

/// All axes of the mesh take part.
void build_collective(Work& work, const Mesh& mesh, CollectiveKind kind, int64_t size,
                      DType dtype) {
  const CollectiveProbe probe = collective_probe(work.graph, "y", kind, size, mesh.size(), dtype);
  work.functions = {{"run", {probe.value}, false}};
  work.layout = Layout::parse(probe.split + ":" + axes_of(mesh));
}

struct Times {
  double median = 0, least = 0;  ///< seconds
};

/// Repeats once(), which returns the seconds of one run.
template <class Once>
Times times_of(int64_t repeats, const Once& once) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeats + kUncounted; ++i) {
    const double one = once();
    if (i >= kUncounted) seconds.push_back(one);
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[0]};
}

/// Total seconds of all runs of `kind` so far, and the bytes that a rank sends in one run.
std::pair<double, int64_t> profiled(const Session& session, CollectiveKind kind) {
  double seconds = 0;
  int64_t bytes = 0, steps = 0;
  for (const StepTime& row : session.profile()) {
    const bool is_kind = runs(row, kind);
    if (!is_kind && !row.waits) continue;
    seconds += row.seconds;
    if (is_kind) bytes += row.bytes, ++steps;
  }
  if (steps == 0)
    fail(ErrorKind::internal, "bench: the layout makes no step '{}'; the Program is\n{}",
         to_string(kind), session.program().text());
  return {seconds, bytes};
}

class Bench {
 public:
  explicit Bench(const BenchFlags& args) : args_(args), kind_(args.what), repeats_(args.steps) {
    mesh_ = Mesh::parse(args.mesh.empty() ? fmt::format("ranks:{}", std::max(1, launched_ranks()))
                                          : args.mesh);
    dtype_ = parse_dtype(args.dtype.c_str());
    TESSERA_REQUIRE(is_floating(dtype_),
                    "--dtype {}: bench knows float32, float64, bfloat16 and float16", args.dtype);
    report_ = {{"what", kind_}, {"steps", repeats_}, {"results", nlohmann::json::array()}};
  }

  void products_or_collectives() {
    Cluster cluster = make_cluster(mesh_.size());
    std::vector<int64_t> sizes = args_.sizes;
    const bool is_matmul = kind_ == "matmul";
    if (sizes.empty()) sizes = {is_matmul ? 1024 : 1 << 20};
    head(cluster, mesh_, fmt::format("{} in {}", kind_, args_.dtype));
    for (int64_t size : sizes) is_matmul ? matmul(cluster, size) : collective(cluster, size);
  }

  void train(const std::vector<ModelSpec>& models) {
    const Job job =
        resolve(ModelFlags(args_, args_.model.value_or("gpt"), args_.layout), models, false);
    Trainer t;
    build_trainer(job, t, false);
    Cluster cluster = make_cluster(job.mesh.size());
    Session session(t.graph, cluster, cli::options_of(job, t));
    feed_examples(session, t.model, 0);
    feed_scalar(session, t.lr, learning_rate(job, 0));
    const Times times = times_of(repeats_, [&] {
      const double start = host_seconds();
      session.run("train");
      session.fetch_scalar(t.model.loss.name());
      return host_seconds() - start;
    });
    const double tokens =
        static_cast<double>(job.config.integer("train.batch") * tokens_of_example(job));
    const double flops = static_cast<double>(session.program().flops("train")) * job.mesh.size();
    head(cluster, job.mesh,
         fmt::format("training {} in {}, layout {}", job.spec->name, job.config.text("train.dtype"),
                     job.layout.to_string()));
    result(times,
           {{"tokens_per_s", tokens / times.median}, {"gflops_per_s", flops / times.median / 1e9}});
  }

  void finish() const {
    if (is_root_) write_report(args_.json, report_);
  }

 private:
  Cluster make_cluster(int ranks) {
    Cluster cluster = cli::make_cluster(ranks, args_.timeout, args_);
    is_root_ = cluster.is_root();
    return cluster;
  }

  void head(Cluster& cluster, const Mesh& mesh, const std::string& what) {
    report_["mesh"] = mesh.to_string();
    report_["ranks"] = mesh.size();
    report_["backend"] = cluster.backend();
    if (is_root_)
      say("{} on mesh {} ({} ranks, {}), {} runs\n", what, mesh.to_string(), mesh.size(),
          cluster.backend(), repeats_);
  }

  void result(const Times& times, nlohmann::json rates) {
    if (is_root_) {
      if (rates.contains("size")) say("  {:>9}", rates["size"].get<int64_t>());
      say("  median {:.4f} ms, least {:.4f} ms", times.median * 1e3, times.least * 1e3);
      if (rates.contains("tokens_per_s"))
        say(", {:.0f} tokens/s", rates["tokens_per_s"].get<double>());
      if (rates.contains("gflops_per_s"))
        say(", {:.1f} GFLOP/s", rates["gflops_per_s"].get<double>());
      if (rates.contains("gbytes_per_s"))
        say(", {} bytes sent by a rank, {:.2f} GB/s", rates["bytes"].get<int64_t>(),
            rates["gbytes_per_s"].get<double>());
      say("\n");
    }
    rates["ms"] = times.median * 1e3;
    rates["least_ms"] = times.least * 1e3;
    report_["results"].push_back(std::move(rates));
  }

  CompileOptions options_of(const Work& work) const {
    CompileOptions options{mesh_, work.layout, work.functions, 0,
                           static_cast<int>(std::max<int64_t>(args_.threads, 0))};
    options.device = device_of(args_);
    return options;
  }

  void matmul(Cluster& cluster, int64_t size) {
    TESSERA_REQUIRE(size > 0, "--size {}: a matrix has at least one row", size);
    Work work;
    build_matmul(work, mesh_, size, dtype_, args_.layout);
    Session session(work.graph, cluster, options_of(work));
    const Times times = times_of(repeats_, [&] {
      const double start = host_seconds();
      session.run("run");
      return host_seconds() - start;
    });
    const double n = static_cast<double>(size);
    result(times, {{"size", size}, {"gflops_per_s", 2 * n * n * n / times.median / 1e9}});
  }

  void collective(Cluster& cluster, int64_t size) {
    const int64_t ranks = mesh_.size();
    TESSERA_REQUIRE(ranks > 1,
                    "{} on mesh '{}' of one rank sends nothing; give a --mesh of several", kind_,
                    mesh_.to_string());
    TESSERA_REQUIRE(size >= ranks * ranks, "--size {}: {} ranks need {} elements or more", size,
                    ranks, ranks * ranks);
    Work work;
    const CollectiveKind kind = find_collective(kind_).value();
    build_collective(work, mesh_, kind, size, dtype_);
    CompileOptions options = options_of(work);
    options.profile = true;
    Session session(work.graph, cluster, options);
    double before = 0;
    const Times times = times_of(repeats_, [&] {
      session.run("run");
      const double after = profiled(session, kind).first;
      return after - std::exchange(before, after);
    });
    const int64_t bytes = profiled(session, kind).second;
    result(times, {{"size", size},
                   {"bytes", bytes},
                   {"gbytes_per_s", static_cast<double>(bytes) / times.median / 1e9}});
  }

  const BenchFlags& args_;
  std::string kind_;
  int64_t repeats_;
  Mesh mesh_;
  DType dtype_ = DType::float32;
  bool is_root_ = true;
  nlohmann::json report_;
};

int run_bench(const BenchFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  const std::string& kind = args.what;
  TESSERA_REQUIRE(std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end(),
                  "bench cannot measure '{}'{}", kind, suggestion(kind, kKinds));
  const bool trains = kind == "train";
  TESSERA_REQUIRE(trains || !args.model, "bench {} takes no '{}'; only train has a model", kind,
                  args.model.value_or(""));
  TESSERA_REQUIRE(!trains || args.sizes.empty(),
                  "bench train takes no --size; its sizes are in --set");
  TESSERA_REQUIRE(trains || args.sets.empty(),
                  "bench {} takes no --set; only train has a configuration", kind);
  TESSERA_REQUIRE(trains || kind == "matmul" || args.layout.empty(),
                  "bench {} takes no --layout: it is what makes the collective", kind);
  Bench b(args);
  if (trains) {
    b.train(models);
  } else {
    b.products_or_collectives();
  }
  b.finish();
  return 0;
}

}  // namespace

Command bench_command() {
  return command("bench", "Measures a matmul, a collective or a training step: times and rates.",
                 "tessera bench all_reduce --mesh data:2 --size 1024 1048576\n"
                 "  mpirun -n 2 tessera bench matmul --size 2048 --threads 1 --layout depth:ranks\n"
                 "  tessera bench train gpt --mesh data:2 --set layers=2",
                 Processes::all, run_bench);
}

}  // namespace tessera::cli
