// Training that is interrupted: what a resumed job computes, and who may write where.
#include <random>

#include "cli/cli_background.h"
#include "ops/op_cases_run.h"
#include "tessera/checkpoint.h"

using namespace tessera::test;

namespace TESSERA_FILE {

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}

std::string command(const std::string& more) {
  return std::string(TESSERA_CLI " train ") + kTinyGpt + more;
}

bool appears(const std::string& path) {
  return eventually([&] { return std::filesystem::exists(path); });
}

/// Unfinished saves in ck.
int parts_in(const Folder& f) {
  int count = 0;
  std::error_code none;
  for (std::filesystem::directory_iterator it(f("ck"), none), end; it != end; it.increment(none))
    count += it->path().filename().string().find(".tmp") != std::string::npos;
  return count;
}

TEST_CASE("resume: bit-equal to a run without a break", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string layout = "--mesh \"data:2;model:2\" ";
  expect_success(train(f, layout + "--steps 8 --log whole.jsonl"));
  expect_success(train(f, layout + "--steps 5 --checkpoint ck --log parts.jsonl"));
  const CliResult resumed =
      train(f, layout + "--steps 8 --checkpoint ck --resume --log parts.jsonl");
  expect_success(resumed);
  CHECK(resumed.out.find("resumed from ck/step-00000005 at step 5") != std::string::npos);
  const auto whole = losses_of(f, "whole.jsonl"), parts = losses_of(f, "parts.jsonl");
  CHECK(whole.size() == 8);
  CHECK(whole == parts);
}

TEST_CASE("resume: on another mesh and layout", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--mesh data:4 --steps 8 --log whole.jsonl"));
  expect_success(train(f, "--mesh data:2 --steps 4 --checkpoint ck --log parts.jsonl"));
  expect_success(train(f,
                       "--mesh \"a:3;b:2\" --layout \"length:a;d_model:b\" --steps 8 "
                       "--checkpoint ck --resume --log parts.jsonl"));
  const auto whole = losses_of(f, "whole.jsonl"), parts = losses_of(f, "parts.jsonl");
  REQUIRE(whole.size() == parts.size());
  for (const auto& [step, loss] : whole) {
    INFO("step " << step);
    CHECK(std::abs(parts.at(step) - loss) <= 1e-4 * std::abs(loss));
  }
}

TEST_CASE("train: rules for tensors that only training has leave evaluations alone", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string job = "--mesh data:2 --steps 2 --checkpoint ck --layout ";
  const CliResult r = train(f, job + "\"batch:data;@/*.grad/ d_model:data\"");
  INFO(r.out << r.err);
  CHECK(r.code == 0);
  CHECK(r.out.find("eval at step 2: loss ") != std::string::npos);
  expect_failure(
      run_cli_in(f, "eval gpt --checkpoint ck --data text.txt --mesh data:2 --layout btach:data"),
      1, {"no tensor has a dim 'btach'"});
}

TEST_CASE("resume: after kill -9 in the middle, several times", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string flags =
      "--mesh data:2 --save-every 1 --keep 2 --checkpoint ck --log log.jsonl ";
  for (int round = 0; round < 3; ++round) {
    const int wanted = 3 * round + 3;
    BackgroundJob job(f, command(flags + "--steps 100000 --resume"));
    REQUIRE(appears(f("ck/step-0000000" + std::to_string(wanted))));
    job.send(SIGKILL);
    CHECK(job.wait() == 137);
  }
  const auto killed = losses_of(f, "log.jsonl");
  const int64_t reached = killed.rbegin()->first;
  const std::string steps = "--steps " + std::to_string(reached + 2);
  expect_success(train(f, flags + "--resume " + steps));
  expect_success(train(f, "--mesh data:2 --log whole.jsonl " + steps));
  const auto parts = losses_of(f, "log.jsonl"), whole = losses_of(f, "whole.jsonl");
  CHECK(parts == whole);
  for (const auto& entry : std::filesystem::directory_iterator(f("ck")))
    CHECK(entry.path().filename().string().find(".tmp") == std::string::npos);
}

