// compare: finds the first node whose value differs between two layouts of a model that run side by
// side on the same examples, between a program of PyTorch and PyTorch, or between two dumps of
// `train --dump`, possibly of different builds.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/run_log.h"
#include "cli/terminal.h"
#include "cli/watchdog.h"
#include "tessera/inspect.h"
#include "tessera/pytorch_model.h"
#include "tessera/safetensors.h"

namespace tessera::cli {

namespace {

struct CompareFlags : JobFlags, JsonFlag {
  std::string model, a;          ///< a model and a layout; or two dumps
  std::optional<std::string> b;  ///< after a model
  int64_t steps = 1;
  double tolerance = -1;
  void declare(FlagTable& table) {
    table.add({{"MODEL",
                &model,
                kAgree,
                "Name of a model; or a file or folder that train --dump wrote; or a log of train "
                "--hash-every.",
                {},
                true},
               {"A", &a, kAgree,
                "A layout; or another such file, folder or log; or, after FILE.pt2, what "
                "examples/pytorch_probe.py wrote.",
                any_text(), true},
               {"B", &b, kAgree, "The layout to compare it with, after a model; that of FILE.pt2.",
                any_text()}});
    JobFlags::declare(table);
    table.add({{"--steps", &steps, kAgree, "Number of training steps (1).", whole_number(1)},
               {"--tolerance", &tolerance, kAgree,
                "Largest relative difference (1e-10 in float64, 1e-4 in float32, 6e-2 in 16 bits "
                "and ten times that from the first update on, else 0; 0 under strict numerics).",
                finite_number(0)},
               dtype_flag(sets)});
    JsonFlag::declare(table);
  }
};

/// One tensor on both sides. is_updated: it follows from what an optimizer has written.
struct Pair {
  std::string name, source, when;
  Array a, b;
  bool is_updated = false;
};

double default_tolerance(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 1e-10;
    case DType::float32:
      return 1e-4;
    case DType::bfloat16:
    case DType::float16:
      return 2e-2;
    default:
      return 0;
  }
}

/// Compares pairs in order until one differs.
class Comparison {
 public:
  /// narrow: float32 values come of 16-bit ones.
  explicit Comparison(double tolerance, bool narrow = false)
      : tolerance_(tolerance), narrow_(narrow) {}

  /// Returns false if the pair differs.
  bool see(const Pair& p) {
    TESSERA_REQUIRE(
        p.a.dtype == p.b.dtype && p.a.dims == p.b.dims && p.a.sizes == p.b.sizes,
        "'{}' is {} [{}] of sizes [{}] in A but {} [{}] of sizes [{}] in B; only runs of one "
        "configuration can be compared",
        p.name, to_string(p.a.dtype), fmt::join(p.a.dims, ", "), fmt::join(p.a.sizes, ", "),
        to_string(p.b.dtype), fmt::join(p.b.dims, ", "), fmt::join(p.b.sizes, ", "));
    const bool is_coarse = narrow_ && is_floating(p.a.dtype);
    const double tolerance = tolerance_ >= 0 ? tolerance_
                             : !is_coarse    ? default_tolerance(p.a.dtype)
                             : p.is_updated  ? 10 * kNarrow
                                             : kNarrow;
    const Difference d = difference(p.a, p.b, tolerance);
    if (d.relative > tolerance) {
      report_["first"] = {{"node", p.name},
                          {"source", p.source},
                          {"when", p.when},
                          {"index", index_text(p.a.dims, p.a.sizes, d.first)},
                          {"a", json_number(p.a.at(d.first))},
                          {"b", json_number(p.b.at(d.first))},
                          {"relative", json_number(d.relative)},
                          {"tolerance", tolerance}};
      text_ = fmt::format(
          "first difference: {} ({}), {}\n  at {}: A {:.9g}, B {:.9g}\n"
          "  relative L2 difference {:.3e} (tolerance {:g})\n",
          p.name, p.source, p.when, index_text(p.a.dims, p.a.sizes, d.first), p.a.at(d.first),
          p.b.at(d.first), d.relative, tolerance);
      return false;
    }
    ++agreed_;
    if (d.relative > worst_) worst_ = d.relative, worst_name_ = p.name + ", " + p.when;
    return true;
  }

