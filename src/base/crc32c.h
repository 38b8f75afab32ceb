// CRC-32C (Castagnoli), for checkpoints and TensorBoard event files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

/// The CRC of `bytes` bytes, continuing from the CRC `before` of the preceding data (0: none).
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

/// Separate CRCs of `count` consecutive blocks of `block` bytes. Several times as fast as one call
/// of crc32c per block.
void crc32c_blocks(const void* data, size_t block, size_t count, uint32_t* sums);

}  // namespace tessera
