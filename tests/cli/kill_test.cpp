// Kills and stops of a random rank at random moments, in saving and loading too, under a launcher
// that restarts: the job ends with the parameters of an undisturbed one, to the bit.
#include <algorithm>
#include <random>

#include "cli/cli_background.h"
#include "ops/op_cases_run.h"
#include "tessera/build_info.h"

using namespace tessera::test;

namespace TESSERA_FILE {

/// TESSERA_KILLS, or the fallback.
int kills_wanted(int fallback) {
  const char* text = std::getenv("TESSERA_KILLS");
  return text ? std::atoi(text) : fallback;
}

/// Half of them kill; the others ask the job to save and stop.
constexpr int kSignals[] = {SIGKILL, SIGKILL, SIGKILL, SIGTERM, SIGUSR1, SIGINT};

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

/// Kills ranks of a job of `ranks` processes (0: one, whose ranks are threads) and compares what
/// comes out of it. `life`: the longest that one attempt may live, in ms; `steps`: of the job, a
/// kill.
void kill_and_compare(int ranks, int kills, int64_t steps, int life) {
  const Folder f;
  f.write("text.txt", some_text());
  const uint64_t seed = seed_of_run(std::random_device{}());
  std::mt19937_64 random(seed);
  const std::string launcher = kLaunchLocal + "--max-restarts 1000000 " +
                               (ranks > 0 ? "--ranks " + std::to_string(ranks) + " " : "");
  const std::string job = std::string(TESSERA_CLI " train ") + kTinyGpt +
                          "--mesh data:" + std::to_string(std::max(ranks, 2)) +
                          " --layout \"batch:data;@state ff,d_model:data\" --set "
                          "d_model=64 ff=64 --steps " +
                          std::to_string(steps * kills) + " ";
  INFO("seed " << seed);
  int done = 0, in_saving = 0, stops = 0;
  {
    BackgroundJob running(f, launcher + job + "--save-every 5 --keep 2 --checkpoint ck");
    std::vector<pid_t> last;
    while (done < kills && running.is_running()) {
      std::vector<pid_t> now;
      const auto reborn = [&] {
        now = ranks_in(f);
        const bool are_new = std::none_of(now.begin(), now.end(), [&](pid_t pid) {
          return std::find(last.begin(), last.end(), pid) != last.end();
        });
        return !running.is_running() || (std::ssize(now) == std::max(ranks, 1) && are_new);
      };
      REQUIRE(eventually(reborn));
      if (!running.is_running()) break;
      // At any time, which may be before the first step; in a save; some time after one.
      const std::set<std::string> saved = checkpoints_in(f);
      if (done % 3 == 2)
        eventually([&] { return checkpoints_in(f) != saved || ranks_in(f) != now; });
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % life));
      if (done % 3 == 1) eventually([&] { return is_saving(f) || ranks_in(f) != now; });
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      in_saving += is_saving(f);
      const int signal = kSignals[random() % std::size(kSignals)];
      if (kill(now[random() % now.size()], signal) != 0) continue;
      stops += signal != SIGKILL;
      last = now;
      ++done;
      // What is selected now is complete and right, whatever was under way.
      if (const auto latest = tessera::find_latest(f("ck")); latest && done % 5 == 0)
        CHECK_NOTHROW(tessera::verify_checkpoint(latest->path));
    }
    const int code = running.wait(1200);
    INFO(f.read("job.txt"));
    CHECK(code == 0);
  }
  const int resumed = count_of(f.read("job.txt"), "resumed from ");
  WARN("seed " << seed << ": " << done << " kills (" << stops << " of them stops), " << in_saving
               << " of them in saving, " << resumed << " starts from a checkpoint");
  CHECK(done == kills);
  CHECK(resumed >= kills / 3);
  expect_success(run_cli_in(
      f, job.substr(std::string(TESSERA_CLI " ").size()) + "--checkpoint undisturbed --keep 1", "",
      "whole.txt"));
  CHECK(whole_of(f, "ck") == whole_of(f, "undisturbed"));
}

/// Whether ranks can be processes here; warns if not.
bool has_mpi() {
  if (tessera::build_info().mpi.rfind("no", 0) != 0) return true;
  WARN("built without MPI: not run");
  return false;
}

TEST_CASE("kill: a process whose ranks are threads", "[cli]") {
  kill_and_compare(0, kills_wanted(15), 100, 150);
}

TEST_CASE("kill: one of two processes", "[cli]") {
  if (has_mpi()) kill_and_compare(2, kills_wanted(5), 300, 900);
}

TEST_CASE("kill: one of four processes", "[.][kill-four]") {
  if (has_mpi()) kill_and_compare(4, kills_wanted(5), 300, 1800);
}

}  // namespace TESSERA_FILE
