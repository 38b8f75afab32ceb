// oneDNN divides a product among the OpenMP threads of its caller. That must be one here, because
// ranks and their teams bring the threads.
#pragma once

#include <omp.h>

namespace tessera::cpu {

class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

}  // namespace tessera::cpu
