// Pipelines in the space of the planner: layers that are a loop, dealt to stages.
#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "cli/cli_run.h"
#include "plan/bounds.h"
#include "plan/candidate_pricer.h"
#include "plan/plan_models.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/explain.h"
#include "tessera/pipeline_schedules.h"
#include "tessera/simulate.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// A CPU's rate, on links of 20 Mbit/s.
Machine slow_links() {
  return Machine::parse(
      "format = 2\nname = \"slow\"\nmemory = 8000000000\nlaunch = 1e-6\n[[memory_rate]]\n"
      "bandwidth = 1e10\n[[matmul]]\ndtype = \"float32\"\nflops = 1e10\ntile_rows = 16\n"
      "tile_columns = 16\nunits = 1\n[[link]]\nname = \"network\"\nlatency = 2e-4\n"
      "bandwidth = 2.5e6\n",
      "slow_links");
}

/// A gpt that may be trained in microbatches, with its layers as a loop or one by one.
PlanModel gpt_of(int64_t layers, bool is_loop) {
  PlanModel model;
  model.name = "gpt";
  model.layers = layers;
  model.is_loop = is_loop;
  if (!is_loop) model.loop_setting = "scan=true";
  model.microbatches = {1, 2, 4, 8};
  model.schedules = {"1f1b", "gpipe", "zb_h1", "zb_v"};
  model.build = [is_loop](const PlanBuild& build) {
    nn::GptOptions o = options_of(768, 32);
    o.dtype = DType::float32;
    o.vocab = 128;
    o.batch = 8 / build.microbatches;
    o.layers = build.layers;
    o.scan = (is_loop && !build.unrolled) || build.looped;
    const auto graph = std::make_shared<Graph>();
    const Tensor lr = graph->input("lr", {}, DType::float32);
    MinimizeOptions options;
    if (build.recompute != "none") options.gradient.recompute = {build.recompute};
    const auto part = [&] { return nn::gpt(*graph, o).loss; };
    const Minimized m = build.microbatches == 1
                            ? minimize(part(), lr, adam({}), options)
                            : minimize_in_microbatches(*graph, "batch", build.microbatches, part,
                                                       lr, adam({}), options);
    return PlanStep{graph, {{"train", {m.loss}, true}}};
  };
  return model;
}

/// True if a schedule takes the chunks of a layout whose stages, if any, are of its first rule.
bool takes(const std::string& schedule, const std::string& layout) {
  const LayoutRule rule = Layout::parse(layout).rules()[0];
  return !rule.dim.starts_with("layers") ||
         takes_chunks(pipeline_schedule(schedule), rule.intervals);
}

PlanOptions with_time() {
  PlanOptions options;
  options.seconds = 120;
  return options;
}

bool has_stages(const PricedPlan& p) {
  const Layout layout = Layout::parse(p.layout);
  const std::vector<LayoutRule>& rules = layout.rules();
  return std::any_of(rules.begin(), rules.end(),
                     [](const LayoutRule& r) { return r.dim == "layers" && !r.axes.empty(); });
}

