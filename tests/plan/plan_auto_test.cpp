// `auto` in layouts on the command line: the planner's whole answer, not the layout alone.
#include <fmt/format.h>

#include "cli/cli_run.h"
#include "lower/layout/rule_layouts.h"
#include "plan/known_layouts.h"
#include "plan/plan_models.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr const char* kModel =
    "gpt --set layers=2 d_model=64 heads=4 ff=256 length=64 vocab=256 batch=16 seed=3 ";
/// With time for a proof on a busy machine, too: then there is one answer.
constexpr const char* kOn = "--mesh data:2 --machine a100-80gb --plan-time 300 ";

nlohmann::json read_json(const Folder& f, const std::string& name) { return json_of(f, name); }

void has(const std::string& text, const std::string& part) {
  INFO("missing: " << part << " in " << text);
  CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("auto: what has to be recomputed to fit is, and trains like the plain job",
          "[plan][cli]") {
  const Folder f;
  f.write("text", some_text() + some_text());
  const std::string cache = "TESSERA_CACHE=" + f.dir,
                    train = std::string("train ") + kModel + kOn + "--data text --steps 3 ";
  expect_success(run_cli_in(f, train + "--layout batch:data --log plain.jsonl", cache));
  const std::string limit = "--memory 3MB ";
  expect_success(run_cli_in(f, std::string("plan ") + kModel + kOn + limit + "--json p.json"));
  const nlohmann::json best = read_json(f, "p.json")["best"];
  CHECK(best["recompute"] != "none");
  CHECK(best["microbatches"] > 1);
  const CliResult run =
      run_cli_in(f, train + limit + "--layout auto --log auto.jsonl --json r.json", cache);
  INFO(run.out << run.err);
  CHECK(run.code == 0);
  has(run.err, "layout auto: ");
  const nlohmann::json config = read_json(f, "r.json")["config"];
  CHECK(config["train.recompute"] == best["recompute"]);
  CHECK(config["train.microbatches"] == fmt::format("{}", best["microbatches"].get<int>()));
  CHECK(config["layout.rules"] == Layout::parse(best["layout"].get<std::string>()).to_string());
  has(f.read("auto.jsonl"), "\"train.recompute\":\"" + best["recompute"].get<std::string>());
  // What the page says, as flags, is the same Program.
  expect_success(run_cli_in(f,
                            train + limit + "--json flags.json --layout \"" +
                                best["layout"].get<std::string>() + "\" --set " +
                                fmt::format("recompute={} reshard_after_forward={} microbatches={}",
                                            best["recompute"].get<std::string>(),
                                            best["reshard_after_forward"].get<std::string>(),
                                            best["microbatches"].get<int>()),
                            cache));
  CHECK(read_json(f, "flags.json")["program"] == read_json(f, "r.json")["program"]);
  const auto plain = losses_of(f, "plain.jsonl"), planned = losses_of(f, "auto.jsonl");
  REQUIRE(plain.size() == 3);
  for (const auto& [step, loss] : plain) CHECK(planned.at(step) == Approx(loss).epsilon(1e-5));
}

TEST_CASE("auto: what the user set stays", "[plan][cli]") {
  const Folder f;
  const std::string cache = "TESSERA_CACHE=" + f.dir,
                    explain = std::string("explain ") + kModel + kOn + "--layout auto ";
  const CliResult parts = run_cli_in(f, explain + "--set microbatches=4 recompute=none", cache);
  INFO(parts.out << parts.err);
  CHECK(parts.code == 0);
  has(parts.out, "x 4 accumulated");
  CHECK(parts.err.find("--set") == std::string::npos);
  expect_failure(run_cli_in(f,
                            std::string("explain ") + kModel + "microbatches=1 recompute=none " +
                                kOn + "--layout auto --memory 3MB",
                            cache),
                 1, {"nothing that was tried fits into 3.00 MB", "microbatches are given here"});
  const CliResult chosen = run_cli_in(f,
                                      std::string("explain ") + kModel + "recompute=auto " + kOn +
                                          "--layout auto --microbatch-size auto --memory 3MB",
                                      cache);
  INFO(chosen.out << chosen.err);
  CHECK(chosen.code == 0);
  has(chosen.err, "train.recompute=");
  has(chosen.err, "train.microbatches=");
  const CliResult sized = run_cli_in(
      f,
      std::string("explain ") + kModel + kOn + "--microbatch-size 2 --layout \"batch:data;*:auto\"",
      cache);
  has(sized.out, "16 examples = 2 in a microbatch x 2 data ranks x 4 accumulated");
}

TEST_CASE("auto: sweep and verify take the whole plan", "[plan][cli]") {
  const Folder f;
  const std::string cache = "TESSERA_CACHE=" + f.dir;
  expect_success(run_cli_in(f,
                            std::string("sweep ") + kModel + kOn +
                                "--layouts auto --memory 3MB --steps 2 --budget 60s --out s.csv",
                            cache));
  has(f.read("s.csv"), "train.recompute=");
  CHECK(f.read("s.csv").find("needs") == std::string::npos);
  const CliResult verified = run_cli_in(
      f, "verify gpt --mesh data:2 --machine a100-80gb --layout auto --steps 2 --json v.json",
      cache);
  INFO(verified.out << verified.err);
  CHECK(verified.code == 0);
  CHECK(read_json(f, "v.json")["layouts"] == 1);
}

TEST_CASE("auto: plan keeps the rules of a file", "[plan][cli]") {
  const Folder f;
  f.write("job.toml", R"([model]
name = "gpt"
layers = 1
d_model = 64
heads = 4
ff = 128
length = 32
[train]
batch = 8
[layout]
mesh = "data:2;model:2"
batch = "data"
)");
  expect_success(run_cli_in(f, "plan job.toml --machine a100-80gb --time 2 --json p.json"));
  const nlohmann::json best = read_json(f, "p.json")["best"];
  CHECK(best["mesh"] == "data:2;model:2");
  CHECK(best["rules"].get<std::string>().find("batch:data") == 0);
  expect_success(run_cli_in(
      f,
      "plan job.toml --machine a100-80gb --time 2 --layout \"batch:model;*:auto\" --json p.json"));
  CHECK(read_json(f, "p.json")["best"]["rules"].get<std::string>().find("batch:model") == 0);
  expect_success(
      run_cli_in(f, "plan job.toml --machine a100-80gb --time 2 --devices 4 --json p.json"));
  has(read_json(f, "p.json")["best"]["rules"].get<std::string>(), "batch:data");
}

TEST_CASE("auto: how gradients are added up is part of a plan", "[plan]") {
  const Mesh mesh = Mesh::parse("data:4");
  const Layout layout = Layout::parse("batch:data;@state d_model:data");
  PlanModel model = gpt_in_parts(1, options_of(64, 32));
  const auto sent = [&](const PlanModel& m, int64_t parts) {
    PlanBuild build;
    build.microbatches = parts;
    return price(m, mesh, layout, build, a100()).by_axes.at(0).bytes;
  };
  PlanModel wide = model, each = model;
  wide.wide_grad_reduce = true;
  each.reduce_each_microbatch = true;
  CHECK(sent(wide, 1) > sent(model, 1) * 6 / 5);
  CHECK(sent(each, 1) == sent(model, 1));
  CHECK(sent(each, 4) > sent(model, 4) * 6 / 5);
  PlanBuild build;
  build.microbatches = 4;
  CHECK(price(each, mesh, layout, build, a100()).memory() <
        price(model, mesh, layout, build, a100()).memory());
  PlanModel serial = model, away = model;
  serial.overlap = false;
  away.offload_state = true;
  CHECK(price(serial, mesh, layout, {}, a100()).seconds >
        price(model, mesh, layout, {}, a100()).seconds);
  CHECK(price(away, mesh, layout, {}, a100()).state <
        price(model, mesh, layout, {}, a100()).state / 4);
}

TEST_CASE("auto: gradients of each microbatch are reduced into slices", "[plan]") {
  PlanModel model = gpt_in_parts(3, options_of(128, 64));
  const Mesh mesh = Mesh::parse("data:8");
  const Layout layout = Layout::parse("batch:data;@params d_model:data");
  PlanBuild build;
  build.microbatches = 2;
  const PricedPlan once = price(model, mesh, layout, build, a100(), true);
  build.reduce_each_microbatch = true;
  const PricedPlan each = price(model, mesh, layout, build, a100(), true);
  const auto sent = [](const PricedPlan& p, const char* kind) {
    int64_t bytes = 0;
    for (const PlanTransfer& t : p.transfers) bytes += t.kind == kind ? t.bytes : 0;
    return bytes;
  };
  CHECK(sent(each, "reduce_scatter") > 0);
  CHECK(sent(each, "all_reduce") < sent(each, "reduce_scatter") / 10);
  CHECK(each.transient < once.transient * 9 / 10);
  CHECK(each.settings == "grad_reduce=microbatch");

  // Where memory asks for it, a plan does so; without that choice the best plan is no faster.
  model.microbatches = {1, 2, 4};
  PlanOptions options;
  options.memory = each.memory();
  options.layout = Layout::parse("batch:data");
  const auto seconds = [&](bool may) -> double {
    model.may_reduce_each_microbatch = may;
    try {
      const Plan found = plan(model, mesh, a100(), options);
      CHECK(found.best.memory() <= *options.memory);
      return found.best.seconds;
    } catch (const Error&) {
      CHECK(!may);
      return 1e300;
    }
  };
  CHECK(seconds(true) <= seconds(false));
}

TEST_CASE("auto: in caches, more microbatches may be faster", "[plan]") {
  PlanModel model = gpt_in_parts(1, options_of(64, 64));
  model.microbatches = {1, 2, 4, 8, 16};
  const Machine machine = Machine::parse(
      "format = 2\nname = \"caches\"\nmemory = 8000000000\n"
      "[[memory_rate]]\nup_to = 4e5\nbandwidth = 1e12\n[[memory_rate]]\nbandwidth = 5e9\n"
      "[[matmul]]\ndtype = \"bfloat16\"\nflops = 1e12\n[[matmul]]\ndtype = \"float32\"\n"
      "flops = 1e12\n[[link]]\nname = \"node\"\nlatency = 1e-6\nbandwidth = 1e10\n",
      "caches");
  CHECK(machine.has_caches());
  const Mesh mesh = Mesh::parse("data:2");
  const Plan found = plan(model, mesh, machine, {});
  PlanBuild build = found.best.build;
  double one = 0;
  for (const int64_t m : model.microbatches) {
    build.microbatches = m;
    const double seconds =
        price(model, mesh, Layout::parse(found.best.layout), build, machine).seconds;
    if (m == 1) one = seconds;
    INFO(m << " microbatches");
    CHECK(found.table_seconds <= seconds * (1 + 1e-9));
  }
  CHECK(found.best.build.microbatches > 1);
  CHECK(found.table_seconds < one);
}

TEST_CASE("auto: layouts that people use, and their names", "[plan]") {
  const PlanModel model = gpt_in_parts(2, options_of(4096, 1024));
  const PlanOptions options;
  const Candidates candidates(model, a100(), options);
  const auto bit = [&](const char* dim) { return DimSet{1} << candidates.summary().find(dim); };
  bool data = false, hybrid = false, tensor = false;
  for (const Assignment& a : KnownLayouts(candidates).on_any_mesh(16)) {
    CHECK(a.mesh.size() == 16);
    data = data || a.picks == std::vector<DimSet>{bit("batch")};
    hybrid = hybrid || a.picks == std::vector<DimSet>{bit("batch"), bit("batch")};
    tensor = tensor || (a.picks.size() == 2 && a.picks[0] == bit("batch") &&
                        (a.picks[1] & bit("ff")) != 0 && (a.picks[1] & bit("batch")) == 0);
  }
  CHECK(data);
  CHECK(hybrid);
  CHECK(tensor);
  PricedPlan p;
  p.mesh = Mesh::parse("pod:4;data:8;model:2");
  p.rules = "batch:pod+data;heads,ff:model";
  CHECK(kind_of(p, "batch") == "data parallel over 32, heads,ff over 2");
  p.zero = 1;
  p.over = "data";
  CHECK(kind_of(p, "batch") == "data parallel over 32 with ZeRO-1, heads,ff over 2");
  p.zero = 3;
  CHECK(kind_of(p, "batch") == "HSDP over 4 x 8, heads,ff over 2");
  p.over = "pod+data";
  CHECK(kind_of(p, "batch") == "FSDP over 32, heads,ff over 2");
  p.rules = "";
  p.mesh = Mesh::parse("data:1");
  p.zero = 0;
  CHECK(kind_of(p, "batch") == "one device");
}

TEST_CASE("auto: dims that claim one axis are a kind of error of their own", "[plan]") {
  const PlanModel model = gpt_model(1, options_of(64, 32));
  CHECK_THROWS_AS(price(model, Mesh::parse("a:2"), Layout::parse("batch,d_model:a"), {}, a100()),
                  Contradiction);
  CHECK_THROWS_AS(price(model, Mesh::parse("a:2"), Layout::parse("bacth:a"), {}, a100()), Error);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
