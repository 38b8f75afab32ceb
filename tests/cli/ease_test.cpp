// docs/reference/ease.md: the commands that it counts train one model alike, and the table is what
// the script makes of them.
#include "cli/cli_run.h"

using namespace tessera::test;

TEST_CASE("cli: every step of the ease table trains the same model", "[cli]") {
  const std::string folder = TESSERA_SOURCE_DIR "/benchmarks/peers/ease";
  Folder f;
  f.write("text.txt", some_text());
  std::vector<double> losses;
  for (const char* step : {"1_one_rank", "2_data", "3_fsdp", "4_two_d", "5_sequence"}) {
    INFO(step);
    std::ifstream in(folder + "/tessera/" + step + "/run.sh");
    std::string command((std::istreambuf_iterator<char>(in)), {});
    command.erase(0, command.find("tessera ") + 8);  // ranks are threads here
    command.erase(command.find_last_not_of('\n') + 1);
    REQUIRE(command.starts_with("train gpt "));
    expect_success(run_cli_in(f, command + " --threads 1 --steps 2 --log log.jsonl --set layers=1 "
                                           "d_model=32 heads=4 ff=64 length=16 warmup=1"));
    losses.push_back(losses_of(f, "log.jsonl").at(2));
    CHECK(losses.back() == Approx(losses[0]).epsilon(1e-5));
  }
  CHECK(std::system(("python3 '" + folder + "/table' --check").c_str()) == 0);
}
