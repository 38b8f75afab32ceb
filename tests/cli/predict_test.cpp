// The commands that predict and measure times.
#include <fmt/format.h>

#include "cli/cli_background.h"
#include "cli/step_timing.h"
#include "support/catch.h"

namespace tessera::test {

TEST_CASE("explain predicts times on a machine", "[cli]") {
  Folder f;
  const std::string model = "gpt --set d_model=512 ff=2048 heads=8 dtype=bfloat16 batch=64 ";
  const std::string wide = model + "--mesh \"data:4;model:8\" --json e.json";
  const std::string here = "TESSERA_CACHE=" + f.dir;
  CliResult r = run_cli_in(f, "explain " + wide, here);
  expect_success(r);
  CHECK(r.out.find("predicted") == std::string::npos);
  r = run_cli_in(f, "explain " + wide + " --machine a100-80gb", here);
  expect_success(r);
  CHECK(r.out.find("predicted on a100-80gb: ") != std::string::npos);
  CHECK(r.out.find("exposed)") != std::string::npos);
  const nlohmann::json e = nlohmann::json::parse(f.read("e.json"));
  CHECK(e["machine"] == "a100-80gb");
  const nlohmann::json& train = e["functions"].back();
  double seconds = 0, exposed = 0;
  for (const nlohmann::json& c : train["collectives"]) {
    seconds += c["seconds"].get<double>();
    exposed += c["exposed"].get<double>();
  }
  const nlohmann::json& t = train["predicted"];
  CHECK(seconds == Approx(t["transfer"].get<double>()));
  CHECK(exposed == Approx(t["exposed"].get<double>()));
  CHECK(t["seconds"].get<double>() ==
        Approx(t["compute"].get<double>() + t["slowed"].get<double>() + exposed));
  expect_failure(run_cli_in(f, "explain gpt --machine a101"), 1, {"unknown machine 'a101'"});
  expect_failure(run_cli_in(f, "explain gpt --mesh data:4@nvlink --machine h100"), 1,
                 {"no link class 'nvlink'"});
  // A calibrated profile counts where it can.
  f.write("machine.toml",
          "format = 2\nname = \"mine\"\n[[matmul]]\ndtype = \"float32\"\nflops = 1e9\n");
  r = run_cli_in(f, "explain gpt", here);
  expect_success(r);
  CHECK(r.out.find("predicted on mine: ") != std::string::npos);
  r = run_cli_in(f, "explain " + wide, here);
  expect_success(r);
  CHECK(r.out.find("warning: no times are predicted: machine 'mine' has no [[link]]") !=
        std::string::npos);
}

TEST_CASE("a prediction is of the machine's kind of devices, unless --device says otherwise",
          "[cli]") {
  Folder f;
  f.write("mine.toml",
          "format = 2\nname = \"mine\"\nmemory = 1000000000\n[[memory_rate]]\nbandwidth = 1e12\n"
          "[[matmul]]\ndtype = \"float32\"\nflops = 1e13\n[[link]]\nname = \"link\"\n"
          "bandwidth = 1e10\n");
  f.write("gpu.toml", "device_type = \"cuda\"\n" + f.read("mine.toml"));
  const auto seconds = [&](const std::string& flags, const std::string& command,
                           const std::string& rest) {
    expect_success(run_cli_in(f, command + " --set layers=1 " + flags + rest + " --json out.json"));
    const nlohmann::json out = nlohmann::json::parse(f.read("out.json"));
    return command.starts_with("plan") ? out["best"]["seconds"].get<double>()
                                       : out["seconds"].get<double>();
  };
  for (const auto& [command, rest] :
       {std::pair<std::string, std::string>{"simulate gpt", " --mesh data:2"},
        {"plan gpt", " --devices 2 --time 1"}}) {
    const double cpu = seconds("--machine mine.toml", command, rest);
    const double gpu = seconds("--machine gpu.toml", command, rest);
    CHECK(cpu != gpu);
    CHECK(seconds("--machine gpu.toml --device cpu", command, rest) == Approx(cpu).epsilon(1e-12));
    CHECK(seconds("--machine mine.toml --device cuda", command, rest) ==
          Approx(gpu).epsilon(1e-12));
  }
  // What runs, runs where it is told to: here.
  f.write("text.txt", std::string(1000, 'a'));
  expect_success(run_cli_in(f,
                            "train gpt --data text.txt --machine h100 --mesh data:2 --steps 1 "
                            "--set layers=1 d_model=16 heads=2 ff=32 length=8 batch=4"));
}

TEST_CASE("simulate plays a model on a machine", "[cli]") {
  Folder f;
  const std::string model =
      "simulate gpt --set d_model=512 ff=2048 heads=8 dtype=bfloat16 --batch 64 --machine h100 ";
  CliResult r = run_cli_in(f, model +
                                  "--mesh \"data:16;model:8\" --trace t.json --json s.json "
                                  "--stragglers 0.01 --failure-hours 50000");
  expect_success(r);
  CHECK(r.out.find("goodput") != std::string::npos);
  const nlohmann::json s = nlohmann::json::parse(f.read("s.json"));
  CHECK(s["with_stragglers"].get<double>() > s["seconds"].get<double>());
  CHECK(s["goodput"].get<double>() < 1);
  CHECK(s["by_axes"].size() >= 2);
  const nlohmann::json trace = nlohmann::json::parse(f.read("t.json"));
  double end = 0;
  for (const nlohmann::json& e : trace["traceEvents"]) {
    if (e["ph"] == "X") end = std::max(end, e["ts"].get<double>() + e["dur"].get<double>());
  }
  CHECK(end == Approx(1e6 * s["seconds"].get<double>()));
  r = run_cli_in(f, model + "--mesh data:2 --layout \";\"");
  CHECK(r.out.find("gpt on mesh data:2 (2 ranks of h100), layout nothing split\n") == 0);
  r = run_cli_in(f, "explain gpt --mesh data:16384 --layout batch:data --set layers=1");
  CHECK(r.out.find("dim 'batch' of 16 is padded to 16384: over 99 % of its memory and work is "
                   "wasted") != std::string::npos);
  const std::string here = "TESSERA_CACHE=" + f.dir;
  expect_failure(run_cli_in(f, "simulate gpt", here), 1, {"simulate needs --machine", "a100-80gb"});
  expect_failure(run_cli_in(f, model + "--checkpoint-seconds 0"), 1,
                 {"a checkpoint of 0 s: none is negative, and a checkpoint takes more than 0 s"});
}

TEST_CASE("calibrate says that others were at work", "[cli]") {
  CHECK(cli::busy_note(0.4, 2).empty());
  CHECK(cli::busy_note(2.9, 64).empty());
  CHECK(cli::busy_note(2.71, 2) ==
        "the load average was 2.7 on 2 processors before this began, so others were at work and "
        "the profile says that this machine is slower than it is; calibrate again when it is idle");
}

TEST_CASE("calibrate measures a profile that predicts and sweeps", "[cli][slow]") {
  Folder f;
  const std::string here = "TESSERA_CACHE=" + f.dir;
  CliResult r = run_cli_in(f, "calibrate --mesh data:2 --threads 1", here);
  expect_success(r);
  const std::string profile = f.read("machine.toml");
  CHECK(profile.find("all_reduce") != std::string::npos);
  // Others count only where they take their share of that step.
  CHECK(profile.find("[[context]]\nkernel = \"matmul\"\nslower = ") != std::string::npos);
  const std::string model =
      "sweep gpt --set layers=1 d_model=16 heads=2 ff=32 length=8 batch=4,6 --steps 2 --threads 1 ";
  r = run_cli_in(f, model + "--mesh data:2 --out s.csv", here);
  expect_success(r);
  CHECK(r.out.find("rank correlation") != std::string::npos);
  const nlohmann::json s = nlohmann::json::parse(f.read("s.json"));
  CHECK(s["layouts"].get<int>() == static_cast<int>(s["rows"].size()));
  CHECK(f.read("s.svg").find("<svg") == 0);
  CHECK(f.read("s.html").find("</table>") != std::string::npos);
  // Gone on from: what was measured is not measured again.
  const std::string first = f.read("s.csv");
  expect_success(run_cli_in(f, model + "--mesh data:2 --out s.csv", here));
  CHECK(f.read("s.csv") == first);
}

TEST_CASE("a sweep records what fails and goes on", "[cli]") {
  Folder f;
  f.write("layouts.txt", "batch:data\nbatch:dat\n# none\nff:data\nvocab:-;batch:data\n");
  CliResult r = run_cli_in(f,
                           "sweep gpt --set layers=1 d_model=16 heads=2 ff=32 length=8 batch=4 "
                           "--steps 1 --threads 1 --mesh data:2 --layouts layouts.txt --out s.csv",
                           "TESSERA_CACHE=" + f.dir);
  expect_success(r);
  const nlohmann::json s = nlohmann::json::parse(f.read("s.json"));
  CHECK(s["layouts"] == 3);
  CHECK(s["programs"] == 2);  // the first and the last are one
  CHECK(s["failed"] == 1);
  CHECK(s["rows"][1]["failure"].get<std::string>().find("dat") != std::string::npos);
  f.write("wrong.txt", "batch:dat\nbtach:data\n");
  expect_failure(run_cli_in(f, "sweep gpt --mesh data:2 --layouts wrong.txt --out w.csv"), 1,
                 {"none of 2 layouts ran; w.csv says why, the first: ", "'dat'"});
  CHECK(f.read("w.csv").find("btach") != std::string::npos);
  expect_failure(run_cli_in(f, "sweep gpt --budget soon"), 1, {"--budget 'soon' is not a time"});
  expect_failure(run_cli_in(f, "sweep gpt --out s.txt"), 1, {"does not end with .csv"});
  f.write("other.csv", "a,b\n");
  expect_failure(run_cli_in(f, "sweep gpt --out other.csv"), 1, {"is not the table of a sweep"});
  expect_failure(run_cli_in(f, "sweep gpt --mesh data:2 --devices 2"), 1, {"give one of them"});
  expect_failure(run_cli_in(f, "sweep gpt --meshes some"), 1, {"only all is known"});
  expect_failure(run_cli_in(f, "sweep gpt --layouts none.txt"), 1, {"cannot open layouts"});
}

TEST_CASE("a sweep that is killed keeps what it measured, and one file holds several", "[cli]") {
  Folder f;
  const std::string here = "TESSERA_CACHE=" + f.dir + " ";
  const std::string sweep =
      "sweep gpt --set layers=1 d_model=16 heads=2 ff=32 length=8 --threads 1 --mesh data:2 --out ";
  const auto lines = [&] {
    std::istringstream text(f.read("s.csv"));
    std::vector<std::string> all;
    for (std::string line; std::getline(text, line);) all.push_back(line);
    return all;
  };
  f.write("layouts.txt", "batch:data\nff:data\n");
  {
    BackgroundJob job(f,
                      "env " + here + TESSERA_CLI " " + sweep +
                          "s.csv --layouts layouts.txt --set batch=4 --steps 10000000 --budget 2h");
    REQUIRE(eventually([&] {
      return std::filesystem::exists(f("s.csv")) && lines().size() == 3 &&
             lines()[1].find(",0,0,") == std::string::npos;
    }));
    job.send(SIGKILL);
    CHECK(job.wait() == 128 + SIGKILL);
  }
  const std::vector<std::string> killed = lines();
  REQUIRE(killed.size() == 3);
  // The other configuration's rows stay; a line that was being written runs again.
  f.write("s.csv", f.read("s.csv") + "batch=8,data:2,bat");
  expect_success(
      run_cli_in(f, sweep + "s.csv --layouts layouts.txt --set batch=8 --steps 2", here));
  const std::vector<std::string> both = lines();
  REQUIRE(both.size() == 5);
  CHECK(both[1].find("batch=8") != std::string::npos);
  CHECK(std::count(both.begin(), both.end(), killed[1]) == 1);
  CHECK(std::count(both.begin(), both.end(), killed[2]) == 1);
  // Lowering stops at half of the budget, and what was not looked at says so.
  const CliResult none = run_cli_in(f, sweep + "t.csv --set batch=4 --budget 0.001s", here);
  expect_success(none);
  CHECK(none.out.find("not run: the budget was spent") != std::string::npos);
}

TEST_CASE("diff says where the milliseconds go", "[cli]") {
  Folder f;
  const std::string model = "diff gpt \"batch:data\" \"batch:data;heads,ff:model\" ";
  const CliResult r = run_cli_in(
      f, model + "--mesh \"data:2;model:2\" --machine h100 --set dtype=bfloat16 --json d.json");
  expect_success(r);
  CHECK(r.out.find("nodes differ, most first") != std::string::npos);
  CHECK(r.out.find("%) more than A, most of it waiting for model (+") != std::string::npos);
  const CliResult same =
      run_cli_in(f, "diff gpt batch:data batch:data --mesh data:2 --machine h100");
  CHECK(same.out.find("on h100: A and B take the same time.\n") != std::string::npos);
  CHECK(same.out.find("no node differs\n") != std::string::npos);
  CHECK(r.out.find("all_reduce over model") != std::string::npos);
  for (const char* part : {"ms, by cause\n", "  compute\n", "  waiting for data\n", "  a step\n"})
    CHECK(r.out.find(part) != std::string::npos);
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') < 40);  // the others are summed up
  const nlohmann::json d = nlohmann::json::parse(f.read("d.json"));
  CHECK(d["nodes"].size() > 4);
  double by_cause = 0;
  for (const auto& c : d["causes"]) by_cause += c["b"].get<double>() - c["a"].get<double>();
  CHECK(by_cause == Approx(d["b"].get<double>() - d["a"].get<double>()));
  expect_failure(run_cli_in(f, model + "--mesh \"data:2;model:2\"", "TESSERA_CACHE=" + f.dir), 1,
                 {"diff needs --machine"});
}

}  // namespace tessera::test
