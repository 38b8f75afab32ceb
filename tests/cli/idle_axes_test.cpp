// Ranks that compute the same are told so, with the layout that would share the work.
#include <array>

#include "cli/cli_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// What `train` says of idle ranks; "" if nothing.
std::string note_of(const Folder& f, const std::string& flags) {
  const CliResult run = run_cli_in(f, std::string("train ") + kTinyGpt + "--steps 1 " + flags);
  INFO(run.err);
  REQUIRE(run.code == 0);
  const size_t at = run.out.find("note: groups of ");
  return at == std::string::npos ? "" : run.out.substr(at, run.out.find('\n', at) - at);
}

TEST_CASE("train names mesh axes that share no work, with a layout that cures it", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::vector<std::array<std::string, 4>> idle = {
      {"--mesh \"data:4\" ", "heads:-", "4 ranks", "data"},
      {"--mesh \"data:2;model:2\" ", "batch:data", "2 ranks", "model"},
      {"--mesh \"data:2;model:2\" ", "heads:model;@state d_model:data", "2 ranks", "data"}};
  const std::vector<std::string> cures = {"batch:data;heads:-", "batch:data+model",
                                          "batch:data;heads:model;@state d_model:data"};
  for (size_t i = 0; i < idle.size(); ++i) {
    const auto& [mesh, layout, ranks, axes] = idle[i];
    CHECK(note_of(f, mesh + "--layout \"" + layout + "\"") ==
          "note: groups of " + ranks + " compute the same, since no dim is split over mesh axis " +
              axes + "; to share the examples among them: --layout \"" + cures[i] + "\"");
    CHECK(note_of(f, mesh + "--layout \"" + cures[i] + "\"").empty());
  }
  CHECK(note_of(f, "--mesh \"data:4;one:1\"").empty());
}

TEST_CASE("layout auto says for which machine it plans if this one has no profile", "[cli][plan]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string train =
      std::string("train ") + kTinyGpt + "--steps 1 --mesh data:2 --layout auto --plan-time 5";
  const std::string cache = "TESSERA_CACHE=" + f.dir,
                    says = "layout auto: planned for machine h100";
  const CliResult without = run_cli_in(f, train, cache);
  CHECK(without.code == 0);
  CHECK(without.err.find(says + ", as this one has no profile; measure it with `tessera calibrate "
                                "--mesh \"data:2\"`, or name another with --machine\n") == 0);
  CHECK(run_cli_in(f, train + " --machine h100", cache).err.find(says) == std::string::npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
