// The command line on emulated GPUs: `tessera` with --device cuda on a machine that has none.
// TESSERA_EMULATED_GPUS: how many (1). TESSERA_EMULATED_FAULT: one of the switches, such as
// TESSERA_CUDNN; what it turns off is as if broken, so the program fails unless it is off.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gpu/emulator.h"
#include "tessera/cli.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = variable("TESSERA_EMULATED_FAULT"),
                    gpus = variable("TESSERA_EMULATED_GPUS");
  if (!fault.empty() && variable(fault.c_str()) != "off") {
    std::fprintf(stderr, "tessera: device error: what %s turns off is broken\n", fault.c_str());
    return 1;
  }
  tessera::test::CudaEmulator emulator(gpus.empty() ? 1 : std::stoi(gpus), int64_t{8} << 30);
  emulator.has_cudnn = emulator.has_groups = true;
  const tessera::test::WithEmulator here(emulator);
  return tessera::run_cli(argc, argv);
}
