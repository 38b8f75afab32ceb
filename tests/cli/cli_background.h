// Commands that run beside a test.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli/cli_run.h"
#include "tessera/checkpoint.h"

namespace tessera::test {

/// A command in the background, in a process group of its own, which ends with the object.
class BackgroundJob {
 public:
  BackgroundJob(const Folder& f, const std::string& command, const std::string& out = "job.txt") {
    const std::string text = "cd '" + f.dir + "' && exec " + command + " > " + out + " 2>&1";
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      execl("/bin/bash", "bash", "-c", text.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    setpgid(pid_, pid_);
  }
  ~BackgroundJob() {
    if (pid_ <= 0) return;
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  BackgroundJob(const BackgroundJob&) = delete;
  void send(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }
  bool is_running() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ > 0;
  }
  pid_t pid() const { return pid_; }
  /// The exit code, or -1 after so many seconds.
  int wait(int seconds = 120) {
    for (int i = 0; i < 500 * seconds; ++i) {
      if (!is_running()) return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return -1;
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
};

/// Waits until it is so, at most a minute.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 30000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

/// The processes of `tessera train` that work in the folder, in order of their ids.
inline std::vector<pid_t> ranks_in(const Folder& f) {
  std::vector<pid_t> pids;
  const std::string program = std::filesystem::canonical(TESSERA_CLI);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    if (std::filesystem::read_symlink(entry.path() / "exe", none) != program) continue;
    if (std::filesystem::read_symlink(entry.path() / "cwd", none) ==
        std::filesystem::canonical(f.dir))
      pids.push_back(static_cast<pid_t>(std::stoi(name)));
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

/// Names of the complete checkpoints of a directory of the folder.
inline std::set<std::string> checkpoints_in(const Folder& f, const std::string& directory = "ck") {
  std::set<std::string> all;
  std::error_code none;
  for (std::filesystem::directory_iterator it(f(directory), none), end; it != end;
       it.increment(none)) {
    const std::string name = it->path().filename();
    if (name.rfind("step-", 0) == 0 && name.find(".tmp") == name.npos) all.insert(it->path());
  }
  return all;
}

/// Whether a save is under way: a folder that is not complete yet.
inline bool is_saving(const Folder& f) {
  std::error_code none;
  for (std::filesystem::directory_iterator it(f("ck"), none), end; it != end; it.increment(none)) {
    if (it->path().filename().string().find(".tmp-") != std::string::npos) return true;
  }
  return false;
}

/// Parameters and state of the newest checkpoint, as the bytes of one file.
inline std::string whole_of(const Folder& f, const std::string& directory) {
  const auto latest = find_latest(f(directory));
  REQUIRE(latest.has_value());
  const std::string whole = directory + ".whole";
  std::filesystem::remove(f(whole));
  convert_checkpoint(latest->path, f(whole), {true, {}});
  return f.read(whole);
}

}  // namespace tessera::test
