// Rules for segments of a model that the planner finds.
#include "cli/cli_run.h"
#include "plan/plan_models.h"
#include "plan/segments.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Tensor parallelism of long sequences: what is between the products is the same on all ranks.
PlanModel long_model(int64_t layers) {
  nn::GptOptions o = options_of(4096, 8192);
  o.heads = 32;
  o.vocab = 50304;
  o.batch = 1;
  return gpt_model(layers, o);
}

PlanOptions tensor_parallel() {
  PlanOptions options;
  options.seconds = 100;
  options.layout = Layout::parse("heads,ff,vocab:model;length:auto");
  return options;
}

const Machine& h100() {
  static const Machine machine = Machine::load("h100");
  return machine;
}

const Mesh kModel = Mesh::parse("model:8");

std::vector<std::string> texts(const std::vector<SegmentRule>& rules) {
  std::vector<std::string> all;
  for (const SegmentRule& rule : rules) all.push_back(rule.text);
  return all;
}

TEST_CASE("plan: segments are what shares a word of its names, scopes first", "[plan]") {
  Graph g;
  const Dim rows("rows", 64), in("in", 32), mid("mid", 16);
  Tensor x = g.input("x", {rows, in}, DType::float32);
  const Tensor w = g.parameter("w", {in, mid}, nn::zeros(), DType::float32);
  {
    const Scope scope(g, "first", 0, 2);
    x = tanh(x);
  }
  const Tensor loss = sum_all(einsum({sigmoid(x).named("last"), w}, {rows, mid}));
  const std::vector<FunctionSpec> functions = {{"f", {loss}, false}};
  const StepSummary summary = summarize_step({g, functions}, {g, functions}, 1, h100());
  const auto rules = [&](const std::string& fixed, const std::string& mesh, DimSet on_last = 0) {
    const Space space(summary, Layout::parse(fixed));
    Assignment a = {Mesh::parse(mesh), {}};
    a.picks.resize(a.mesh.axes().size());
    a = space.with_fixed(a);
    a.picks.back() |= on_last;
    return texts(segment_rules(g, summary, space, a));
  };
  // x, tanh and sigmoid are whole on `a`; the product is not.
  CHECK(rules("mid:a;rows:auto", "a:4") ==
        std::vector<std::string>{"@/*first*/ rows:a", "@/*last*/ rows:a"});
  // In addition to the axes that the dim has already.
  CHECK(rules("mid:a;rows:auto", "a:4;b:2", DimSet{1} << summary.find("rows")) ==
        std::vector<std::string>{"@/*first*/ rows:b+a", "@/*last*/ rows:b+a"});
  // 64 rows over 3 would be padded, and dims that are not free are left as they are.
  CHECK(rules("mid:a;rows:auto", "a:3").empty());
  CHECK(rules("mid:a;mid:auto", "a:4").empty());
}

TEST_CASE("plan: tensor parallelism gets sequence parallelism where that pays", "[plan]") {
  const PlanModel model = long_model(4);
  const Plan found = plan(model, kModel, h100(), tensor_parallel());
  INFO(to_string(found));
  CHECK(found.optimal);
  CHECK(found.best.scoped == "@/*norm*/ length:model");
  CHECK(found.best.layout == "heads:model;ff:model;vocab:model;@/*norm*/ length:model");
  CHECK(found.scoped > 0);
  const auto whole = [&](const std::string& layout) {
    return price(model, kModel, Layout::parse(layout), {}, h100(), true);
  };
  const PricedPlan without = whole("heads,ff,vocab:model");
  CHECK(whole(found.best.layout).seconds == found.best.seconds);
  CHECK(found.best.seconds < 0.95 * without.seconds);
  CHECK(found.best.memory() < without.memory());
  CHECK(found.table_seconds < found.plain_seconds);
  CHECK(found.plain_seconds ==
        price(model, kModel, Layout::parse("heads,ff,vocab:model"), {}, h100()).seconds);
  for (const std::string words : {"it has no scoped rules", "'@/*norm*/ length:model' saves"})
    CHECK(to_string(found).find(words) != std::string::npos);
  // Without a free dim there is no rule to try.
  PlanOptions fixed = tensor_parallel();
  fixed.layout = Layout::parse("heads,ff,vocab:model;length:-;ff:auto");
  CHECK(plan(model, kModel, h100(), fixed).scoped == 0);
}

TEST_CASE("plan: long causal queries get equal work where they are split", "[plan]") {
  nn::GptOptions o = options_of(2048, 65536);
  o.batch = 1;
  const PlanModel model = gpt_model(2, o);
  const Mesh mesh = Mesh::parse("context:8");
  PlanOptions options;
  options.seconds = 100;
  options.layout = Layout::parse("length:auto");
  const Plan found = plan(model, mesh, h100(), options);
  INFO(to_string(found));
  CHECK(found.best.scoped == "length:context*2");
  const auto seconds = [&](const std::string& layout) {
    return price(model, mesh, Layout::parse(layout), {}, h100(), true).seconds;
  };
  // The last of 8 slices of the queries sees 15/16 of all pairs, the two intervals of a rank 1/2.
  CHECK(seconds("length:context*2") < 0.75 * seconds("length:context"));
  CHECK(seconds("length,memory_length:context*2") < 0.75 * seconds("length,memory_length:context"));
  // Of a rule that is written nothing is changed.
  options.layout = Layout::parse("length:context;vocab:auto");
  CHECK(plan(model, mesh, h100(), options).best.layout.find("*2") == std::string::npos);
}

