// Ranks that hang: the job ends within the time-out, and says where every rank is, with its stack.
#include <chrono>

#include "cli/cli_run.h"
#include "tessera/build_info.h"

using namespace tessera::test;

namespace TESSERA_FILE {

/// Trains the model "hangs" with a time-out of 4 s. `launcher`: "" or "mpirun ... ".
CliResult hang(const Folder& f, const std::string& arguments, const std::string& launcher = "") {
  const auto start = std::chrono::steady_clock::now();
  const CliResult r = run_in(f, "timeout 60 " + launcher + TESSERA_OWN_MODELS,
                             "train hangs --steps 9 --timeout 4 --batch 6 " + arguments);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(40));
  return r;
}

void expect_words(const CliResult& r, const std::vector<std::string>& words) {
  INFO("stderr: " << r.err);
  for (const std::string& word : words) {
    INFO("missing: " << word);
    CHECK(r.err.find(word) != std::string::npos);
  }
}

TEST_CASE("cli: a thread rank that hangs in an op is told with the stacks of all", "[cli]") {
  const Folder f;
  const CliResult r = hang(f, "--mesh data:2 --set where=op rank=1 step=2");
  CHECK(r.code == 76);
  expect_words(r, {"rank 1 is in [may_hang]", "the job ends after 4 s (--timeout)",
                   " in step 2:", "  rank 0: [all_reduce] call ", "  rank 1: [may_hang]",
                   "own_models.cpp:", "sleep_for_ever", "libc.so.6",
                   "comm error: step 2: ", "rank 1 stayed in", "its thread is abandoned"});
}

TEST_CASE("cli: the only rank hangs in an op, and the process ends", "[cli]") {
  const Folder f;
  const CliResult r = hang(f, "--mesh data:1 --set where=op rank=0 step=3");
  CHECK(r.code == 76);
  expect_words(r, {"rank 0 is in [may_hang]", " in step 3:", "sleep_for_ever",
                   "nothing can end it but the end of the process", "raise --timeout"});
}

TEST_CASE("cli: a source of data that hangs is told with its stack", "[cli]") {
  const Folder f;
  const CliResult r = hang(f, "--mesh data:2 --set where=data step=2");
  CHECK(r.code == 76);
  expect_words(
      r, {"this process is reading the data of step 2", "sleep_for_ever", "nothing can end it"});
}

TEST_CASE("cli: of several processes the one that hangs and those that wait are told", "[cli]") {
  if (std::system("mpirun --version > /dev/null 2>&1") != 0 ||
      tessera::build_info().mpi.rfind("no", 0) == 0) {
    WARN("no MPI: not run");
    return;
  }
  for (const char* where : {"op", "data"}) {
    INFO(where);
    const Folder f;
    const CliResult r = hang(f, std::string("--mesh data:2 --set rank=1 step=2 where=") + where,
                             TESSERA_SOURCE_DIR "/scripts/mpi_run 2 ");
    CHECK(r.code != 0);
    CHECK(r.code != 124);
    expect_words(
        r, {"rank 0 is in [all_reduce] call ", "sleep_for_ever", "  rank 0: [all_reduce] call ",
            std::string(where) == "op" ? "rank 1 is in [may_hang]"
                                       : "this process is reading the data of step "});
  }
}

}  // namespace TESSERA_FILE