TEST_CASE("resume: after kill -9 at random moments of saving", "[slow]") {
  const Folder f;
  f.write("text.txt", some_text());
  // A checkpoint of 5 MB every step: most of the time goes into saving.
  const std::string flags =
      "--mesh data:2 --save-every 1 --checkpoint ck --set d_model=128 ff=512 layers=2 ";
  const uint64_t seed = seed_of_run(1);
  std::mt19937_64 random(seed);
  int partial = 0;
  for (int round = 0; round < 20; ++round) {
    INFO("seed " << seed << " round " << round);
    const auto before = checkpoints_in(f);
    BackgroundJob job(f, command(flags + "--steps 100000 --log log.jsonl --resume"));
    // It works once it has saved again. Then at any moment, or while a file is being written.
    REQUIRE(eventually([&] { return checkpoints_in(f) != before; }));
    if (round % 2 == 1) REQUIRE(eventually([&] { return parts_in(f) > 0; }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (round % 2 ? 3000 : 60000)));
    job.send(SIGKILL);
    CHECK(job.wait() == 137);
    partial += parts_in(f);
    REQUIRE(!checkpoints_in(f).empty());
    for (const std::string& path : checkpoints_in(f)) CHECK_NOTHROW(tessera::read_checkpoint(path));
  }
  WARN("seed " << seed << ": 20 kills, " << partial << " of them left a part of a checkpoint");
  CHECK(partial > 0);
  const int64_t reached = losses_of(f, "log.jsonl").rbegin()->first;
  const std::string steps = "--steps " + std::to_string(reached + 2);
  expect_success(train(f, flags + "--log log.jsonl --resume " + steps));
  expect_success(
      train(f, "--mesh data:2 --set d_model=128 ff=512 layers=2 --log whole.jsonl " + steps));
  CHECK(losses_of(f, "log.jsonl") == losses_of(f, "whole.jsonl"));
}

/// A job whose disk is full to the end says so, asks for a restart, leaves the last checkpoint as
/// it was and nothing else, and goes on from it when there is room: `full` runs a command where
/// there is none.
void check_full_disk(const Folder& f, const std::string& full) {
  expect_success(train(f, "--mesh data:2 --steps 3 --checkpoint ck --log parts.jsonl"));
  const std::string saved = f.read("ck/step-00000003/rank-00000.safetensors");
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(f("ck")))
      all.insert(entry.path().filename());
    return all;
  };
  const auto before = names();
  const CliResult result =
      run_cli_in(f,
                 std::string("train ") + kTinyGpt +
                     "--mesh data:2 --steps 6 --checkpoint ck --resume --save-retry 0.2",
                 full);
  INFO(result.out << result.err);
  CHECK(result.code == 75);
  for (const char* words : {"cannot write 'ck/step-00000006.tmp-", "bytes of tensors", "make room",
                            "the state after step 6 could not be saved in 0.2 s"})
    CHECK(result.out.find(words) != std::string::npos);
  CHECK(names() == before);
  CHECK(f.read("ck/step-00000003/rank-00000.safetensors") == saved);
  expect_success(train(f, "--mesh data:2 --steps 6 --checkpoint ck --resume --log parts.jsonl"));
  expect_success(train(f, "--mesh data:2 --steps 6 --log whole.jsonl"));
  CHECK(losses_of(f, "parts.jsonl") == losses_of(f, "whole.jsonl"));
}

TEST_CASE("resume: a file may not grow as large as a checkpoint", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  check_full_disk(f, "sh -c 'trap \"\" XFSZ; ulimit -f 40; exec \"$@\"' sh");  // 20 or 40 KiB
}

TEST_CASE("resume: a full disk", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  // A small file system over ck, with what is there, of which the command uses up the rest.
  const std::string mount =
      "mkdir ck.small && mount -t tmpfs -o size=200k none ck.small && cp -a ck/. ck.small/ && "
      "mount --bind ck.small ck";
  f.write("mount.sh", "set -e\nrm -rf ck.small\n" + mount +
                          "\nstatus=0\n\"$@\" || status=$?\nrm ck/lock\n"
                          "ls ck > names.txt\nexit $status\n");
  std::filesystem::create_directory(f("ck"));
  if (std::system(
          ("cd '" + f.dir + "' && unshare -rm sh -c '" + mount + "' > /dev/null 2>&1").c_str()) !=
      0) {
    WARN("no file system of one's own may be mounted here: not run");
    return;
  }
  std::filesystem::remove_all(f("ck"));
  check_full_disk(f, "unshare -rm sh mount.sh");
  CHECK(f.read("names.txt") == "step-00000003\n");
}