TEST_CASE("plan: where only scoped rules make a plan fit, they do", "[plan]") {
  const PlanModel model = long_model(2);
  PlanOptions options = tensor_parallel();
  const PricedPlan without =
      price(model, kModel, Layout::parse("heads,ff,vocab:model"), {}, h100());
  options.memory = without.memory() * 9 / 10;
  const Plan found = plan(model, kModel, h100(), options);
  INFO(to_string(found));
  CHECK(found.best.memory() <= *options.memory);
  CHECK_FALSE(found.best.scoped.empty());
  CHECK(found.plain_seconds == 0);
  CHECK(to_string(found).find("only with '" + found.best.scoped + "' does one fit") !=
        std::string::npos);
}

TEST_CASE("plan: memory that scoped rules save is not recomputed", "[plan]") {
  PlanModel model = long_model(2);
  const Plan free = plan(model, kModel, h100(), tensor_parallel());
  model.recompute_options = {{"none", "none"}, {"block", "none"}};
  PlanOptions options = tensor_parallel();
  options.memory = free.best.memory() * 11 / 10;
  const Plan tight = plan(model, kModel, h100(), options);
  INFO(to_string(tight));
  CHECK(tight.best.build.recompute == "none");
  CHECK(tight.best.seconds <= free.best.seconds);
  CHECK(tight.plain_seconds > 1.1 * tight.table_seconds);
}

TEST_CASE("plan: layers are priced one by one where rules name their tensors", "[plan]") {
  nn::GptOptions o = options_of(512, 512);
  PlanModel model = gpt_model(6, o);
  const Layout layout = Layout::parse("heads,ff,vocab:model;@/*norm*/ length:model");
  const PricedPlan continued = price(model, kModel, layout, {}, h100());
  model.reshard_of_loop = "block";
  CHECK(price(model, kModel, layout, {}, h100()).seconds == continued.seconds);
}

TEST_CASE("plan: scoped rules change no loss", "[plan]") {
  const Mesh mesh = Mesh::parse("data:2;model:2");
  Graph g;
  const nn::Model model = nn::gpt(g, small_gpt(DType::float64));
  minimize(model.loss, constant(g, 0.01, DType::float64), adam());
  const std::vector<FunctionSpec> functions = {{"train", {model.loss}, true}};
  const StepSummary summary = summarize_step({g, functions}, {g, functions}, 1, h100());
  const Layout rules = Layout::parse("batch:data;ff,d_head:model;*:auto");
  const Space space(summary, rules);
  const Assignment a = space.with_fixed({mesh, {0, 0}});
  const std::vector<SegmentRule> found = segment_rules(g, summary, space, a);
  REQUIRE(found.size() > 4);
  Cluster one = Cluster::threads(1), four = Cluster::threads(4);
  const GptOutcome plain = train_small_gpt(one, Mesh::parse("model:1"), "", DType::float64, 2);
  for (const SegmentRule& rule : found) {
    INFO(rule.text);
    const GptOutcome split =
        train_small_gpt(four, mesh, "batch:data;ff,d_head:model;" + rule.text, DType::float64, 2);
    for (size_t i = 0; i < plain.losses.size(); ++i)
      CHECK(split.losses[i] == Approx(plain.losses[i]).epsilon(1e-12));
  }
}

TEST_CASE("plan: a layout with scoped rules is ready to paste", "[plan][cli]") {
  const Folder f;
  const std::string model =
      "gpt --set layers=4 d_model=4096 heads=32 ff=16384 length=8192 batch=1 vocab=50304 "
      "dtype=bfloat16 --mesh model:8 --machine h100 ";
  expect_success(
      run_cli_in(f, "plan --more " + model +
                        "--layout \"heads,ff,vocab:model;length:auto\" --json p.json --time 100"));
  const nlohmann::json report = json_of(f, "p.json");
  CHECK(report["best"]["scoped"] == "@/*norm*/ length:model");
  CHECK(report["tensors"]["left_out"] == "every plan keeps the given rule 'heads:model'");
  CHECK(report["scoped"] > 0);
  CHECK(report["plain_seconds"] > report["table_seconds"]);
  CHECK(report["proof_seconds"] <= report["search_seconds"]);
  const std::string rules = report["best"]["rules"];
  const CliResult explained = run_cli_in(f, "explain " + model + "--layout \"" + rules + "\"");
  CHECK(explained.code == 0);
  CHECK(explained.out.find("because @/*norm*/ length:model") != std::string::npos);
  const CliResult other = run_cli_in(
      f, "plan " + model + "--layout \"heads,ff,vocab:model;d_model:auto\" --time 1 --why-not \"" +
             rules + "\"");
  CHECK(other.code == 0);
  CHECK(other.out.find("why not --mesh \"model:8\" --layout \"" + rules + "\"") !=
        std::string::npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
