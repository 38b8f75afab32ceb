// Which data a job trains on, in a line of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera {

/// "268435456 bytes, crc32c 0a1b2c3d": of all bytes up to 256 MiB; of more, the size and 256 blocks
/// of 1 MiB, evenly spread from the first to the last byte.
std::string fingerprint_of(const std::byte* data, int64_t bytes);

}  // namespace tessera
