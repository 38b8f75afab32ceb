// The commands that predict and measure times.
#include "catch.h"
#include "cli_run.h"

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
          "format = 1\nname = \"mine\"\n[[product]]\ndtype = \"float32\"\nflops = 1e9\n");
  r = run_cli_in(f, "explain gpt", here);
  expect_success(r);
  CHECK(r.out.find("predicted on mine: ") != std::string::npos);
  r = run_cli_in(f, "explain " + wide, here);
  expect_success(r);
  CHECK(r.out.find("warning: no times are predicted: machine 'mine' has no [[link]]") !=
        std::string::npos);
}

}  // namespace tessera::test
