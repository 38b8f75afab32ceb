// Uses the processor's CRC instruction if it has one, else a table.
#include "base/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tessera {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t x = i;
    for (int bit = 0; bit < 8; ++bit) x = (x >> 1) ^ ((x & 1) != 0 ? kPolynomial : 0);
    table[i] = x;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t by_table(const unsigned char* at, size_t bytes, uint32_t state) {
  for (; bytes > 0; --bytes, ++at) state = kTable[(state ^ *at) & 255] ^ (state >> 8);
  return state;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(const unsigned char* at, size_t bytes,
                                                          uint32_t state) {
  uint64_t wide = state;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  state = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++at) state = _mm_crc32_u8(state, *at);
  return state;
}

/// Checksums of kAtOnce blocks, whose size is a multiple of 8. The instruction has a latency of
/// three cycles but a throughput of one per cycle, so the blocks are interleaved.
constexpr size_t kAtOnce = 4;
__attribute__((target("sse4.2"))) void by_instruction(const unsigned char* at, size_t block,
                                                      uint32_t* sums) {
  uint64_t state[kAtOnce];
  std::fill_n(state, kAtOnce, ~uint32_t{0});
  for (size_t i = 0; i < block; i += 8) {
    for (size_t k = 0; k < kAtOnce; ++k) {
      uint64_t word;
      std::memcpy(&word, at + k * block + i, 8);
      state[k] = _mm_crc32_u64(state[k], word);
    }
  }
  for (size_t k = 0; k < kAtOnce; ++k) sums[k] = ~static_cast<uint32_t>(state[k]);
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}
#endif

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
  const auto* at = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  if (has_instruction()) return ~by_instruction(at, bytes, ~before);
#endif
  return ~by_table(at, bytes, ~before);
}

void crc32c_blocks(const void* data, size_t block, size_t count, uint32_t* sums) {
  const auto* at = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  for (; has_instruction() && block % 8 == 0 && count >= kAtOnce; count -= kAtOnce) {
    by_instruction(at, block, sums);
    at += kAtOnce * block;
    sums += kAtOnce;
  }
#endif
  for (; count > 0; --count, at += block) *sums++ = crc32c(at, block);
}

}  // namespace tessera
