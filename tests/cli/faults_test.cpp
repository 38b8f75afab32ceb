// Jobs that are ended, killed or hung from outside, and steps that go wrong inside.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "cli/cli_background.h"
#include "cli/replica_check.h"
#include "cli/signals.h"
#include "cli/stragglers.h"
#include "support/expect_error.h"
#include "tessera/build_info.h"
#include "tessera/checkpoint.h"
#include "tessera/inspect.h"
#include "tessera/tessera.h"

using namespace tessera::test;

namespace TESSERA_FILE {

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}

/// Whether ranks can be processes here; warns if not.
bool has_mpi() {
  const bool found = std::system("mpirun --version > /dev/null 2>&1") == 0 &&
                     tessera::build_info().mpi.rfind("no", 0) != 0;
  if (!found) WARN("no MPI: not run");
  return found;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("faults: a signal saves and asks for a restart", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string flags = "--mesh data:2 --checkpoint ck --resume --save-every 1 ";
  int runs = 0;
  for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) {
    const auto before = checkpoints_in(f);
    BackgroundJob job(f, TESSERA_CLI " train " + std::string(kTinyGpt) + flags +
                             "--steps 10000000 --log log.jsonl");
    const auto steps = [&] { return log_of(f, "log.jsonl", "loss").size(); };
    const size_t had = std::filesystem::exists(f("log.jsonl")) ? steps() : 0;
    REQUIRE(eventually(
        [&] { return f.read("job.txt").find("step ") != std::string::npos && steps() > had + 3; }));
    job.send(number);
    CHECK(job.wait() == 75);
    const std::string out = f.read("job.txt");
    INFO(out);
    CHECK(contains(out, std::string(tessera::cli::signal_name(number)) + ": saved at step"));
    CHECK(checkpoints_in(f) != before);
    ++runs;
  }
  CHECK(runs == 4);
  const std::string steps =
      "--steps " + std::to_string(tessera::find_latest(f("ck"))->step + 3) + " ";
  expect_success(train(f, flags + steps));
  expect_success(train(f, "--mesh data:2 --checkpoint whole " + steps));
  CHECK(whole_of(f, "ck") == whole_of(f, "whole"));
}

TEST_CASE("faults: signals during saves cost no checkpoint", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string flags =
      "--mesh data:2 --checkpoint ck --resume --save-every 2 --set d_model=64 ff=256 ";
  int in_saving = 0;
  for (int turn = 0; turn < 8; ++turn) {
    const auto before = checkpoints_in(f);
    BackgroundJob job(f, TESSERA_CLI " train " + std::string(kTinyGpt) + flags + "--steps 1000000");
    REQUIRE(eventually([&] { return checkpoints_in(f) != before && is_saving(f); }));
    std::this_thread::sleep_for(std::chrono::microseconds(300 * turn));
    in_saving += is_saving(f);
    job.send(turn % 2 == 0 ? SIGTERM : SIGUSR1);
    job.send(SIGTERM);  // a second one changes nothing
    CHECK(job.wait() == 75);
    INFO(f.read("job.txt"));
    const auto latest = tessera::find_latest(f("ck"));
    REQUIRE(latest.has_value());
    CHECK_NOTHROW(tessera::verify_checkpoint(latest->path));
    CHECK(contains(f.read("job.txt"), ": saved at step " + std::to_string(latest->step)));
    CHECK_FALSE(is_saving(f));
  }
  CHECK(in_saving > 0);
  const std::string steps =
      "--steps " + std::to_string(tessera::find_latest(f("ck"))->step + 3) + " ";
  expect_success(train(f, flags + steps));
  expect_success(train(f, "--mesh data:2 --set d_model=64 ff=256 --checkpoint whole " + steps));
  CHECK(whole_of(f, "ck") == whole_of(f, "whole"));
}

