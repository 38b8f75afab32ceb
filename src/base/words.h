// What a step's time and a rank's memory consist of: the same words in every text and on every
// page.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/units.h"

namespace tessera {

/// The idle turns of a pipeline's stage.
inline constexpr const char* kBubble = "idle: pipeline bubble";

/// The bytes of a rank by what they are for. `Memory` has params, state, inputs and transient.
template <class Memory>
std::array<std::pair<const char*, int64_t>, 4> memory_parts(const Memory& m) {
  return {{{"parameters", m.params},
           {"optimizer state", m.state},
           {"inputs", m.inputs},
           {"transient, at the peak", m.transient}}};
}

/// "1.00 GB parameters + 2.00 GB optimizer state + ..."
template <class Memory>
std::string memory_parts_text(const Memory& m) {
  std::string text;
  for (const auto& [name, bytes] : memory_parts(m))
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ",
                        bytes_text(static_cast<double>(bytes)), name);
  return text;
}

/// "80.00 GB less 4.00 GB for CUDA's context and NCCL": what plans may use of a device.
inline std::string reserve_text(int64_t memory, int64_t reserve) {
  return fmt::format("{} less {} for CUDA's context and NCCL",
                     bytes_text(static_cast<double>(memory)),
                     bytes_text(static_cast<double>(reserve)));
}

/// "memory of a rank: 3.00 GB = 1.00 GB parameters + 2.00 GB optimizer state + ..."
template <class Memory>
std::string memory_text(const Memory& m) {
  int64_t sum = 0;
  for (const auto& part : memory_parts(m)) sum += part.second;
  return fmt::format("memory of a rank: {} = {}", bytes_text(static_cast<double>(sum)),
                     memory_parts_text(m));
}

}  // namespace tessera
