// CRC-32C (Castagnoli), as checkpoints and TensorBoard's event files use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

/// Of `bytes` bytes, going on from the value of what came before them (0: nothing).
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

/// Of each of `count` blocks of `block` bytes that follow each other, from nothing: several times
/// as fast as one after the other.
void crc32c_blocks(const void* data, size_t block, size_t count, uint32_t* sums);

}  // namespace tessera