TEST_CASE("faults: a second signal ends at once, one that is ignored stays so") {
  const auto outcome = [](const std::function<void()>& work) {  // of a process of its own
    const pid_t child = fork();
    if (child == 0) {
      work();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  };
  const auto twice = [](int first, int second, int milliseconds) {
    const tessera::cli::StopSignals signals;
    raise(first);
    usleep(1000 * milliseconds);
    raise(second);
    _exit(signals.seen());
  };
  CHECK(outcome([&] { twice(SIGTERM, SIGTERM, 1); }) == SIGTERM);
  CHECK(outcome([&] { twice(SIGUSR1, SIGTERM, 1); }) == SIGUSR1);
  CHECK(outcome([&] { twice(SIGTERM, SIGTERM, 1100); }) == 128 + SIGTERM);
  CHECK(outcome([&] { twice(SIGUSR1, SIGINT, 1100); }) == 128 + SIGINT);
  CHECK(outcome([&] { twice(SIGTERM, SIGUSR1, 1100); }) == SIGTERM);
  CHECK(outcome([&] {
          signal(SIGHUP, SIG_IGN);
          const tessera::cli::StopSignals signals;
          raise(SIGHUP);
          _exit(signals.seen());
        }) == 0);
}

TEST_CASE("faults: gradients that are not finite stop a job or are skipped", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string bad = "--mesh data:2 --steps 40 --set lr=1e38 optimizer=sgd clip=0 ";
  const CliResult stopped = train(f, bad);
  expect_failure(stopped, 1, {"is the first that is not finite", "step "});
  const CliResult skipped = train(f, bad + "--on-nonfinite skip --log log.jsonl");
  expect_failure(skipped, 1, {"20 steps in a row", "not finite", "lower train.lr"});
  CHECK(contains(skipped.out, "is skipped (1 so far): ["));
  const auto records = log_of(f, "log.jsonl", "loss");
  REQUIRE(!records.empty());
  CHECK(records.back()["skipped"].get<int>() == 19);
  CHECK(records.back()["loss"].is_null());
  expect_failure(train(f, "--on-nonfinite ignore"), 1, {"'ignore' is neither skip nor stop"});
}

TEST_CASE("faults: a skipped step changes nothing, and the next one is as without it") {
  using namespace tessera;
  for (const char* layout : {"", "batch:a", "d:a"}) {
    INFO(layout);
    Graph g;
    const Dim batch("batch", 4), d("d", 6);
    Tensor x = g.input("x", {batch, d}, DType::float32);
    Tensor w = g.parameter("w", {d}, nn::normal(1));
    Tensor loss = mean_all(square(einsum({x, w}, {batch}))).named("loss");
    minimize(loss, constant(g, 0.1), adam());
    Cluster ranks = Cluster::threads(2);
    CompileOptions options{Mesh::parse("a:2"), Layout::parse(layout), {{"train", {loss}, true}}};
    options.guards = {"loss"};
    options.skip_non_finite = true;
    Session with(g, ranks, options), without(g, ranks, options);
    for (int step = 0; step < 5; ++step) {
      Array values(DType::float32, {"batch", "d"}, {4, 6});
      for (int i = 0; i < 24; ++i)
        values.data<float>()[i] = static_cast<float>((i * 7 + step * 3) % 11) - 5;
      without.feed("x", values);
      without.run("train");
      if (step == 2) {
        Array broken = values;
        broken.data<float>()[13] = NAN;
        with.feed("x", broken);
        with.run("train");
        CHECK(contains(with.skipped(), "is the first that is not finite"));
        CHECK(contains(with.skipped(), "nothing was stored"));
      }
      with.feed("x", values);
      with.run("train");
      CHECK(with.skipped().empty());
    }
    CHECK(with.fetch("w").bytes == without.fetch("w").bytes);
  }
}

TEST_CASE("faults: copies of a parameter that differ are found") {
  using namespace tessera;
  Graph g;
  const Dim rows("rows", 6), cols("cols", 5);
  g.parameter("w", {rows, cols}, nn::normal(1));
  Tensor b = g.parameter("b", {cols}, nn::normal(1));
  Cluster ranks = Cluster::threads(4);
  Session s(g, ranks,
            {Mesh::parse("a:2;b:2"), Layout::parse("rows:a"), {{"run", {sum_all(b)}, false}}});
  CHECK(replica_difference(s).empty());
  const std::vector<Slice> slices = s.slices("w");  // rank 3 and rank 2 have the same rows
  static_cast<float*>(slices[3].data)[4] += 1;
  CHECK(replica_difference(s) == "the copies of 'w' on the ranks 2 and 3 differ");
  static_cast<float*>(slices[2].data)[4] += 1;
  CHECK(replica_difference(s).empty());  // another slice than that of the ranks 0 and 1
  static_cast<float*>(s.slices("b")[1].data)[2] += 1;
  CHECK(replica_difference(s) ==
        "the copy of 'b' on rank 1 differs from 3 equal ones, such as rank 0's");
}

/// Two ranks with copies of a parameter 'w' that differ in an element.
struct DifferingCopies {
  tessera::Graph graph;
  tessera::Tensor w = graph.parameter("w", {{"rows", 64}}, tessera::nn::normal(1));
  tessera::Cluster ranks = tessera::Cluster::threads(2);
  tessera::Session session{
      graph,
      ranks,
      {tessera::Mesh::parse("a:2"), tessera::Layout(), {{"run", {tessera::sum_all(w)}, false}}}};
  DifferingCopies() { static_cast<float*>(session.slices("w")[1].data)[0] += 1; }
};

TEST_CASE("faults: copies are compared as often as asked, or as costs little") {
  using namespace tessera;
  DifferingCopies copies;
  Session& s = copies.session;
  tessera::cli::ReplicaCheck never(0, ""), third(3, ""), chosen(std::nullopt, "");
  for (int64_t step = 1; step <= 40; ++step) CHECK_NOTHROW(never.after_step(s, step, 1));
  CHECK(never.before_save(s, 40) == "not compared");
  CHECK_NOTHROW(third.after_step(s, 1, 1));
  expect_error(ErrorKind::device,
               {"the copies of 'w' on the ranks 0 and 1 differ after step 2",
                "not compared before in this run", "no checkpoint is known", "start anew"},
               [&] { third.before_save(s, 2); });
  static_cast<float*>(s.slices("w")[1].data)[0] = static_cast<float*>(s.slices("w")[0].data)[0];
  CHECK_NOTHROW(third.after_step(s, 3, 1));
  CHECK(third.before_save(s, 3) == "equal after step 3");
  for (int64_t step = 1; step <= 10; ++step) chosen.after_step(s, step, 1e-9);
  static_cast<float*>(s.slices("w")[1].data)[0] += 1;
  for (int64_t step = 11; step <= 40; ++step)  // too dear beside such short steps
    CHECK_NOTHROW(chosen.after_step(s, step, 1e-9));
  expect_error(ErrorKind::device, {"differ after step 41"}, [&] { chosen.before_save(s, 41); });
  expect_error(ErrorKind::device, {"after step 3 all were equal"},
               [&] { third.after_step(s, 6, 1); });
}

TEST_CASE("faults: a checkpoint says that copies were equal, and the error names the last one",
          "[cli]") {
  using namespace tessera;
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--mesh data:2 --steps 4 --save-every 2 --checkpoint ck"));
  const std::vector<Checkpoint> saved = find_checkpoints(f.dir + "/ck");
  REQUIRE(saved.size() == 2);
  CHECK(saved[0].metadata.at("replicas") == "equal after step 4");
  CHECK(saved[1].metadata.at("replicas") == "equal after step 2");
  DifferingCopies copies;
  Session& s = copies.session;
  tessera::cli::ReplicaCheck check(0, f.dir + "/ck"), other(7, f.dir + "/ck");
  CHECK(check.before_save(s, 9) == "not compared");
  expect_error(
      ErrorKind::device,
      {"the last checkpoint whose copies were equal is '" + saved[0].path + "'", "--resume"},
      [&] { other.before_save(s, 9); });
  // A checkpoint without a comparison is passed over.
  expect_success(train(f, "--mesh data:2 --steps 6 --checkpoint ck --resume --check-replicas 0"));
  REQUIRE(find_checkpoints(f.dir + "/ck")[0].metadata.at("replicas") == "not compared");
  expect_error(ErrorKind::device, {saved[0].path}, [&] { other.before_save(s, 9); });
}

TEST_CASE("faults: --check-replicas passes in a healthy run", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--mesh \"data:2;model:2\" --steps 4 --check-replicas 2"));
  expect_failure(train(f, "--check-replicas -1"), 1, {"--check-replicas -1"});
}

