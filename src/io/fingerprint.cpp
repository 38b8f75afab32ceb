#include "io/fingerprint.h"

#include <algorithm>
#include <vector>

#include "base/crc32c.h"
#include "base/fail.h"
#include "tessera/data.h"

namespace tessera {

std::string fingerprint_of(const std::byte* data, int64_t bytes) {
  constexpr int64_t kBlock = int64_t{1} << 20, kBlocks = 256;
  if (bytes <= kBlocks * kBlock)
    return fmt::format("{} bytes, crc32c {:08x}", bytes, crc32c(data, static_cast<size_t>(bytes)));
  uint32_t crc = 0;
  for (int64_t i = 0; i < kBlocks; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(kBlocks - 1);
    const auto first = static_cast<int64_t>(share * static_cast<double>(bytes - kBlock));
    crc = crc32c(data + first, kBlock, crc);
  }
  return fmt::format("{} bytes, crc32c of {} MiB of them {:08x}", bytes, kBlocks, crc);
}

std::string DataSource::fingerprint() const {
  constexpr int64_t kExamples = 4096;
  const int64_t all = examples(), looked_at = std::min(all, kExamples);
  uint32_t crc = 0;
  for (int64_t i = 0; i < looked_at; ++i) {
    const int64_t example = all <= kExamples ? i : all / kExamples * i;
    for (size_t f = 0; f < fields().size(); ++f) {
      const DataField& field = fields()[f];
      DataBox box;
      int64_t elements = 1;
      for (size_t d = field.dims.size(); d-- > 0; elements *= field.dims[d].size) {
        box.offset.push_back(0);
        box.extent.insert(box.extent.begin(), field.dims[d].size);
        box.strides.insert(box.strides.begin(), elements);
      }
      std::vector<std::byte> bytes(static_cast<size_t>(elements * size_of(field.dtype)));
      box.data = bytes.data();
      read(example, static_cast<int>(f), box);
      crc = crc32c(bytes.data(), bytes.size(), crc);
    }
  }
  return fmt::format("{} examples, crc32c of {} of them {:08x}", all, looked_at, crc);
}

}  // namespace tessera