TEST_CASE("plan: on slow links layers are dealt to stages, and nothing that was priced is faster",
          "[plan]") {
  const Machine machine = slow_links();
  for (const bool is_loop : {false, true}) {
    INFO("loop " << is_loop);
    const PlanModel model = gpt_of(8, is_loop);
    const Plan found = plan(model, Mesh::parse("a:2"), machine, with_time());
    const PricedPlan& best = found.best;
    INFO(best.layout << " " << best.build.microbatches << " " << best.settings);
    CHECK(found.optimal);
    CHECK(found.bound <= best.seconds * (1 + 1e-9));
    REQUIRE(has_stages(best));
    CHECK(best.build.microbatches > 1);
    CHECK(best.build.looped == !is_loop);
    CHECK((best.settings.find("scan=true") != std::string::npos) == !is_loop);
    CHECK(best.seconds == Approx(found.table_seconds));  // the search simulated this Program
    // Every number of microbatches and of chunks, every schedule, and what runs without stages.
    const auto seconds = [&](const std::string& layout, int64_t microbatches,
                             const std::string& schedule) {
      PlanBuild build = best.build;
      build.microbatches = microbatches;
      build.pipeline_schedule = schedule;
      return price(model, Mesh::parse("a:2"), Layout::parse(layout), build, machine).seconds;
    };
    for (const std::string& schedule : model.schedules) {
      for (const int64_t m : {2, 4, 8}) {
        for (const std::string layout : {"layers:a", "layers:a*2", "layers:a*4", "layers,vocab:a",
                                         "layers:a*2;vocab:a", "batch:a", "heads,ff,vocab:a"}) {
          if ((layout == "batch:a" && m == 8) || !takes(schedule, layout)) continue;
          INFO(layout << ", " << m << " microbatches");
          CHECK(seconds(layout, m, schedule) >= best.seconds * (1 - 1e-9));
        }
      }
    }
  }
}

TEST_CASE("plan: zb_v is offered where there are two equal chunks for each stage", "[plan]") {
  Machine machine = slow_links();
  for (LinkTier& link : machine.links) link.latency = 0, link.bandwidth *= 1e5;
  PlanOptions options = with_time();
  options.layout = Layout::parse("layers:auto");
  for (const int64_t layers : {8, 6}) {
    INFO(layers << " layers");
    PlanModel model = gpt_of(layers, true);
    model.schedules = {"zb_v"};
    const PricedPlan best = plan(model, Mesh::parse("a:2"), machine, options).best;
    INFO(best.layout << " " << best.settings);
    const bool is_dealt = layers == 8;
    CHECK(has_stages(best) == is_dealt);
    CHECK((best.layout.find("layers:a*2") != std::string::npos) == is_dealt);
    CHECK((best.settings.find("pipeline_schedule=zb_v") != std::string::npos) == is_dealt);
  }
}

TEST_CASE("plan: a stage gets several chunks where waiting costs more than sending", "[plan]") {
  Machine machine = slow_links();
  for (LinkTier& link : machine.links) link.latency = 0, link.bandwidth *= 1e5;
  const PlanModel model = gpt_of(8, true);
  PlanOptions options = with_time();
  options.layout = Layout::parse("layers,vocab:auto");
  const Plan found = plan(model, Mesh::parse("pipe:4"), machine, options);
  INFO(found.best.layout << " " << found.best.build.microbatches);
  CHECK(found.optimal);
  CHECK(found.best.layout.find("layers:pipe*2") != std::string::npos);
  PlanBuild build = found.best.build;
  const Mesh& mesh = found.best.mesh;
  for (const int64_t m : model.microbatches) {
    build.microbatches = m;
    for (const std::string& schedule : model.schedules) {
      build.pipeline_schedule = schedule;
      for (const char* layout : {"layers:pipe", "layers:pipe;vocab:pipe", "layers:pipe*2"}) {
        if (takes(schedule, layout))
          CHECK(price(model, mesh, Layout::parse(layout), build, machine).seconds >=
                found.best.seconds * (1 - 1e-9));
      }
    }
  }
  // What is given stays.
  options.layout = Layout::parse("layers:pipe*2;*:auto");
  const Plan given = plan(model, Mesh::parse("pipe:2;x:2"), machine, options);
  CHECK(given.best.layout.find("layers:pipe*2") == 0);
  options.layout = Layout::parse("layers:pipe;*:auto");
  CHECK(plan(model, Mesh::parse("pipe:2;x:2"), machine, options).best.layout.find("pipe*") ==
        std::string::npos);
}

