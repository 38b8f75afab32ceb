// A stand-in for NVRTC, whose code is a line that names the architecture and the kernel's text.
#pragma once

#include <nvrtc.h>

#include <optional>
#include <string>

namespace tessera::test::rules {

/// What the stand-in of the driver loads.
struct Image {
  bool is_ptx = false;
  int arch = 0;
  std::string text;
};
/// Nothing if it is no code of the stand-in.
std::optional<Image> read_image(const char* code);

/// The function of NVRTC of that name; null if it has none.
void* find_nvrtc(const std::string& symbol);

}  // namespace tessera::test::rules
