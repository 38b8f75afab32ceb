// libFuzzer's entries for the target that TESSERA_FUZZ_TARGET in the environment names; without it
// the names are printed. TESSERA_FUZZ_FOLDER: a folder that gets the target's seeds, as seed-N, and
// its dictionary, and nothing else is done.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "fuzz/targets.h"

namespace {

const tessera::test::FuzzTarget* target = nullptr;

/// Every byte as \xHH: what libFuzzer reads in quotes.
std::string escaped(const std::string& word) {
  std::string text;
  char byte[5];
  for (const char c : word) {
    std::snprintf(byte, sizeof(byte), "\\x%02x", static_cast<unsigned char>(c));
    text += byte;
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char *wanted = std::getenv("TESSERA_FUZZ_TARGET"),
             *folder = std::getenv("TESSERA_FUZZ_FOLDER");
  for (const tessera::test::FuzzTarget& t : tessera::test::fuzz_targets()) {
    if (wanted == nullptr) std::puts(t.name);
    if (wanted != nullptr && std::string(t.name) == wanted) target = &t;
  }
  if (wanted == nullptr) std::exit(0);
  if (target == nullptr) {
    std::fprintf(stderr, "fuzz: no target '%s'\n", wanted);
    std::exit(2);
  }
  if (folder == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : target->seeds)
    std::ofstream(std::string(folder) + "/seed-" + std::to_string(number++), std::ios::binary)
        << seed;
  std::ofstream words(std::string(folder) + "/dictionary");
  for (const std::string& word : target->dictionary) words << '"' << escaped(word) << "\"\n";
  words.close();
  std::exit(words.good() ? 0 : 1);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  target->run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