TEST_CASE("plan: single tensors are compared in layers one by one, whether they are a loop or not",
          "[plan][choice]") {
  PlanOptions options = with_time();
  options.each_tensor = true;
  options.layout = Layout::parse("batch,vocab,heads,ff:auto");
  double planned[2] = {};
  for (const bool is_loop : {false, true}) {
    const Plan found = plan(gpt_of(4, is_loop), Mesh::parse("a:2"), a100(), options);
    const PlanTensors& t = found.tensors;
    INFO(t.left_out);
    CHECK(t.tensors > 100);
    CHECK(t.least <= t.planned);
    planned[is_loop] = t.planned;
  }
  CHECK(planned[0] > 0);
  CHECK(planned[1] == Approx(planned[0]));
}

TEST_CASE("plan: the price of a pipeline is that of the Program that runs", "[plan]") {
  const PlanModel model = gpt_of(8, false);
  const Machine machine = slow_links();
  PlanBuild build;
  build.microbatches = 4;
  build.looped = true;
  for (const std::string& schedule : model.schedules) {
    for (const char* layout : {"layers:pipe", "layers:pipe;batch:data", "layers,vocab:pipe",
                               "layers:pipe*2;batch:data"}) {
      if (!takes(schedule, layout)) continue;
      INFO(layout << ", " << schedule);
      const Mesh mesh = Mesh::parse("pipe:2;data:2");
      build.pipeline_schedule = schedule;
      const PricedPlan priced = price(model, mesh, Layout::parse(layout), build, machine, true);
      PlanBuild all = build;
      all.layers = model.layers;
      const PlanStep step = model.build(all);
      CompileOptions options{mesh, Layout::parse(layout), step.functions};
      options.threads_per_rank = 1;
      options.pipeline_schedule = schedule;
      options.machine = std::make_shared<const Machine>(machine);
      const Explanation e = explain(*step.graph, options);
      CHECK(priced.params == e.memory.params);
      CHECK(priced.transient == e.memory.transient);
      int64_t sent = 0, priced_sent = 0;
      for (const CollectiveReport& c : e.functions.back().collectives) sent += c.bytes;
      for (const PlanAxes& axes : priced.by_axes) priced_sent += axes.bytes;
      CHECK(priced_sent == sent);
    }
  }
}

