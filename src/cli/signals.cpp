#include "cli/signals.h"

#include <signal.h>
#include <time.h>

#include <iterator>

namespace tessera::cli {

namespace {

struct Handled {
  int number;
  const char* name;
  bool ends_at_once;  ///< if it comes again
};
constexpr Handled kHandled[] = {{SIGTERM, "SIGTERM", true},
                                {SIGUSR1, "SIGUSR1", false},
                                {SIGINT, "SIGINT", true},
                                {SIGHUP, "SIGHUP", false}};

volatile sig_atomic_t first_signal = 0;
volatile sig_atomic_t first_second = 0, first_centisecond = 0;
struct sigaction actions_before[std::size(kHandled)];

void note(int number) {
  struct timespec now {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const auto second = static_cast<sig_atomic_t>(now.tv_sec);
  const auto centisecond = static_cast<sig_atomic_t>(now.tv_nsec / 10'000'000);
  if (first_signal == 0) {
    first_signal = number;
    first_second = second;
    first_centisecond = centisecond;
    return;
  }
  if ((second - first_second) * 100 + centisecond - first_centisecond < 100) return;
  for (const Handled& h : kHandled) {
    if (h.number != number || !h.ends_at_once) continue;
    signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  }
}

}  // namespace

StopSignals::StopSignals() {
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kHandled); ++i) {
    sigaction(kHandled[i].number, &action, &actions_before[i]);
    if (kHandled[i].number == SIGHUP && actions_before[i].sa_handler == SIG_IGN)
      sigaction(SIGHUP, &actions_before[i], nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < std::size(kHandled); ++i)
    sigaction(kHandled[i].number, &actions_before[i], nullptr);
}

int StopSignals::seen() const { return first_signal; }

const char* signal_name(int number) {
  for (const Handled& h : kHandled) {
    if (h.number == number) return h.name;
  }
  return "a signal";
}

}  // namespace tessera::cli
