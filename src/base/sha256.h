// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  void add(const std::string& text) { add(std::as_bytes(std::span(text))); }
  /// The hash of all that was added, as 64 hexadecimal digits. Ends it.
  std::string hex();

 private:
  void add_block(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> open_ = {};  ///< a block that is not full yet
  uint64_t bytes_ = 0;
};

}  // namespace tessera