TEST_CASE("plan: what a stage waits for others is the bubble, tick by tick", "[plan]") {
  const PlanModel model = gpt_of(12, true);
  const Machine machine = slow_links();
  const Mesh mesh = Mesh::parse("pipe:2;data:2");
  for (const std::string& schedule : model.schedules) {
    for (const char* layout : {"layers:pipe;batch:data", "layers:pipe;heads,ff:data",
                               "layers:pipe*2;batch:data", "layers:pipe*3;batch:data"}) {
      if (!takes(schedule, layout)) continue;
      INFO(layout << ", " << schedule);
      PlanBuild build;
      build.microbatches = 4;
      build.pipeline_schedule = schedule;
      const PricedPlan priced = price(model, mesh, Layout::parse(layout), build, machine, true);
      CHECK(priced.seconds ==
            Approx(priced.compute + priced.slowed + priced.exposed + priced.bubble));
      build.layers = model.layers;
      const PlanStep step = model.build(build);
      CompileOptions options{mesh, Layout::parse(layout), step.functions};
      options.threads_per_rank = 1;
      options.pipeline_schedule = schedule;
      options.machine = std::make_shared<const Machine>(machine);
      const Simulation s = simulate(*step.graph, options, machine);
      CHECK(s.seconds == Approx(priced.seconds).epsilon(1e-6));
      CHECK(s.bubble == Approx(priced.bubble).epsilon(1e-6));
      REQUIRE(s.pipelines.size() == 1);
      const PipelineReport& p = s.pipelines[0];
      const int64_t chunks = Layout::parse(layout).rules()[0].intervals;
      const bool splits = pipeline_schedule(schedule).splits_backward;
      CHECK(p.busy == (splits ? 3 : 2) * 4 * chunks);
      CHECK(p.ticks == p.busy + (splits ? 1 : 2) * (2 - 1));
      // Every stage runs each microbatch as often, one thing at a time. When it does nothing it
      // waits: for what another one has not made yet, or for what is on its way.
      std::map<int64_t, int64_t> ticks;
      std::map<int64_t, double> ends;
      double busy = 0, waiting = s.bubble;
      std::vector<StageTick> in_order = s.stage_ticks;
      std::stable_sort(in_order.begin(), in_order.end(),
                       [](const auto& a, const auto& b) { return a.begin < b.begin; });
      for (const StageTick& t : in_order) {
        ticks[t.stage] += t.microbatch >= 0;
        busy += t.seconds / 2;
        CHECK(t.begin >= ends[t.stage] - 1e-9);
        ends[t.stage] = t.begin + t.seconds;
      }
      for (const SimulatedAxes& axes : s.by_axes) waiting += axes.axes == "pipe" ? axes.exposed : 0;
      CHECK(ticks == std::map<int64_t, int64_t>{{0, p.busy}, {1, p.busy}});
      CHECK(s.seconds - busy >= s.bubble * (1 - 1e-6));
      CHECK(s.seconds - busy <= waiting * (1 + 1e-6));
      const Explanation e = explain(*step.graph, options, {}, &machine);
      const FunctionReport& train = e.functions.back();
      CHECK(train.time.bubble == Approx(s.bubble));
      REQUIRE(train.pipelines.size() == 1);
      CHECK(train.pipelines[0].ticks == p.ticks);
      double exposed = 0;
      for (const CollectiveReport& c : train.collectives) exposed += c.exposed;
      CHECK(exposed == Approx(train.time.exposed));
      for (const PlanAxes& axes : priced.by_axes) {
        int64_t sent = 0;
        for (const CollectiveReport& c : train.collectives)
          sent += c.axes == axes.axes ? c.bytes : 0;
        CHECK(static_cast<double>(axes.bytes) == Approx(static_cast<double>(sent)));
      }
    }
  }
}

TEST_CASE("plan: the transfers of a plan are what explain counts, layers together", "[plan]") {
  const PlanModel model = gpt_of(3, false);
  const Mesh mesh = Mesh::parse("a:2");
  const Layout layout = Layout::parse("heads,ff,vocab:a");
  const Machine machine = slow_links();
  PlanBuild build;
  const PricedPlan whole = price(model, mesh, layout, build, machine, true),
                   few = price(model, mesh, layout, build, machine);
  build.layers = model.layers;
  const PlanStep step = model.build(build);
  CompileOptions options{mesh, layout, step.functions};
  options.chunks = 1;
  const Explanation e = explain(*step.graph, options);
  REQUIRE(!whole.transfers.empty());
  bool repeats = false;
  for (const PlanTransfer& t : whole.transfers) {
    INFO(t.kind << " " << t.tensor);
    int64_t sent = 0;
    for (const CollectiveReport& c : e.functions.back().collectives) {
      std::string name;
      for (const char x : c.tensor) {
        const bool digit = std::isdigit(static_cast<unsigned char>(x));
        if (!digit || name.empty() || name.back() != '*') name += digit ? '*' : x;
      }
      if (c.kind == t.kind && name == t.tensor) sent += c.bytes;
    }
    CHECK(t.bytes == sent);
    repeats = repeats || t.tensor.find("block*") != std::string::npos;
    const auto same = std::find_if(few.transfers.begin(), few.transfers.end(), [&](const auto& o) {
      return o.kind == t.kind && o.tensor == t.tensor;
    });
    REQUIRE(same != few.transfers.end());
    CHECK(same->bytes == t.bytes);
  }
  CHECK(repeats);
}