TEST_CASE("stragglers: the slow rank is named with its host") {
  tessera::cli::Stragglers s;
  for (int64_t step = 1; step < 20; ++step)
    CHECK(s.after_step(step, {0.010, 0.011, 0.019, 0.010}, {"n0", "n0", "n1", "n1"}).empty());
  CHECK(s.after_step(20, {0.010, 0.011, 0.019, 0.010}, {"n0", "n0", "n1", "n1"}) ==
        "rank 2 on n1 is slow: 19.0 ms of its own work a step, the median is 10.0 ms (steps 1 to "
        "20)");
  CHECK(s.slow() == 2);
  CHECK(s.slowest() == 2);
  for (int64_t step = 21; step <= 40; ++step)  // not by more than 2 ms
    CHECK(s.after_step(step, {0.001, 0.0025}, {}).empty());
}

TEST_CASE("faults: the first line comes before the work, and the start is reported", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const CliResult result = train(f, "--mesh data:2 --steps 2 --log log.jsonl");
  expect_success(result);
  CHECK(result.out.rfind("tessera ", 0) == 0);
  CHECK(contains(result.out.substr(0, result.out.find('\n')), ": train gpt"));
  CHECK(contains(result.out, "first step after "));
  const auto start = log_of(f, "log.jsonl", "startup");
  REQUIRE(start.size() == 1);
  CHECK(start[0]["startup"]["first_step_s"].get<double>() > 0);
}

