#include "gpu/emulator.h"

#ifdef TESSERA_TEST_RULES
#include "gpu/rules/libraries.h"
#endif

namespace tessera::test {

CudaApi& CudaEmulator::api() {
#ifdef TESSERA_TEST_RULES
  const std::lock_guard lock(opening_);
  if (!direct && !libraries_) libraries_ = rules::open_libraries(emulated_);
  if (libraries_) return *libraries_;
#endif
  return emulated_;
}

}  // namespace tessera::test