TEST_CASE("plan: what is given for pipelines stays", "[plan]") {
  const Machine machine = slow_links();
  PlanModel model = gpt_of(8, false);
  model.schedules = {"gpipe"};
  const PricedPlan gpipe = plan(model, Mesh::parse("a:2"), machine, with_time()).best;
  REQUIRE(has_stages(gpipe));
  CHECK(gpipe.build.pipeline_schedule == "gpipe");
  CHECK(gpipe.settings == "scan=true pipeline_schedule=gpipe");
  model.loop_setting.clear();  // layers are built one by one
  CHECK(!has_stages(plan(model, Mesh::parse("a:2"), machine, with_time()).best));
  model = gpt_of(8, true);
  model.microbatches = {1};
  CHECK(!has_stages(plan(model, Mesh::parse("a:2"), machine, with_time()).best));
  // With a rule for it the dim is as any other.
  model = gpt_of(8, true);
  PlanOptions options = with_time();
  options.layout = Layout::parse("layers:-;*:auto");
  CHECK(!has_stages(plan(model, Mesh::parse("a:2"), machine, options).best));
  options.layout = Layout::parse("layers:a;*:auto");
  CHECK(has_stages(plan(model, Mesh::parse("a:2"), Machine::load("h100"), options).best));
  options.layout = Layout::parse("stage:auto");
  expect_usage({"[plan] no tensor has a dim 'stage'"},
               [&] { plan(model, Mesh::parse("a:2"), machine, options); });
}

TEST_CASE("plan: a pipeline's flags run as they are printed", "[plan][cli]") {
  const Folder f;
  f.write("slow.toml", slow_links().to_toml());
  const std::string model = "layers=4 d_model=768 heads=8 ff=3072 length=16 vocab=64 batch=4 ";
  expect_success(run_cli_in(f,
                            "plan gpt --devices 2 --machine slow.toml --plan-time 100 --json "
                            "p.json --set " +
                                model));
  const nlohmann::json best = json_of(f, "p.json")["best"];
  const std::string settings = best["settings"];
  INFO(best.dump(1));
  REQUIRE(settings.find("scan=true") == 0);
  CHECK(best["mesh"] == "pipe:2");
  CHECK(best["layout"].get<std::string>().find("layers") == 0);
  const std::string flags = fmt::format(
      "--mesh \"{}\" --layout \"{}\" --set {} microbatches={} ", best["mesh"].get<std::string>(),
      best["layout"].get<std::string>(), settings, best["microbatches"].get<int>());
  const CliResult verified = run_cli_in(f, "verify gpt " + flags + model);
  INFO(verified.out << verified.err);
  CHECK(verified.code == 0);
  // The same from `auto`, whose choice is kept in the cache and read again.
  const std::string cache = "TESSERA_CACHE=" + f.dir;
  for (int i = 0; i < 2; ++i) {
    const CliResult automatic = run_cli_in(
        f, "explain gpt --mesh pipe:2 --machine slow.toml --layout auto --set " + model, cache);
    INFO(automatic.out << automatic.err);
    CHECK(automatic.code == 0);
    CHECK(automatic.err.find("layout auto: " + best["layout"].get<std::string>()) == 0);
    CHECK(automatic.err.find("model.scan=true") != std::string::npos);
  }
  const CliResult one_by_one = run_cli_in(
      f, "plan gpt --devices 2 --machine slow.toml --json q.json --set scan=false " + model);
  CHECK(one_by_one.code == 0);
  CHECK(json_of(f, "q.json")["best"]["settings"] == "");
}

