// The planner against exhaustive search, and what it says.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "cli/cli_run.h"
#include "plan/plan_models.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/explain.h"

namespace tessera::test {

TEST_CASE("plan: no legal layout of these dims is faster than the plan", "[plan]") {
  const PlanModel model = gpt_model(1, options_of(512, 128));
  const Mesh mesh = Mesh::parse("data:2;model:2");
  PlanOptions options;
  options.seconds = 300;
  options.layout = Layout::parse("batch,heads,ff,vocab:auto");
  const Plan best = plan(model, mesh, a100(), options);
  CHECK(best.optimal);
  CHECK(best.gap() == 0);
  CHECK(best.best.whole);
  const PlanStep step = model.build({});
  int legal = 0;
  for (const Layout& layout : legal_layouts(*step.graph, mesh, step.functions)) {
    const bool is_free =
        std::all_of(layout.rules().begin(), layout.rules().end(), [](const LayoutRule& rule) {
          return std::string(" batch heads ff vocab ").find(" " + rule.dim + " ") !=
                 std::string::npos;
        });
    if (!is_free) continue;
    const PricedPlan p = price(model, mesh, layout, {}, a100());
    INFO(layout.to_string() << " against " << best.best.layout);
    CHECK(p.seconds >= best.best.seconds);
    CHECK(p.seconds >= best.bound);
    ++legal;
  }
  CHECK(legal >= 10);
  for (const char* layout : {"batch:data;heads,ff,vocab:model", "batch:data+model",
                             "batch:data;heads,ff,vocab:model;@state d_model:data"}) {
    INFO(layout);
    CHECK(price(model, mesh, Layout::parse(layout), {}, a100()).seconds >= best.best.seconds);
  }
  const Plan of_graph = plan(*step.graph, step.functions, mesh, a100(), options);
  CHECK(of_graph.best.seconds == best.best.seconds);
}

TEST_CASE("plan: tables of one and two layers agree with the whole model to the byte", "[plan]") {
  const PlanModel model = gpt_model(5, options_of(64, 32));
  const Mesh mesh = Mesh::parse("data:4;model:2");
  for (const char* layout :
       {"batch:data", "batch:data;heads,ff,vocab:model", "batch:data;length:model",
        "batch:data;heads,ff,vocab:model;@params d_model:data"}) {
    const PricedPlan table = price(model, mesh, Layout::parse(layout), {}, a100());
    const PricedPlan whole = price(model, mesh, Layout::parse(layout), {}, a100(), true);
    INFO(layout);
    CHECK_FALSE(table.whole);
    CHECK(whole.whole);
    CHECK(table.params == whole.params);
    CHECK(table.state == whole.state);
    CHECK(table.inputs == whole.inputs);
    REQUIRE(table.by_axes.size() == whole.by_axes.size());
    for (const PlanAxes& axes : whole.by_axes) {
      const auto same = std::find_if(table.by_axes.begin(), table.by_axes.end(),
                                     [&](const PlanAxes& x) { return x.axes == axes.axes; });
      REQUIRE(same != table.by_axes.end());
      CHECK(same->bytes == axes.bytes);
    }
    CHECK(table.seconds == Approx(whole.seconds).epsilon(0.05));
    CHECK(static_cast<double>(table.transient) ==
          Approx(static_cast<double>(whole.transient)).epsilon(0.05));
  }
}

TEST_CASE("plan: layers that can be a loop are priced as one, and lowered as they are", "[plan]") {
  nn::GptOptions o = options_of(2048, 512);
  PlanModel model = gpt_model(6, o);
  model.reshard_of_loop = "block";
  model.build = [o](const PlanBuild& build) {
    nn::GptOptions size = o;
    size.scan = build.looped;
    return gpt_step(build, size);
  };
  const Mesh mesh = Mesh::parse("data:8");
  for (const char* layout : {"batch:data", "batch:data;@params d_model:data"}) {
    INFO(layout);
    PlanBuild build;
    build.reshard_after_forward = "block";
    const PricedPlan table = price(model, mesh, Layout::parse(layout), build, a100());
    const PricedPlan whole = price(model, mesh, Layout::parse(layout), build, a100(), true);
    CHECK(table.params == whole.params);
    CHECK(table.state == whole.state);
    REQUIRE(table.by_axes.size() == whole.by_axes.size());
    CHECK(table.by_axes[0].bytes == whole.by_axes[0].bytes);
    // In a straight line buckets of several layers save starts that a loop pays in each iteration.
    CHECK(table.seconds == Approx(whole.seconds).epsilon(0.25));
  }
  PlanOptions options;
  options.layout = Layout::parse("batch,ff:auto");
  const Plan best = plan(model, mesh, a100(), options);
  CHECK(best.optimal);
  CHECK(best.best.whole);
}

TEST_CASE("plan: splitting length over the model axis gathers keys and values", "[plan]") {
  const PlanModel model = gpt_model(1, options_of(512, 512));
  const Mesh mesh = Mesh::parse("model:4");
  const PricedPlan heads = price(model, mesh, Layout::parse("heads,ff,vocab:model"), {}, a100());
  const PricedPlan length = price(model, mesh, Layout::parse("length:model"), {}, a100());
  const auto gathers = [](const PricedPlan& p) {
    int64_t bytes = 0;
    for (const PlanTransfer& t : p.transfers) {
      const bool attention = t.tensor.find("attention") != std::string::npos;
      if (t.kind == "all_gather" && attention) bytes += t.bytes;
    }
    return bytes;
  };
  CHECK(gathers(length) > 0);
  CHECK(gathers(heads) == 0);
}

TEST_CASE("plan: of long sequences keys go round where that is cheaper than gathering them",
          "[plan]") {
  nn::GptOptions o = options_of(512, 16384);
  o.batch = 1;
  const PlanModel model = gpt_model(1, o);
  const Mesh mesh = Mesh::parse("cp:4");
  PlanOptions options;
  options.seconds = 100;
  options.layout = Layout::parse("length,memory_length:auto");
  const Plan best = plan(model, mesh, a100(), options);
  CHECK(best.optimal);
  const PricedPlan gathered = price(model, mesh, Layout::parse("length:cp"), {}, a100()),
                   round = price(model, mesh, Layout::parse("length,memory_length:cp"), {}, a100());
  CHECK(best.best.seconds <= std::min(gathered.seconds, round.seconds) * (1 + 1e-9));
  CHECK(best.best.layout.find("length") == 0);
  const auto exposed = [](const PricedPlan& p) { return p.by_axes.at(0).exposed; };
  CHECK(exposed(round) < exposed(gathered));
  // Few tokens a rank: computing hides nothing, and what goes round is sent again for backward.
  o.length = 256;
  const PlanModel brief = gpt_model(1, o);
  CHECK(price(brief, mesh, Layout::parse("length:cp"), {}, a100()).seconds <
        price(brief, mesh, Layout::parse("length,memory_length:cp"), {}, a100()).seconds);
}

TEST_CASE("plan: memory decides on storage and recompute, and says what fits", "[plan]") {
  PlanModel model = gpt_model(1, options_of(256, 128));
  model.recompute_options = {{"none", "none"}, {"block", "none"}};
  const Mesh mesh = Mesh::parse("data:4");
  PlanOptions options;
  options.seconds = 60;
  options.layout = Layout::parse("batch:data");
  const Plan free = plan(model, mesh, a100(), options);
  CHECK(free.best.layout.find("batch:data") == 0);
  options.memory = free.best.memory() * 2 / 3;
  const Plan tight = plan(model, mesh, a100(), options);
  CHECK(tight.best.memory() <= *options.memory);
  CHECK(tight.best.seconds >= free.best.seconds);
  CHECK((tight.best.build.recompute != "none" || tight.best.zero > 0));
  options.memory = 20000;
  options.seconds = 5;
  expect_usage(
      {"[plan] nothing that was tried fits into 20.0 kB a device", "the least is", "ms a step"},
      [&] { plan(model, mesh, a100(), options); });
  PlanModel given = model;
  given.recompute_options.resize(1);
  given.microbatches.resize(1);
  expect_usage({"recompute and microbatches are given here: where they are not, `tessera plan`"},
               [&] { plan(given, mesh, a100(), options); });
  std::string message;
  try {
    plan(model, mesh, a100(), options);
  } catch (const Error& e) {
    message = e.what();
  }
  options.memory = std::stoll(message.substr(message.find("--memory ") + 9));
  CHECK(plan(model, mesh, a100(), options).best.memory() <= *options.memory);  // that works
  message.clear();
  for (options.memory = tight.best.memory(); message.empty();
       *options.memory -= *options.memory / 10) {
    try {
      plan(model, mesh, a100(), options);
    } catch (const Error& e) {
      message = e.what();
    }
  }
  for (const char* words : {"[plan] nothing that was tried fits into", "the least is", "--memory",
                            "mesh 'data:4'", "layout 'batch:data"}) {
    INFO(message);
    CHECK(message.find(words) != std::string::npos);
  }
}

TEST_CASE("plan: a loop that layers are priced by is not split", "[plan][cli]") {
  Folder f;
  // So many layers that they are priced as a loop, in less memory than they take whole.
  for (const std::string memory : {"300kB", "1MB"}) {
    const CliResult r = run_cli_in(
        f,
        "plan gpt --devices 8 --machine h100 --time 1 --batch 8 --set layers=16 d_model=64 "
        "heads=4 ff=256 length=16 vocab=64 --memory " +
            memory);
    INFO(r.out << r.err);
    CHECK((r.code == 0 || r.err.find("the least is") != std::string::npos));
    CHECK((r.out + r.err).find("layers:") == std::string::npos);
  }
}

TEST_CASE("plan: single dims are left to the planner, and errors name them", "[plan]") {
  const PlanModel model = gpt_model(1, options_of(256, 64));
  const Mesh mesh = Mesh::parse("data:2;model:2");
  PlanOptions options;
  options.layout = Layout::parse("batch:data;heads,ff:auto");
  const Plan some = plan(model, mesh, a100(), options);
  CHECK(some.best.layout.find("batch:data") == 0);
  CHECK(some.best.rules.find("vocab") == std::string::npos);
  CHECK(some.space <= 4 * 4);
  for (const DimAlternative& a : some.alternatives) CHECK((a.dim == "heads" || a.dim == "ff"));
  options.layout = Layout::parse("hedas:auto");
  expect_usage({"[plan] no tensor has a dim 'hedas'", "did you mean 'heads'"},
               [&] { plan(model, mesh, a100(), options); });
  options.layout = Layout::parse("batch:data;length:nowhere;ff:auto");
  expect_usage({"nowhere"}, [&] { plan(model, mesh, a100(), options); });
  expect_usage({"[plan] 0 devices"}, [&] { plan(model, 0, a100()); });
  expect_usage({"[plan] 8191 devices have no mesh", "such as 4096"},
               [&] { plan(model, 8191, a100()); });
}

TEST_CASE("plan: of all meshes with some devices, none of the usual is faster", "[plan]") {
  const PlanModel model = gpt_model(8, options_of(256, 64));
  PlanOptions options;
  options.seconds = 5;
  const Plan best = plan(model, 8, a100(), options);
  CHECK(best.best.mesh.size() == 8);
  CHECK(best.best.whole);
  CHECK(best.bound <= best.table_seconds);
  const PricedPlan data =
      price(model, Mesh::parse("data:8"), Layout::parse("batch:data"), {}, a100());
  const PricedPlan model_only =
      price(model, Mesh::parse("model:8"), Layout::parse("heads,ff,vocab:model"), {}, a100());
  CHECK(best.best.seconds <= std::min(data.seconds, model_only.seconds));
  const std::string page = to_string(best);
  for (const char* words : {"best plan on 8 a100-80gb", "--mesh", "--layout", "where the step's",
                            "memory of a rank", "runners-up", "if a dim were split otherwise"}) {
    INFO(page << "\nmissing: " << words);
    CHECK(page.find(words) != std::string::npos);
  }
  CHECK(page.find("does not fit") == page.npos);
  std::set<std::string> shown = {train_flags(best.best, true)};
  for (const PricedPlan& p : best.runners_up) CHECK(shown.insert(train_flags(p, true)).second);
  Plan tight = best;  // a runner-up can turn out larger when it is lowered whole
  tight.alternatives.clear();
  REQUIRE(!tight.runners_up.empty());
  tight.memory_limit = tight.runners_up[0].memory();
  tight.runners_up[0].transient += 1;
  CHECK(to_string(tight).find(", does not fit\n") != page.npos);
  CHECK(compare(best, data).find("the largest transfers of a step") != std::string::npos);
}

TEST_CASE("plan: devices that are better left idle are, and fixed rules find their axis",
          "[plan]") {
  nn::GptOptions o = options_of(32, 16);
  o.heads = 4;
  o.ff = 64;
  const PlanModel model = gpt_model(2, o);
  PlanOptions options;
  options.seconds = 100;
  for (const int devices : {4, 7}) {
    INFO(devices << " devices");
    const Plan found = plan(model, devices, a100(), options);
    CHECK(found.optimal);
    for (const DimAlternative& a : found.alternatives) CHECK((!a.fits || a.penalty >= 0));
    CHECK(found.saved_per_gib == 0);  // nothing is near the limit
    const Mesh mesh = Mesh::parse("data:" + std::to_string(devices));
    CHECK(found.table_seconds <= price(model, mesh, Layout(), {}, a100()).seconds);
  }
  options.layout = Layout::parse("batch:data");
  const Plan fixed = plan(model, 4, a100(), options);
  CHECK(fixed.best.layout.find("batch:data") != std::string::npos);
  CHECK(fixed.table_seconds <=
        price(model, Mesh::parse("data:4"), options.layout, {}, a100()).seconds);
}

TEST_CASE("plan: the command line prints a page and JSON, and train takes auto", "[plan][cli]") {
  const Folder f;
  const std::string model = "gpt --set layers=1 d_model=64 heads=4 ff=128 length=32 batch=8 ";
  expect_success(run_cli_in(f, "plan " + model +
                                   "--mesh data:2 --machine a100-80gb --json p.json --time 100 "
                                   "--html p.html --why-not length:data"));
  const nlohmann::json report = json_of(f, "p.json");
  CHECK(f.read("p.html").find("best plan on 2 a100-80gb devices") != std::string::npos);
  CHECK(report["best"]["mesh"] == "data:2");
  CHECK(report["why_not"]["layout"] == "length:data");
  CHECK(report["why_not"]["seconds"] >= report["best"]["seconds"]);
  CHECK(report["optimal"] == true);
  const CliResult other = run_cli_in(
      f, "plan " + model +
             "--devices 2 --machine a100-80gb --time 1 --why-not \"batch:a;ff:b\" --why-not-mesh "
             "\"a:2;b:1\"");
  CHECK(other.code == 0);
  CHECK(other.out.find("why not --mesh \"a:2;b:1\" --layout \"batch:a;ff:b\"") !=
        std::string::npos);
  const CliResult stages = run_cli_in(
      f,
      "plan gpt --set layers=2 d_model=64 heads=4 ff=128 length=32 batch=8 --devices 2 --machine "
      "a100-80gb --time 1 --why-not layers:pipe --why-not-mesh pipe:2");
  CHECK(stages.out.find("why not --mesh \"pipe:2\" --layout \"layers:pipe\" --set ") !=
        std::string::npos);
  CHECK(stages.out.find("scan=true") != std::string::npos);
  expect_success(run_cli_in(f, "plan " + model +
                                   "--mesh data:2 --machine a100-80gb --time 1 "
                                   "--microbatch-size auto --memory 1GB --set recompute=auto"));
  expect_failure(run_cli_in(f, "plan " + model + "--devices 2 --why-not-mesh a:2"), 1,
                 {"--why-not-mesh 'a:2' is the mesh of a --why-not layout; give that too"});
  expect_failure(run_cli_in(f, "plan " + model + "--devices 2 --why-not \"batch:data;*:auto\""), 1,
                 {"--why-not 'batch:data;*:auto' is priced as it stands, and '*:auto' leaves it "
                  "open"});
  expect_failure(run_cli_in(f, "plan " + model + "--mesh data:2 --microbatch-size 2"), 1,
                 {"--microbatch-size 2: the planner chooses that", "--set microbatches=N"});
  const CliResult parts =
      run_cli_in(f,
                 "explain " + model +
                     "--mesh data:2 --machine a100-80gb --layout \"batch:data;ff:auto\" "
                     "--microbatch-size 2",
                 "TESSERA_CACHE=" + f.dir);
  CHECK(parts.out.find("8 examples = 2 in a microbatch x 2 data ranks x 2 accumulated") !=
        std::string::npos);
  expect_failure(run_cli_in(f, "plan " + model + "--mesh data:2 --devices 4"), 1,
                 {"--devices 4 and --mesh 'data:2': give one of the two"});
  const CliResult explained =
      run_cli_in(f, "explain " + model + "--mesh data:2 --machine a100-80gb --layout auto",
                 "TESSERA_CACHE=" + f.dir);
  CHECK(explained.code == 0);
  CHECK(explained.err.find("layout auto: ") == 0);
  CHECK(explained.out.find("auto") == std::string::npos);
  expect_failure(run_cli_in(f, "plan " + model + "--mesh data:2 --time 0"), 1,
                 {"--plan-time is 0 s; it must be more than 0"});
}

TEST_CASE("plan: train runs the planner's layout, from its cache, or the fastest of some",
          "[plan][cli]") {
  const Folder f;
  const std::string cache = "TESSERA_CACHE=" + f.dir;
  const std::string train =
      "train gpt --set layers=1 d_model=32 heads=2 ff=64 length=16 batch=4 vocab=256 --steps 2 "
      "--machine a100-80gb --mesh data:2 --data text ";
  f.write("text", std::string(4000, 'x'));
  const CliResult first = run_cli_in(f, train + "--layout auto", cache);
  CHECK(first.code == 0);
  CHECK(first.err.find("layout auto: ") == 0);
  int kept = 0;
  for (const auto& file : std::filesystem::directory_iterator(f.dir + "/plans")) {
    nlohmann::json plan = nlohmann::json::parse(std::ifstream(file.path()));
    plan["plans"][0]["layout"] = "length:data";
    std::ofstream(file.path()) << plan.dump();
    ++kept;
  }
  CHECK(kept == 1);
  CHECK(run_cli_in(f, train + "--layout auto", cache).err == "layout auto: length:data\n");
  // Another time to search in is another question.
  CHECK(run_cli_in(f, train + "--layout auto --plan-time 20", cache).err == first.err);
  const CliResult tuned = run_cli_in(f, train + "--layout auto --tune 2", cache);
  CHECK(tuned.code == 0);
  CHECK(tuned.err.find("tune: ") == 0);
  expect_failure(run_cli_in(f, train + "--layout batch:data --tune 2", cache), 1,
                 {"--tune 2 tries what the planner finds", "write --layout auto"});
  expect_failure(run_cli_in(f, train + "--layout auto --tune 1", cache), 1,
                 {"--tune 1: it compares plans, at least 2"});
}

}  // namespace tessera::test
