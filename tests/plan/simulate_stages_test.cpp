// A pipeline simulated: what its price says, span by span.
#include <algorithm>

#include "cli/cli_run.h"
#include "plan/plan_models.h"
#include "support/expect_error.h"
#include "tessera/simulate.h"

namespace tessera::test {

TEST_CASE("simulate: a pipeline's time line is its price", "[plan]") {
  const PlanModel model = gpt_in_parts(8, options_of(256, 64));
  const Mesh mesh = Mesh::parse("data:2");
  const Layout layout = Layout::parse("batch:data");
  PlanBuild build;
  build.microbatches = 8;
  for (const int64_t chunks : {1, 2}) {
    INFO(chunks << " chunks");
    const Simulation s = simulate_pipeline(model, mesh, layout, build, 4, chunks, a100());
    const PipelinePlan p = price_pipeline(model, mesh, layout, build, 4, chunks, a100());
    CHECK(s.ranks == 8);
    CHECK(s.seconds == p.stage.seconds);
    CHECK(s.seconds == Approx(s.compute + s.slowed + s.exposed + s.bubble));
    CHECK(s.memory == p.stage.memory());
    double end = 0;
    int64_t pieces = 0, handed = 0;
    std::vector<double> free(4, 0);
    for (const SimulatedStep& step : s.steps) {
      end = std::max(end, step.begin + step.seconds);
      pieces += step.kernel == "microbatch";
      handed += step.lane == 1;
      if (step.lane != 0) continue;
      double& until = free[static_cast<size_t>(step.stage)];
      CHECK(step.begin >= until - 1e-12);
      until = step.begin + step.seconds;
    }
    CHECK(pieces == 2 * 8 * 4 * chunks);
    CHECK(handed == 2 * 8 * (4 * chunks - 1));
    CHECK(end == Approx(s.seconds));
    const nlohmann::json trace = nlohmann::json::parse(to_trace(s));
    const auto count = [&](const char* key, const auto& value) {
      return std::count_if(trace["traceEvents"].begin(), trace["traceEvents"].end(),
                           [&](const nlohmann::json& e) { return e[key] == value; });
    };
    CHECK(count("name", "process_name") == 4);
    CHECK(count("name", "reduction of gradients, update") == 4);
  }
  SimulateOptions how;
  how.stragglers = 0.01;
  how.failure_hours = 1000;
  const Simulation s = simulate_pipeline(model, mesh, layout, build, 4, 1, a100(), how);
  CHECK(s.with_stragglers > s.seconds);
  CHECK(s.goodput < 1);
}

TEST_CASE("simulate: stages on the command line, and what cannot be dealt", "[plan][cli]") {
  const Folder f;
  const std::string command =
      "simulate gpt --machine a100-80gb --mesh data:2 --layout batch:data --set layers=8 "
      "d_model=64 heads=4 ff=256 length=32 batch=16 ";
  const CliResult plain = run_cli_in(
      f, command + "microbatches=4 --stages 4 --json s.json --trace t.json --stragglers 0.01");
  INFO(plain.out << plain.err);
  CHECK(plain.code == 0);
  CHECK(plain.out.find("4 stages, each mesh data:2 (8 ranks of a100-80gb)") != std::string::npos);
  CHECK(plain.out.find("1f1b, 4 microbatches; each sends") != std::string::npos);
  CHECK(plain.out.find(" bubble") != std::string::npos);
  const nlohmann::json report = json_of(f, "s.json");
  CHECK(report["stages"] == 4);
  CHECK(report["schedule"] == "1f1b");
  CHECK(report["bubble"] > 0);
  CHECK(f.read("t.json").find("stage 3: each of 2 ranks") != std::string::npos);
  expect_success(
      run_cli_in(f, command + "microbatches=4 --stages 4 --schedule interleaved --json s.json"));
  CHECK(json_of(f, "s.json")["interleave"] == 2);
  expect_success(run_cli_in(f, command + "microbatches=4 --stages 2 --interleave 4 --json s.json"));
  CHECK(json_of(f, "s.json")["schedule"] == "interleaved");
  expect_failure(run_cli_in(f,
                            "simulate gpt --machine a100-80gb --mesh pipe:2 --layout layers:pipe "
                            "--stages 4 --set layers=8 microbatches=4 scan=true"),
                 1,
                 {"layout rule 'layers:pipe' and --stages 4 both divide the layers; leave one of "
                  "the two out"});
  expect_failure(run_cli_in(f, command + "--stages 4"), 1,
                 {"--stages 4 needs microbatches, and train.microbatches is 1"});
  expect_failure(run_cli_in(f, command + "microbatches=4 --stages 3"), 1,
                 {"8 layers cannot be dealt to 3 stages", "that divides the layers"});
  expect_success(
      run_cli_in(f, command + "microbatches=4 --stages 4 --schedule gpipe --json s.json"));
  CHECK(json_of(f, "s.json")["schedule"] == "gpipe");
  expect_failure(run_cli_in(f, command + "microbatches=4 --stages 4 --schedule fpipe"), 1,
                 {"unknown pipeline_schedule 'fpipe'; did you mean 'gpipe'?"});
  expect_failure(run_cli_in(f, command + "microbatches=4 --stages 4 --schedule zb_h1"), 1,
                 {"--schedule zb_h1: --stages knows no times of gradients of parameters alone",
                  "--mesh \"pipe:4\" --layout \"layers:pipe\" --set pipeline_schedule=zb_h1"});
  expect_failure(run_cli_in(f, command + "microbatches=4 --stages 4 --schedule zb_v"), 1,
                 {"--mesh \"pipe:4\" --layout \"layers:pipe*2\" --set pipeline_schedule=zb_v"});
  expect_failure(
      run_cli_in(f, command + "microbatches=4 --stages 4 --schedule gpipe --interleave 2"), 1,
      {"schedule gpipe does not take 2 chunks of layers a stage; take 1f1b"});
  expect_failure(run_cli_in(f, command + "microbatches=4 --stages 8 --schedule interleaved"), 1,
                 {"--schedule interleaved deals 8 layers to 8 stages"});
  expect_failure(run_cli_in(f, command + "--schedule interleaved"), 1,
                 {"--schedule and --interleave belong to a pipeline", "--stages"});
  expect_failure(run_cli_in(f,
                            "simulate gpt --machine a100-80gb --mesh data:2 --layout auto --stages "
                            "2 --set microbatches=4"),
                 1,
                 {"--stages 2 with a layout that is left to the planner",
                  "a plan may have stages of its own"});
}

}  // namespace tessera::test