TEST_CASE("launch_local: restarts what can be cured, and nothing else", "[cli]") {
  const Folder f;
  f.write("job", R"(#!/bin/bash
echo "$*" >> calls
codes=($CODES)
n=$(wc -l < calls)
exit ${codes[$((n - 1))]:-0}
)");
  std::filesystem::permissions(f("job"), std::filesystem::perms::owner_all);
  const auto launch = [&](const std::string& codes, const std::string& options) {
    std::filesystem::remove(f("calls"));
    const std::string command = "cd '" + f.dir + "' && CODES='" + codes + "' " + kLaunchLocal +
                                options + " ./job train --checkpoint ck > out.txt 2>&1";
    const int status = std::system(command.c_str());
    return WEXITSTATUS(status);
  };
  CHECK(launch("0", "") == 0);
  CHECK(f.read("calls") == "train --checkpoint ck\n");
  CHECK(launch("76 137 0", "") == 0);
  CHECK(f.read("calls") ==
        "train --checkpoint ck\ntrain --checkpoint ck --resume\ntrain --checkpoint ck --resume\n");
  CHECK(launch("1", "") == 1);
  CHECK(launch("76 2", "") == 2);
  CHECK(launch("76 76 76 0", "--max-restarts 2") == 76);
  CHECK(contains(f.read("out.txt"), "no restart is left of 2"));
  CHECK(launch("75 0", "") == 0);  // a signal that only the job got
  CHECK(launch("0", "--restarts 3") == 2);
  CHECK(contains(f.read("out.txt"), "unknown option '--restarts'"));
  CHECK(launch("0", "--max-restarts many") == 2);
  CHECK(contains(f.read("out.txt"), "'many' is not a number"));
}

TEST_CASE("launch_slurm: steps, nodes that are left, and the queue", "[cli]") {
  const Folder f;
  std::filesystem::create_directory(f("bin"));
  f.write("bin/srun", R"(#!/bin/bash
echo "srun $*" >> calls
n=$(grep -c ^srun calls)
codes=($CODES)
exit ${codes[$((n - 1))]:-0}
)");
  f.write("bin/sinfo", "#!/bin/bash\nprintf 'n1 alloc\\nn2 down*\\nn3 mixed\\n'\n");
  f.write("bin/scontrol", "#!/bin/bash\necho \"scontrol $*\" >> calls\n");
  for (const char* name : {"bin/srun", "bin/sinfo", "bin/scontrol"})
    std::filesystem::permissions(f(name), std::filesystem::perms::owner_all);
  const auto launch = [&](const std::string& codes, const std::string& job = "SLURM_JOB_ID=7 ") {
    std::filesystem::remove(f("calls"));
    const std::string command =
        "cd '" + f.dir +
        "' && PATH=$PWD/bin:$PATH SLURM_JOB_NODELIST=n[1-3] SLURM_NTASKS_PER_NODE=2 " + job +
        "CODES='" + codes +
        "' " TESSERA_SOURCE_DIR
        "/scripts/launch_slurm --max-restarts 1 tessera train > out.txt 2>&1";
    return WEXITSTATUS(std::system(command.c_str()));
  };
  const std::string
      first = "srun --mpi=pmix --kill-on-bad-exit=1 tessera train\n",
      second =
          "srun --mpi=pmix --kill-on-bad-exit=1 --nodes 2 --ntasks 4 --nodelist n1,n3 "
          "tessera train --resume\n";
  CHECK(launch("0") == 0);
  CHECK(f.read("calls") == first);
  CHECK(launch("76 0") == 0);
  CHECK(f.read("calls") == first + second);
  CHECK(launch("76 76 0") == 76);
  CHECK(launch("1 0") == 1);
  CHECK(f.read("calls") == first);
  CHECK(launch("75") == 0);
  CHECK(f.read("calls") == first + "scontrol requeue 7\n");
  CHECK(launch("0", "") == 2);
  CHECK(contains(f.read("out.txt"), "this is not a Slurm job"));
}

