// What a thread needs while it is in oneDNN.
#pragma once

#include <omp.h>
#include <signal.h>

namespace tessera::cpu {

/// One OpenMP thread: oneDNN divides a product among those of its caller, and here ranks and their
/// teams bring the threads.
///
/// No signal handler on the thread's stack: the kernels of dnnl_sgemm (2.6.3, AVX2 and AVX-512)
/// keep pointers below the stack pointer, beyond the 128 bytes that the ABI protects, so that a
/// handler changes what they write and where. Signals come when the call is over. Those that tell
/// of a fault of the thread itself stay.
class OneDnnCall {
 public:
  OneDnnCall() : threads_(omp_get_max_threads()) {
    omp_set_num_threads(1);
    sigset_t most;
    sigfillset(&most);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
      sigdelset(&most, fault);
    pthread_sigmask(SIG_BLOCK, &most, &signals_);
  }
  ~OneDnnCall() {
    pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
    omp_set_num_threads(threads_);
  }
  OneDnnCall(const OneDnnCall&) = delete;

 private:
  const int threads_;
  sigset_t signals_;
};

}  // namespace tessera::cpu
