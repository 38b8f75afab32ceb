#include "cli/signals.h"

#include <signal.h>

namespace tessera::cli {

namespace {

volatile sig_atomic_t first_signal = 0;
struct sigaction before_term, before_usr1;

void note(int number) {
  if (first_signal == 0) first_signal = number;
}

}  // namespace

StopSignals::StopSignals() {
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &before_term);
  sigaction(SIGUSR1, &action, &before_usr1);
}

StopSignals::~StopSignals() {
  sigaction(SIGTERM, &before_term, nullptr);
  sigaction(SIGUSR1, &before_usr1, nullptr);
}

int StopSignals::seen() const { return first_signal; }

const char* signal_name(int number) { return number == SIGTERM ? "SIGTERM" : "SIGUSR1"; }

}  // namespace tessera::cli
