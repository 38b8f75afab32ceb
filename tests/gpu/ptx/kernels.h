// Kernels by their text, as PTX that NVRTC makes of it; and what of it was executed.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "gpu/host_kernels.h"

namespace tessera::test::ptx {

/// Whether this build has a CUDA toolkit.
bool can_compile();
/// PTX of a kernel's text for compute_90 or TESSERA_PTX_ARCH, with the options that a GPU's kernels
/// are compiled with; kept in a folder of the build. Throws without NVRTC.
std::string compile(const std::string& text);

/// A kernel that is this PTX; `text`: shown with what is wrong.
std::unique_ptr<HostKernel> make_kernel(const std::string& text, const std::string& ptx);

/// Says that `text` will be wanted: it is compiled beside others.
void announce(const std::string& text);
const HostKernel& kernel(const std::string& text);

struct Executed {
  int kernels = 0;       ///< that contain it
  int64_t places = 0;    ///< in their texts
  int64_t executed = 0;  ///< of these, by any thread
};
/// Of all kernels that ran in this process, by opcode with its modifiers.
std::map<std::string, Executed> coverage();
struct Counts {
  int64_t kernels = 0, launches = 0;
};
Counts counts();

}  // namespace tessera::test::ptx