  /// Prints and writes the report. Returns the exit code.
  int finish(const std::string& json, bool is_root) {
    const bool equal = text_.empty();
    if (!is_root) return equal ? 0 : 1;
    say("{}{} values {}", text_, agreed_, equal ? "agree" : "before it agree");
    if (worst_ > 0) {
      say("; largest relative difference {:.3e} ({})\n", worst_, worst_name_);
    } else {
      say("{}\n", agreed_ > 0 ? " to the last bit" : "");
    }
    report_["equal"] = equal;
    report_["agreed"] = agreed_;
    report_["max_rel"] = worst_;
    write_report(json, report_);
    return equal ? 0 : 1;
  }

 private:
  static constexpr double kNarrow = 16.0 / 256;  ///< 16 units of rounding of bfloat16, as in verify
  double tolerance_, worst_ = 0;
  bool narrow_ = false;
  int64_t agreed_ = 0;
  std::string text_, worst_name_;
  nlohmann::json report_;
};

/// A model under one layout, in a session that keeps all its tensors.
struct Side {
  Job job;
  Trainer trainer = {};
  std::unique_ptr<Session> session = {};
};

void start(Side& side, Cluster& cluster) {
  build_trainer(side.job, side.trainer, false);
  CompileOptions compile{side.job.mesh, side.job.layout, side.trainer.functions,
                         static_cast<uint64_t>(side.job.config.integer("train.seed")),
                         threads_of(side.job)};
  compile.keep = {"*"};
  compile.device = side.job.device;
  compile.strict_chunks = strict_chunks_of(side.job.config);
  compile.pipeline_schedule = options_of(side.job, side.trainer).pipeline_schedule;
  side.session = std::make_unique<Session>(side.trainer.graph, cluster, compile);
}

void step(Side& side, int64_t step) {
  side.session->set_step(step);
  feed_examples(*side.session, side.trainer.model, step);
  feed_scalar(*side.session, side.trainer.lr, learning_rate(side.job, step));
  side.session->run("train");
}

int compare_layouts(const CompareFlags& args, const std::vector<ModelSpec>& models) {
  std::vector<std::unique_ptr<Side>> sides;
  for (const std::string& layout : {args.a, *args.b}) {
    // ";": no rules, instead of the default layout
    const ModelFlags one(args, args.model, layout.empty() ? ";" : layout);
    sides.emplace_back(new Side{resolve(one, models, true)});
  }
  Side &a = *sides[0], &b = *sides[1];
  Cluster cluster = make_cluster(a.job, args);
  const Watchdog watchdog(cluster, args.timeout);
  start(a, cluster);
  start(b, cluster);
  if (cluster.is_root()) {
    say("{} on mesh {}\nA  {}\nB  {}\n", a.job.spec->name, a.job.mesh.to_string(),
        layout_text(a.job.layout), layout_text(b.job.layout));
  }
  const bool narrow = is_narrow(a.job.config);
  const bool is_strict = strict_chunks_of(a.job.config) > 0;
  Comparison comparison(is_strict && args.tolerance < 0 ? 0 : args.tolerance, narrow);
  const std::vector<std::string> stored = a.session->program().stored_names();
  auto same = [&](const std::string& name, const std::string& when) {
    Graph& g = a.trainer.graph;
    return comparison.see({name, g.producer(g.find(name).id()).at.to_string(), when,
                           a.session->fetch(name), b.session->fetch(name),
                           when != "before the first step" && when != "step 1"});
  };
  auto all_same = [&](const std::vector<std::string>& names, const std::string& when) {
    return std::all_of(names.begin(), names.end(),
                       [&](const std::string& name) { return same(name, when); });
  };
  bool equal = all_same(stored, "before the first step");
  for (int64_t s = 0; equal && s < args.steps; ++s) {
    step(a, s);
    step(b, s);
    std::vector<std::string> computed = a.session->program().find("train", "*");
    std::erase_if(computed, [&](const std::string& name) {
      // Adam divides a gradient by its own size: of one near zero the rounding remains. What it
      // stores is compared.
      const bool is_of_update = narrow && args.tolerance < 0 && name.starts_with("optimizer.");
      return is_of_update || std::find(stored.begin(), stored.end(), name) != stored.end();
    });
    equal = all_same(computed, fmt::format("step {}", s + 1)) &&
            all_same(stored, fmt::format("after step {}", s + 1));
  }
  return comparison.finish(args.json, cluster.is_root());
}

/// The dumps in a folder by file name, or a single file under the name "".
std::map<std::string, std::string> dumps_in(const std::string& path) {
  if (is_file(path)) return {{"", path}};
  std::map<std::string, std::string> files;
  for (const std::string& name : names_in(path)) {
    if (name.starts_with("dump-") && name.ends_with(".safetensors"))
      files[name] = (std::filesystem::path(path) / name).string();
  }
  TESSERA_REQUIRE(!files.empty(),
                  "'{}' holds no dump-*.safetensors; write some by train --dump GLOB", path);
  return files;
}

nlohmann::json metadata_of(const SafetensorsReader& file, const char* key) {
  auto it = file.metadata().find(key);
  if (it == file.metadata().end()) return nlohmann::json::object();
  nlohmann::json value = parse_json(it->second);
  if (!value.is_object())
    fail(ErrorKind::io, "'{}': the metadata '{}' is not a JSON object", file.path(), key);
  return value;
}

Array read_named(const SafetensorsReader& file, const nlohmann::json& dims,
                 const std::string& name) {
  Array array = file.read(name);
  const auto names = dims.value(name, std::vector<std::string>{});
  if (names.size() == array.dims.size()) array.dims = names;
  return array;
}

/// Returns false if a tensor of the two files differs. Adds to `lonely` the number of tensors that
/// only one file has.
bool compare_files(const std::string& path_a, const std::string& path_b, Comparison& comparison,
                   int64_t& lonely) {
  const SafetensorsReader a(path_a), b(path_b);
  const nlohmann::json dims_a = metadata_of(a, "dims"), dims_b = metadata_of(b, "dims");
  const nlohmann::json source = metadata_of(a, "source");
  auto step = a.metadata().find("step");
  const std::string when = step == a.metadata().end() ? path_a : "step " + step->second;
  size_t common = 0;
  for (const TensorInfo& info : a.tensors()) {
    if (!b.find(info.name)) continue;
    ++common;
    if (!comparison.see({info.name, source.value(info.name, std::string("?")), when,
                         read_named(a, dims_a, info.name), read_named(b, dims_b, info.name)}))
      return false;
  }
  TESSERA_REQUIRE(common > 0, "'{}' and '{}' have no tensor in common", path_a, path_b);
  lonely += static_cast<int64_t>(a.tensors().size() + b.tensors().size() - 2 * common);
  return true;
}

int compare_dumps(const CompareFlags& args) {
  for (const std::string& path : {args.model, args.a}) {
    TESSERA_REQUIRE(
        is_there(path),
        "there is no dump or log '{}'; to compare two layouts: tessera compare MODEL A B", path);
  }
  const auto a = dumps_in(args.model), b = dumps_in(args.a);
  const bool single = a.size() == 1 && b.size() == 1;
  Comparison comparison(args.tolerance);
  int64_t files = 0, lonely = 0;
  for (const auto& [name, path] : a) {
    auto other = single ? b.begin() : b.find(name);
    if (other == b.end()) continue;
    ++files;
    if (!compare_files(path, other->second, comparison, lonely)) break;
  }
  TESSERA_REQUIRE(files > 0, "'{}' and '{}' have no dump of one step", args.model, args.a);
  say("A  {}\nB  {}\n", args.model, args.a);
  if (lonely > 0) say("{} tensors are in one of them only\n", lonely);
  return comparison.finish(args.json, true);
}

/// An array of the probe with the dims of a tensor.
Array with_dims_of(const Shape& shape, Array array) {
  array.dims = shape.names();
  array.sizes.clear();
  for (const Dim& d : shape) array.sizes.push_back(d.size);
  return array;
}

/// A program of PyTorch beside what examples/pytorch_probe.py wrote of its module: values of
/// modules in their order, then gradients of these from the last, then those of parameters.
int compare_probe(const CompareFlags& args) {
  const PytorchModel model(args.model);
  const SafetensorsReader probe(args.a);
  Graph graph;
  const PytorchModel::Built built = model.build(graph);
  FunctionSpec function{"compare", {}, false};
  struct Compared {
    std::string name, source;  ///< in the probe; the user's line
    Tensor x;
  };
  std::vector<Compared> compared;
  std::vector<std::pair<std::string, Array>> fed;
  const auto add = [&](const std::string& name, const Tensor& x) {
    if (!probe.find(name) || x.empty()) return;
    int64_t elements = 1;
    for (const int64_t size : probe.find(name)->sizes) elements *= size;
    if (elements != x.shape().elements()) return;
    compared.push_back(
        {name, graph.producer(x.id()).at.to_string(), identity(x).uniquely_named("compared")});
    function.outputs.push_back(compared.back().x);
  };
  for (const auto& [path, x] : built.modules) add("value." + path, x);
  Tensor total;
  for (const auto& [name, x] : built.outputs) {
    add("out." + name, x);
    const std::string cotangent = "cotangent." + name;
    if (!probe.find(cotangent) || !is_floating(x.dtype())) continue;
    fed.emplace_back(cotangent, with_dims_of(x.shape(), probe.read(cotangent)));
    const Tensor part = sum_all(x * graph.input(cotangent, x.shape(), x.dtype()));
    total = total.empty() ? part : total + part;
  }
  TESSERA_REQUIRE(!compared.empty(),
                  "'{}' has no value of '{}'; write it by examples/pytorch_probe.py", args.a,
                  args.model);
  if (!total.empty()) {
    std::vector<std::pair<std::string, Tensor>> of;
    for (auto module = built.modules.rbegin(); module != built.modules.rend(); ++module)
      of.emplace_back("grad of " + module->first, module->second);
    for (const Tensor& parameter : graph.parameters())
      of.emplace_back("grad." + parameter.name(), parameter);
    std::erase_if(of, [&](const auto& x) { return !probe.find(x.first); });
    std::vector<Tensor> tensors;
    for (const auto& [name, x] : of) tensors.push_back(x);
    const std::vector<Tensor> all = gradients(total, tensors);
    for (size_t i = 0; i < of.size(); ++i) add(of[i].first, all[i]);
  }
  CompileOptions options;
  options.mesh = Mesh::parse(args.mesh.empty() ? "data:1" : args.mesh);
  options.layout = Layout::parse(args.b.value_or(""));
  options.functions = {function};
  Cluster cluster = Cluster::threads(static_cast<int>(options.mesh.size()));
  Session session(graph, cluster, options);
  model.load(session);
  for (const PytorchModel::Input& input : model.inputs()) {
    const std::string name = "in." + input.name;
    TESSERA_REQUIRE(probe.find(name) != nullptr, "'{}' has no input '{}' of '{}'", args.a, name,
                    args.model);
    session.feed(input.name, with_dims_of(graph.find(input.name).shape(), probe.read(name)));
  }
  for (const auto& [name, values] : fed) session.feed(name, values);
  session.run("compare");
  Comparison comparison(args.tolerance);
  const auto rest =
      std::count_if(probe.tensors().begin(), probe.tensors().end(), [&](const auto& t) {
        return !t.name.starts_with("in.") && !t.name.starts_with("cotangent.") &&
               std::none_of(compared.begin(), compared.end(),
                            [&](const Compared& c) { return c.name == t.name; });
      });
  if (rest > 0) say("{} values of the probe are of layers that became others\n", rest);
  for (const auto& [name, source, x] : compared) {
    const Array ours = session.fetch(x.name());
    Array theirs = with_dims_of(x.shape(), probe.read(name));
    theirs.sizes = ours.sizes;
    if (!comparison.see({name, source, "A is Tessera, B is PyTorch", ours, theirs})) break;
  }
  return comparison.finish(args.json, true);
}

/// The hashes of a log by step, and the configuration of its job.
struct Hashes {
  std::map<std::string, std::string> config;
  std::map<int64_t, nlohmann::json> steps;

