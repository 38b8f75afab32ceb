// libFuzzer's entry for the target that TESSERA_FUZZ_TARGET names.
#include <cstring>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const tessera::test::FuzzTarget& t : tessera::test::fuzz_targets()) {
    if (std::strcmp(t.name, TESSERA_FUZZ_TARGET) == 0)
      t.run(std::string(reinterpret_cast<const char*>(data), size));
  }
  return 0;
}
