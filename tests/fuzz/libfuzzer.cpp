// libFuzzer's entries for the target that TESSERA_FUZZ_TARGET names. TESSERA_FUZZ_FOLDER in the
// environment: a folder that gets the target's seeds, as seed-N, and its dictionary first.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "fuzz/targets.h"

namespace {

const tessera::test::FuzzTarget& target() {
  static const tessera::test::FuzzTarget& found = [&]() -> const tessera::test::FuzzTarget& {
    for (const tessera::test::FuzzTarget& t : tessera::test::fuzz_targets()) {
      if (std::string(t.name) == TESSERA_FUZZ_TARGET) return t;
    }
    std::abort();
  }();
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("TESSERA_FUZZ_FOLDER");
  if (folder == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : target().seeds)
    std::ofstream(fmt::format("{}/seed-{}", folder, number++), std::ios::binary) << seed;
  std::ofstream words(fmt::format("{}/dictionary", folder));
  for (const std::string& word : target().dictionary) {
    words << '"';
    for (const char c : word) words << fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    words << "\"\n";
  }
  words.close();
  std::exit(words.good() ? 0 : 1);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  target().run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