  std::string numerics() const {
    const auto found = config.find("train.numerics");
    const std::string text = found == config.end() ? "default" : found->second;
    return text == "strict" ? fmt::format("strict:{}", kStrictChunks) : text;
  }
};

Hashes hashes_in(const std::string& path) {
  Hashes hashes;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;  // the last line of a job that was killed
    if (record.contains("config") && record["config"].is_object()) {
      for (const auto& [key, value] : record["config"].items()) hashes.config[key] = text_of(value);
    }
    if (record.contains("state_hash") && record.contains("tensor_hashes"))
      hashes.steps[count_of(record, "step")] = record;
  }
  TESSERA_REQUIRE(!hashes.steps.empty(),
                  "'{}' has no hashes; write some by tessera train --log FILE --hash-every N",
                  path);
  return hashes;
}

/// Keys that are not those of a layout and differ: "train.seed is 0 in A and 1 in B".
std::vector<std::string> different_keys(const Hashes& a, const Hashes& b) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : a.config) {
    const auto other = b.config.find(key);
    const bool matters = !key.starts_with("layout.") && key != "train.numerics" &&
                         key != "train.steps" && key != "train.threads";
    if (matters && other != b.config.end() && other->second != value)
      texts.push_back(fmt::format("{} is {} in A and {} in B", key, value, other->second));
  }
  return texts;
}

