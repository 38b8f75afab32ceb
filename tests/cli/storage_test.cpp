// Storage that fails for a while: no step is lost, whatever call fails.
#include <cerrno>

#include "cli/cli_background.h"
#include "cli/cli_run.h"
#include "tessera/build_info.h"
#include "tessera/checkpoint.h"

using namespace tessera::test;

namespace TESSERA_FILE {

std::string failing(const std::string& rules) {
  return "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 LD_PRELOAD=" TESSERA_FAILING_STORAGE
         " FAILING_STORAGE='" +
         rules + "'";
}

CliResult train(const Folder& f, const std::string& more, const std::string& rules = "") {
  return run_cli_in(f, std::string("train ") + kTinyGpt + "--mesh data:2 " + more,
                    rules.empty() ? "" : failing(rules));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("storage: a failed save is tried again while the job trains", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--steps 40 --checkpoint whole --keep 1"));
  struct Case {
    std::string rule;
    int error;
    std::string cause;
  };
  const std::string none = "No space left on device";
  for (const auto& [call, error, cause] :
       {Case{"mkdir:{}:0:3:step-0", ENOSPC, none}, Case{"open:{}:0:3:rank-0", EROFS, "Read-only"},
        Case{"fsync:{}:1:2:rank-0", EIO, "Input/output error"},
        Case{"write:{}:2:3:rank-0", ENOSPC, none}, Case{"write:{}:0:2:manifest", EIO, "Input/out"},
        Case{"rename:{}:0:3:step-0", EROFS, "Read-only"}}) {
    std::string rule = call;
    rule.replace(rule.find("{}"), 2, std::to_string(error));
    INFO(rule);
    std::filesystem::remove_all(f("ck"));
    const CliResult r =
        train(f, "--steps 40 --checkpoint ck --save-every 10 --keep 9 --log log.jsonl", rule);
    INFO(r.out << r.err);
    REQUIRE(r.code == 0);
    CHECK(contains(r.out, "warning: a save failed: "));
    CHECK(contains(r.out, cause));
    CHECK(contains(r.out, "training goes on, and saving is tried again"));
    CHECK(contains(r.out, "storage works again: saved at step "));
    CHECK(r.out.find("a save failed") == r.out.rfind("a save failed"));  // told once
    CHECK(log_of(f, "log.jsonl", "loss").size() == 40);
    // Nothing is left of the attempts, and the last state is that of a job without faults.
    for (const auto& entry : std::filesystem::directory_iterator(f("ck")))
      CHECK(!contains(entry.path().filename(), ".tmp"));
    CHECK(whole_of(f, "ck") == whole_of(f, "whole"));
    std::filesystem::remove(f("log.jsonl"));
  }
}

TEST_CASE("storage: a save that fails to the end asks for a restart, which goes on", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string job = "--checkpoint ck --keep 9 --save-every 10 --save-retry 0.3 ";
  // The first save works.
  const CliResult r = train(f, job + "--steps 30", "mkdir:28:1:1000000:step-0");
  INFO(r.out << r.err);
  CHECK(r.code == 75);
  CHECK(contains(r.out, "error: the state after step 30 could not be saved in 0.3 s"));
  CHECK(contains(r.out, "exit code 75 asks for a restart"));
  CHECK(contains(r.out, "newest checkpoint in 'ck': make room there first"));
  CHECK(!contains(r.out, "\nsaved "));
  CHECK(tessera::find_latest(f("ck"))->step == 10);
  const CliResult again = train(f, job + "--steps 30 --resume");
  CHECK(again.code == 0);
  CHECK(contains(again.out, "resumed from ck/step-00000010 at step 10"));
  CHECK(tessera::find_latest(f("ck"))->step == 30);
  expect_failure(train(f, "--checkpoint ck --resume --save-retry -1"), 1,
                 {"--save-retry -1 is not between 0 and 86400 seconds"});
}

TEST_CASE("storage: a process of several that cannot save", "[cli]") {
  if (tessera::build_info().mpi.rfind("no", 0) == 0) {
    WARN("built without MPI: not run");
    return;
  }
  const Folder f;
  f.write("text.txt", some_text());
  const std::string job =
      std::string(TESSERA_CLI " train ") + kTinyGpt +
      "--mesh data:2 --layout \"batch:data;@state ff,d_model:data\" --steps 40 --save-every 10 "
      "--keep 9 --checkpoint ck";
  // Only rank 1 writes rank-00001.
  BackgroundJob running(
      f, "env " + failing("open:5:0:4:rank-00001") + " " + kLaunchLocal + "--ranks 2 " + job);
  CHECK(running.wait() == 0);
  const std::string out = f.read("job.txt");
  INFO(out);
  CHECK(contains(out, "warning: a save failed: "));
  CHECK(contains(out, "storage works again: saved at step "));
  const auto latest = tessera::find_latest(f("ck"));
  REQUIRE(latest);
  CHECK(latest->step == 40);
  CHECK_NOTHROW(tessera::verify_checkpoint(latest->path));
}

TEST_CASE("storage: a log keeps its lines until they can be written", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string logs = "--steps 20 --csv table.csv --tensorboard tb --log ";
  const CliResult r = train(f, logs + "log.jsonl",
                            "write:28:5:4:log.jsonl;write:5:3:9:table.csv;write:5:3:2:tfevents");
  INFO(r.out << r.err);
  CHECK(r.code == 0);
  CHECK(contains(r.err,
                 "tessera: warning: cannot write 'log.jsonl': No space left on device; what "
                 "follows is kept in memory until it works again"));
  CHECK(contains(r.err, "tessera: warning: 'log.jsonl' can be written again"));
  CHECK(contains(r.err, "cannot write 'table.csv': Input/output error"));
  CHECK(losses_of(f, "log.jsonl").size() == 20);
  const std::string table = f.read("table.csv");
  CHECK(std::count(table.begin(), table.end(), '\n') == 21);
  // To the end.
  const CliResult lost = train(f, logs + "new.jsonl", "write:28:5:1000000:new.jsonl");
  CHECK(lost.code == 0);
  CHECK(contains(lost.err, "'new.jsonl' lacks the last "));
  CHECK(contains(lost.err, " bytes: No space left on device"));
}

}  // namespace TESSERA_FILE
