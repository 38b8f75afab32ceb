// A thread can only be asked for its stack: it gets a signal and walks its own frames. The handler
// only collects addresses; names are looked up by the thread that asks.
#include "cli/stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/fail.h"
#include "base/printable.h"

namespace tessera::cli {

namespace {

/// The handler's own frame and the one by which the system calls it.
constexpr int kOfHandler = 2;

int stack_signal() { return SIGRTMAX - 3; }

std::string name_of(void* address) {
  Dl_info info{};
  const bool known = dladdr(address, &info) != 0;
  std::string file = known && info.dli_fname != nullptr ? info.dli_fname : "?";
  file = file.substr(file.rfind('/') + 1);
  const auto offset_from = [&](const void* start) {
    return static_cast<const char*>(address) - static_cast<const char*>(start);
  };
  if (!known || info.dli_sname == nullptr)
    return fmt::format("{} +{:#x}", printable(file), known ? offset_from(info.dli_fbase) : 0);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  constexpr size_t kLongest = 120;
  std::string name = readable ? readable.get() : info.dli_sname;
  if (name.size() > kLongest) name = name.substr(0, kLongest) + "...";
  return fmt::format("{} +{:#x} in {}", printable(name), offset_from(info.dli_saddr),
                     printable(file));
}

}  // namespace

std::atomic<Stacks*> Stacks::current_{nullptr};

void Stacks::answer(int) {
  Stacks* const stacks = current_.load();
  int me = static_cast<int>(syscall(SYS_gettid));
  if (stacks == nullptr || !stacks->asked_.compare_exchange_strong(me, 0)) return;  // too late
  stacks->count_.store(backtrace(stacks->frames_, kMostFrames));
}

Stacks::Stacks() {
  void* first[1];
  backtrace(first, 1);  // loads what it needs, which a handler must not
  current_.store(this);
  struct sigaction action {};
  action.sa_handler = answer;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(stack_signal(), &action, &before_);
}

Stacks::~Stacks() {
  sigaction(stack_signal(), &before_, nullptr);
  current_.store(nullptr);
}

std::vector<std::string> Stacks::of(int thread) {
  count_.store(-1);
  asked_.store(thread);
  bool answers = syscall(SYS_tgkill, getpid(), thread, stack_signal()) == 0;
  for (int ms = 0; answers && count_.load() < 0; ++ms) {
    answers = ms < 1000 || asked_.load() == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int expected = thread;
  if (!answers && asked_.compare_exchange_strong(expected, 0))
    return {
        "it does not answer a signal: the system is doing something for it, such as reading a "
        "file"};
  std::vector<std::string> lines;
  for (int i = kOfHandler; i < count_.load(); ++i) lines.push_back(name_of(frames_[i]));
  return lines;
}

std::vector<std::pair<int, std::string>> helping_threads() {
  std::vector<std::pair<int, std::string>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    if (std::getline(file, name) && name.starts_with("tessera-"))
      found.emplace_back(std::atoi(entry.path().filename().c_str()), name);
  }
  return found;
}

}  // namespace tessera::cli