TEST_CASE("plan: the layers of a folder are dealt to stages where that is fastest", "[plan][cli]") {
  const Folder f;
  f.write("slow.toml", slow_links().to_toml());
  std::filesystem::create_directory(f("big"));
  f.write("big/config.json",
          R"({"model_type": "llama", "hidden_size": 768, "intermediate_size": 3072,
              "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
              "vocab_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-05,
              "rope_theta": 10000.0, "torch_dtype": "float32"})");
  const std::string keys = "length=16 batch=8 ";
  expect_success(run_cli_in(f,
                            "plan big --devices 2 --machine slow.toml --plan-time 100 --json "
                            "p.json --set " +
                                keys));
  const nlohmann::json report = nlohmann::json::parse(f.read("p.json")), best = report["best"];
  INFO(best.dump(1));
  CHECK(best["layout"].get<std::string>().find("layers") == 0);
  const std::string settings = best["settings"];
  CHECK(settings.find("scan") == std::string::npos);  // they are a loop already
  CHECK(settings == "pipeline_schedule=zb_h1");
  const std::string flags = fmt::format(
      "--mesh \"{}\" --layout \"{}\" --set microbatches={} {} ", best["mesh"].get<std::string>(),
      best["layout"].get<std::string>(), best["microbatches"].get<int>(), settings);
  expect_success(run_cli_in(f, "simulate big --machine slow.toml --json s.json " + flags + keys));
  const nlohmann::json simulated = nlohmann::json::parse(f.read("s.json"));
  CHECK(simulated["seconds"].get<double>() == Approx(best["seconds"].get<double>()));
  expect_failure(run_cli_in(f, "simulate big --machine slow.toml --stages 2 --set " + keys), 1,
                 {"--stages 2 needs a model with a key for its number of layers, and 'llama' has "
                  "none",
                  "--mesh \"pipe:2\" --layout \"layers:pipe\""});
  // Layers of two kinds that take turns have no loop.
  const std::string turns = "explain " TESSERA_SOURCE_DIR
                            "/tests/models/gemma2 --mesh pipe:2 --layout layers:pipe --set "
                            "length=16 microbatches=2";
  expect_failure(run_cli_in(f, turns), 1,
                 {"layout rule 'layers:pipe': the layers of 'gemma2' are of several kinds that "
                  "take turns, so they cannot be a loop"});
  expect_failure(run_cli_in(f, turns + " scan=true"), 1,
                 {"they are of 2 kinds that take turns; set scan to false"});
}

TEST_CASE("plan: the flags of every plan on the page have its time and memory", "[plan][cli]") {
  const Folder f;
  f.write("slow.toml", slow_links().to_toml());
  const std::string model =
      " --set layers=4 d_model=256 heads=8 ff=1024 length=256 vocab=512 scan=true --batch 16";
  std::set<std::string> kinds;
  for (const char* machine : {"h100 --memory 30MB", "slow.toml"}) {
    const std::string on = fmt::format("--machine {} ", machine);
    const CliResult page =
        run_cli_in(f, "plan gpt --devices 4 --plan-time 20 --json p.json " + on + model);
    expect_success(page);
    const nlohmann::json found = json_of(f, "p.json");
    std::vector<nlohmann::json> plans = {found["best"]};
    for (const char* others : {"usual", "runners_up"}) {
      for (const nlohmann::json& p : found[others]) plans.push_back(p);
    }
    std::istringstream lines(page.out.substr(0, page.out.find("break-even")));
    size_t pasted = 0;
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("--mesh");
      if (at == line.npos) continue;
      INFO(line);
      REQUIRE(pasted < plans.size());
      const nlohmann::json& plan = plans[pasted++];
      for (const char* flag : {"--zero", "--recompute", "microbatches", "layers:pipe"})
        if (line.find(flag) != line.npos) kinds.insert(flag);
      const std::string flags = " gpt " + on + line.substr(at) + model + " --json e.json";
      expect_success(run_cli_in(f, "simulate" + flags));
      const double simulated = json_of(f, "e.json")["seconds"];
      CHECK(simulated == Approx(plan["seconds"].get<double>()).epsilon(1e-9));
      const int64_t planned = plan["memory"]["total"];
      if (on.find("30MB") != on.npos && planned > 30'000'000) {  // a usual layout
        expect_failure(run_cli_in(f, "explain" + flags), 1, {"but --memory is 30.00 MB"});
        continue;
      }
      expect_success(run_cli_in(f, "explain" + flags));
      const nlohmann::json explained = json_of(f, "e.json");
      const double seconds = explained["functions"].back()["predicted"]["seconds"];
      CHECK(seconds == Approx(plan["seconds"].get<double>()).epsilon(1e-9));
      int64_t bytes = 0;
      for (const char* part : {"params", "state", "inputs", "transient"})
        bytes += explained["memory"][part].get<int64_t>();
      CHECK(bytes == planned);
    }
    CHECK(pasted == plans.size());
  }
  CHECK(kinds.size() >= 3);
  expect_success(run_cli_in(f,
                            "verify gpt --mesh data:2 --layout batch:data --recompute block "
                            "--batch 4 --set layers=2 d_model=16 heads=2 ff=32 length=8 vocab=32"));
}

