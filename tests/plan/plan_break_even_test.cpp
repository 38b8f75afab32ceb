// Break-even bandwidths: on either side of one another plan is found.
#include "cli/cli_run.h"
#include "plan/plan_models.h"

namespace tessera::test {

namespace TESSERA_FILE {

Machine with_bandwidth(const Machine& machine, const std::string& link, double bandwidth) {
  Machine m = machine;
  m.links[static_cast<size_t>(m.find_link(link))].bandwidth = bandwidth;
  return m;
}

bool is_same(const PricedPlan& a, const PricedPlan& b) {
  return a.layout == b.layout && a.mesh.axes() == b.mesh.axes() &&
         a.build.recompute == b.build.recompute && a.build.microbatches == b.build.microbatches;
}

TEST_CASE("break-even: the plan changes where it says", "[plan]") {
  const PlanModel model = gpt_model(2, options_of(512, 128));
  const Mesh mesh = Mesh::parse("data:2;model:2");
  PlanOptions options;
  options.seconds = 3600;  // the search ends by its proof, on however busy a machine
  options.layout = Layout::parse("batch,ff:auto");
  const Plan best = plan(model, mesh, a100(), options);
  REQUIRE(best.optimal);
  const std::vector<BreakEven> links = break_even(model, mesh, a100(), options, best, 3600);
  REQUIRE(links.size() == 1);
  CHECK(links[0].link == "node");
  CHECK(links[0].bandwidth == a100().links[0].bandwidth);
  int flips = 0;
  for (const BreakEvenSide* side : {&links[0].below, &links[0].above}) {
    CHECK(side->shown);
    const bool up = side == &links[0].above;
    CHECK((up ? side->bandwidth > links[0].bandwidth : side->bandwidth < links[0].bandwidth));
    if (!side->instead) continue;
    ++flips;
    const double beyond = up ? 1.05 : 1 / 1.05;
    const auto seconds = [&](const PricedPlan& p, double factor) {
      return price(model, p.mesh, Layout::parse(p.layout), p.build,
                   with_bandwidth(a100(), "node", side->bandwidth * factor))
          .seconds;
    };
    CHECK(seconds(*side->instead, beyond) < seconds(best.best, beyond));
    CHECK(seconds(*side->instead, 1 / beyond) > seconds(best.best, 1 / beyond));
    const Plan before =
        plan(model, mesh, with_bandwidth(a100(), "node", side->bandwidth / beyond), options);
    // Rules for parts of the model are beyond what is shown.
    CHECK(before.plain_seconds >= seconds(best.best, 1 / beyond) * (1 - 1e-3));
    const Plan after =
        plan(model, mesh, with_bandwidth(a100(), "node", side->bandwidth * beyond), options);
    // From another best plan the search may not come upon the same rules for parts of the model.
    const bool is_scoped = side->instead->layout.find("@/") != std::string::npos;
    CHECK((is_scoped || !is_same(after.best, best.best)));
  }
  CHECK(flips > 0);
  const std::string page = to_string(links);
  for (const char* words : {"break-even bandwidths", "node (", "now ", "below", "above"}) {
    INFO(page);
    CHECK(page.find(words) != std::string::npos);
  }
  const std::vector<BreakEven> hurried = break_even(model, mesh, a100(), options, best, 1e-9);
  CHECK(to_string(hurried).find("not known, the search time was over") != std::string::npos);
}

TEST_CASE("break-even: the page, JSON and HTML have it", "[plan][cli]") {
  const Folder f;
  expect_success(run_cli_in(
      f,
      "plan --more gpt --set layers=1 d_model=64 heads=4 ff=128 length=32 batch=8 --mesh data:2 "
      "--layout \"batch:data;*:auto\" --machine a100-80gb --json p.json --html p.html --time 20"));
  const nlohmann::json links = json_of(f, "p.json")["break_even"];
  REQUIRE(links.size() == 1);
  CHECK(links[0]["link"] == "node");
  CHECK(links[0]["bandwidth"] > 0);
  CHECK(links[0]["below"].contains("instead"));
  CHECK(links[0]["above"]["shown"].is_boolean());
  CHECK(f.read("p.html").find("break-even bandwidths") != std::string::npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