TEST_CASE("resume: a checkpoint directory belongs to one job", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  BackgroundJob job(f, command("--mesh data:2 --save-every 50 --checkpoint ck --steps 1000000"));
  REQUIRE(appears(f("ck/lock")));
  REQUIRE(appears(f("ck/step-00000050")));
  for (const std::string more : {"", "--resume "}) {
    expect_failure(train(f, more + "--steps 2 --checkpoint ck --log second.jsonl"), 1,
                   {"'ck' is in use by process"});
  }
  CHECK(f.names().count("second.jsonl") == 0);
  CHECK(job.is_running());
}

TEST_CASE("resume: held-out data that are wrong are told before the first step", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const CliResult none = train(f, "--steps 2 --checkpoint ck --set held_out=0 eval_every=1");
  expect_success(none);
  CHECK(none.out.find("no held-out data: nothing is evaluated") != std::string::npos);
  CHECK(none.out.find("eval at") == std::string::npos);
  CHECK(std::filesystem::exists(f("ck/step-00000002/manifest.json")));
  expect_failure(run_cli_in(f, "eval gpt --data text.txt --checkpoint ck --set held_out=0 batch=4"),
                 1, {"there is no held-out data", "held_out=0.1"});
  const CliResult few = train(f, "--steps 2 --checkpoint other --set held_out=0.001");
  expect_failure(few, 1, {"'text.txt' has 4000 tokens", "one window of length 8 needs 9"});
  CHECK(few.out.find("step 1/") == std::string::npos);
  CHECK_FALSE(std::filesystem::exists(f("other")));
}

TEST_CASE("resume: eval reads the part of the data that training held out", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--steps 2 --checkpoint ck --set held_out=0.25"));
  const auto examples = [&](const std::string& more) {
    const CliResult r =
        run_cli_in(f, "eval gpt --data text.txt --checkpoint ck --json e.json " + more);
    expect_success(r);
    return json_of(f, "e.json")["examples"].get<int>();
  };
  CHECK(examples("--set batch=4") == 124);             // (1000 - 1) / 8
  CHECK(examples("--set batch=4 held_out=0.1") < 50);  // (400 - 1) / 8
}

TEST_CASE("resume: a save that is under way when an error ends the job is finished", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  // Large enough that the step after it fails before it is on disk.
  const CliResult broken = train(
      f,
      "--mesh data:2 --steps 40 --save-every 1 --checkpoint ck --set d_model=128 ff=512 layers=2 "
      "lr=1e38 optimizer=sgd clip=0");
  expect_failure(broken, 1, {"is the first that is not finite", "step "});
  const size_t at = broken.err.find("step ");
  const int failed = std::stoi(broken.err.substr(at + 5));
  REQUIRE(failed > 1);
  CHECK(tessera::find_latest(f("ck"))->step == failed - 1);
  CHECK(parts_in(f) == 0);
}

TEST_CASE("resume: eval and generate pass over a damaged checkpoint with a warning", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--steps 3 --save-every 1 --checkpoint ck"));
  const std::string name = "ck/step-00000003/rank-00000.safetensors";
  std::string bytes = f.read(name);
  bytes[bytes.size() / 2] ^= 1;
  f.write(name, bytes);
  const std::string flags = " --checkpoint ck --set batch=4";
  const auto passed_over = [&](const CliResult& r, const std::string& words) {
    INFO(r.err);
    CHECK(r.code == 0);
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    CHECK(r.err.rfind("tessera: warning: ", 0) == 0);
    CHECK(r.err.find(words) != std::string::npos);
  };
  for (const bool is_missing : {false, true}) {
    if (is_missing) std::filesystem::remove(f(name));
    const std::string words =
        is_missing
            ? "skipped a later checkpoint that cannot be read"
            : "'ck/step-00000002' is loaded instead of one that cannot be read: [checkpoint]";
    const CliResult e = run_cli_in(f, "eval gpt --data text.txt" + flags);
    passed_over(e, words);
    CHECK(e.out.find("ck/step-00000002: step 2, loss") != std::string::npos);
    passed_over(run_cli_in(f, "generate gpt --tokens 2" + flags), words);
    const CliResult v = run_cli_in(f, "checkpoint verify ck");
    expect_failure(v, 1, {"1 of 3 checkpoints cannot be read in full: ", "step-00000003"});
    CHECK(v.out.find("ck/step-00000001: ") != std::string::npos);
    CHECK(v.out.find("ck/step-00000003: DAMAGED") != std::string::npos);
  }
}

}  // namespace TESSERA_FILE