/// Tensors whose hashes differ, by name.
std::vector<std::string> different_tensors(const nlohmann::json& a, const nlohmann::json& b) {
  std::vector<std::string> names;
  for (const auto& [name, hash] : a["tensor_hashes"].items()) {
    const auto other = b["tensor_hashes"].find(name);
    if (other == b["tensor_hashes"].end() || *other != hash) names.push_back(name);
  }
  return names;
}

int compare_logs(const CompareFlags& args) {
  const Hashes a = hashes_in(args.model), b = hashes_in(args.a);
  TESSERA_REQUIRE(a.numerics() == b.numerics(),
                  "'{}' has train.numerics={} and '{}' {}; only runs of one kind of numerics have "
                  "the same bits",
                  args.model, a.numerics(), args.a, b.numerics());
  int64_t equal = 0, last = -1;
  for (const auto& [step, record] : a.steps) {
    const auto other = b.steps.find(step);
    if (other == b.steps.end()) continue;
    if (record["state_hash"] == other->second["state_hash"]) {
      ++equal;
      last = step;
      continue;
    }
    const std::vector<std::string> names = different_tensors(record, other->second);
    const std::string before = last < 0 ? "no step before it was compared"
                                        : fmt::format("after step {} all were equal", last);
    say("first difference: after step {}, {} of {} tensors: {}{}\n{}\n", step, names.size(),
        record["tensor_hashes"].size(),
        fmt::join(names.begin(), names.begin() + std::min<std::ptrdiff_t>(4, std::ssize(names)),
                  ", "),
        names.size() > 4 ? ", ..." : "", before);
    if (const auto keys = different_keys(a, b); !keys.empty())
      say("the jobs differ: {}\n", fmt::join(keys, "; "));
    if (a.numerics() == "default")
      say("without train.numerics=strict other layouts, and other numbers of threads, round "
          "otherwise\n");
    write_report(args.json,
                 {{"equal", false}, {"step", step}, {"last_equal", last}, {"tensors", names}});
    return 1;
  }
  TESSERA_REQUIRE(last >= 0, "'{}' and '{}' have hashes of no step in common", args.model, args.a);
  say("{} steps agree to the last bit, the last one is step {}\n", equal, last);
  write_report(args.json, {{"equal", true}, {"steps", equal}, {"last_equal", last}});
  return 0;
}

/// True for JSON lines.
bool is_log(const std::string& path) { return is_file(path) && std::ifstream(path).get() == '{'; }

int run_compare(const CompareFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  if (is_program_model(args.model) && is_file(args.a)) return compare_probe(args);
  if (args.b) return compare_layouts(args, models);
  return is_log(args.model) && is_log(args.a) ? compare_logs(args) : compare_dumps(args);
}

}  // namespace

Command compare_command() {
  return command(
      "compare",
      "Finds the first difference of two layouts, two dumps or two logs with hashes, or of a "
      "program "
      "from PyTorch itself.",
      "tessera compare gpt \"batch:rows\" \"batch:rows;heads,ff:cols\" --mesh \"rows:2;cols:2\"\n"
      "  tessera compare gpt \"\" \"batch:rows\" --mesh rows:4     # \"\": nothing is split\n"
      "  tessera compare dumps-of-one-build dumps-of-another\n"
      "  tessera compare run-on-4.jsonl run-on-8.jsonl\n"
      "  tessera compare m.pt2 probe.safetensors",
      Processes::all, run_compare);
}

}  // namespace tessera::cli