TEST_CASE("plan: no plan takes less than its bound, nor than what the prices of others say",
          "[plan]") {
  Machine fast = slow_links();
  for (LinkTier& link : fast.links) link.latency = 1e-6, link.bandwidth *= 1e4;
  fast.overlap = {.possible = true, .compute = 1.3, .transfer = 1.4};
  const PlanModel model = gpt_of(8, true);
  for (const Machine& machine : {slow_links(), fast}) {
    const PlanOptions options = with_time();
    Candidates candidates(model, machine, options);
    const Stopwatch clock;
    CandidatePricer pricer(candidates, clock);
    Bounds bounds(candidates);
    const std::vector<Assignment> all = candidates.space().assignments(Mesh::parse("a:2;b:2"));
    std::mt19937_64 random(11);
    std::vector<std::pair<QueueEntry, double>> priced;
    size_t staged = 0, learned = 0, slowed = 0;
    for (int i = 0; i < 400 && priced.size() < 90; ++i) {
      // Few assignments, so that many candidates cut their dims alike.
      Candidate c;
      c.assignment = candidates.add(all[(random() % 12) * all.size() / 12]);
      const std::vector<Storage> storages = candidates.storages(c.assignment);
      c.storage = storages[random() % storages.size()];
      c.microbatch_option = random() % candidates.microbatch_options();
      const bool has_stages = candidates.has_stages(c.assignment);
      if (has_stages) {
        c.schedule = model.schedules[random() % model.schedules.size()];
        const std::vector<int64_t> chunks = candidates.chunk_options(c.assignment, c.schedule);
        if (chunks.empty()) continue;
        c.chunks = chunks[random() % chunks.size()];
        if (candidates.microbatches(c.microbatch_option) == 1) continue;
      }
      const std::vector<PricedCandidate> price = pricer.price(std::vector<Candidate>{c});
      if (!price[0].error.empty()) continue;
      staged += has_stages;
      QueueEntry entry;
      entry.candidate = c;
      bounds.estimate(entry);
      slowed += entry.slowed > 0;
      priced.emplace_back(entry, price[0].plan.seconds);
      bounds.learn(c, price[0].plan);
    }
    CHECK(priced.size() >= 60);
    CHECK(staged >= 10);
    for (const auto& [entry, seconds] : priced) {
      const Candidate& c = entry.candidate;
      INFO(candidates.assignment(c).mesh.to_string()
           << " " << candidates.rules(c) << ", ZeRO " << c.storage.stage << " over "
           << candidates.stored_over(c) << ", " << candidates.microbatches(c.microbatch_option)
           << " microbatches, " << c.chunks << " chunks");
      // Over several axes it is taken for granted that storage is gathered over all at once.
      if (c.storage.axes.size() < 2) CHECK(entry.bound <= seconds * (1 + 1e-9));
      CHECK(bounds.of(entry) <= std::max(entry.bound, seconds * (1 + 1e-9)));
      CHECK(bounds.of_assignment(c.assignment) <= entry.bound * (1 + 1e-9));
      learned += bounds.of(entry) > entry.bound * (1 + 1e-6);
    }
    CHECK(learned >= 20);
    CHECK((slowed > 5) == (machine.overlap.compute > 1));
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