TEST_CASE("launch_local: a signal saves and is not restarted", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  BackgroundJob job(f, kLaunchLocal + TESSERA_CLI " train " + std::string(kTinyGpt) +
                           "--mesh data:2 --steps 1000000 --checkpoint ck --log log.jsonl");
  REQUIRE(eventually([&] { return contains(f.read("log.jsonl"), "\"step\":3,"); }));
  job.send(SIGTERM);
  CHECK(job.wait() == 75);
  CHECK(checkpoints_in(f).size() == 1);
}

TEST_CASE("faults: a rank that hangs ends the job with one message", "[cli]") {
  if (!has_mpi()) return;
  const Folder f;
  f.write("text.txt", some_text());
  for (const int number : {SIGSTOP, SIGKILL}) {
    BackgroundJob job(f, kLaunchLocal + "--max-restarts 0 --ranks 4 " TESSERA_CLI " train " +
                             std::string(kTinyGpt) +
                             "--steps 1000000 --timeout 2 --checkpoint ck --save-every 100000 "
                             "--log log.jsonl");
    REQUIRE(eventually([&] { return contains(f.read("log.jsonl"), "\"step\":9,"); }));
    const std::vector<pid_t> ranks = ranks_in(f);
    REQUIRE(ranks.size() == 4);
    kill(ranks[2], number);
    const int code = job.wait();
    const std::string out = f.read("job.txt");
    INFO(out);
    CHECK(code == (number == SIGSTOP ? 76 : 137));
    CHECK(count(out, "tessera: ") <= 1);
    CHECK(count(out, "\n    #4 ") == 0);  // those that wait for one say little
    if (number == SIGSTOP) {
      char host[256] = "";
      gethostname(host, sizeof(host) - 1);
      CHECK(count(out, "tessera: comm error: step ") == 1);
      for (const std::string& part :
           {std::string("[all_"), std::string(" (last seen at ["), std::string(" on ") + host,
            std::string("waited 2 s for rank ")})
        CHECK(contains(out, part));
    }
    CHECK(eventually([&] { return ranks_in(f).empty(); }));
    std::filesystem::remove(f("log.jsonl"));
  }
}

TEST_CASE("faults: time in which a job was stopped counts for no time-out", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  BackgroundJob job(f, TESSERA_CLI " train " + std::string(kTinyGpt) +
                           "--mesh data:3 --timeout 1 --steps 1000000 --log log.jsonl");
  const auto steps = [&] { return log_of(f, "log.jsonl", "loss").size(); };
  REQUIRE(eventually([&] { return contains(f.read("log.jsonl"), "\"step\":3,"); }));
  for (int i = 0; i < 3; ++i) {
    job.send(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(4));
    const size_t before = steps();
    job.send(SIGCONT);
    CHECK(eventually([&] { return steps() > before + 5; }));
  }
  REQUIRE(job.is_running());
  job.send(SIGTERM);
  CHECK(job.wait() == 75);
  CHECK(count(f.read("job.txt"), "watchdog") == 0);
}

TEST_CASE("faults: a number of ranks that does not fit is told, and not tried again", "[cli]") {
  if (!has_mpi()) return;
  const Folder f;
  f.write("text.txt", some_text());
  BackgroundJob job(f, kLaunchLocal + "--ranks 2 " TESSERA_CLI " train " + std::string(kTinyGpt) +
                           "--mesh data:3 --steps 2 --checkpoint ck");
  CHECK(job.wait() == 1);
  const std::string out = f.read("job.txt");
  INFO(out);
  CHECK(count(out, "tessera: usage error: ") == 1);
  CHECK(contains(out, "has 3 ranks but there are 2"));
  CHECK_FALSE(contains(out, "restart"));
}

}  // namespace TESSERA_FILE
