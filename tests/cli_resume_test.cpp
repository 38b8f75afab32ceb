// Training that is interrupted: what a resumed job computes, and who may write where.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli_run.h"

using namespace tessera::test;

namespace {

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}

/// A job in the background.
class Job {
 public:
  Job(const Folder& f, const std::string& more) {
    const std::string command =
        "cd '" + f.dir + "' && exec " TESSERA_CLI " train " + kTinyGpt + more + " > job.txt 2>&1";
    pid_ = fork();
    if (pid_ == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
  }
  ~Job() { kill9(); }
  Job(const Job&) = delete;
  void kill9() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  bool is_running() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  pid_t pid_ = 0;
};

/// Waits until the file exists, at most a minute.
bool appears(const std::string& path) {
  for (int i = 0; i < 6000; ++i) {
    if (std::filesystem::exists(path)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("resume: bit-equal to a run without a break", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string layout = "--mesh \"data:2;model:2\" ";
  expect_success(train(f, layout + "--steps 8 --log whole.jsonl"));
  expect_success(train(f, layout + "--steps 5 --checkpoint ck --log parts.jsonl"));
  const CliResult resumed =
      train(f, layout + "--steps 8 --checkpoint ck --resume --log parts.jsonl");
  expect_success(resumed);
  CHECK(resumed.out.find("resumed from ck/step-00000005.safetensors at step 5") !=
        std::string::npos);
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

TEST_CASE("resume: after kill -9 in the middle, several times", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string flags =
      "--mesh data:2 --save-every 1 --keep 2 --checkpoint ck --log log.jsonl ";
  for (int round = 0; round < 3; ++round) {
    const int wanted = 3 * round + 3;
    Job job(f, flags + "--steps 100000 --resume");
    REQUIRE(appears(f("ck/step-0000000" + std::to_string(wanted) + ".safetensors")));
    job.kill9();
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

TEST_CASE("resume: a checkpoint directory belongs to one job", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  Job job(f, "--mesh data:2 --save-every 50 --checkpoint ck --steps 1000000");
  REQUIRE(appears(f("ck/lock")));
  REQUIRE(appears(f("ck/step-00000050.safetensors")));
  for (const std::string more : {"", "--resume "}) {
    expect_failure(train(f, more + "--steps 2 --checkpoint ck --log second.jsonl"), 1,
                   {"'ck' is in use by process"});
  }
  CHECK(f.names().count("second.jsonl") == 0);
  CHECK(job.is_running());
}
