// Tiles, and the lengths of transforms.
#include "kernels/cpu/conv_fourier_tiles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/fail.h"

namespace tessera::cpu {

FourierLengthData::FourierLengthData(int64_t n) {
  length.n = n;
  length.passes = 0;
  for (int radix : {8, 5, 4, 3, 2}) {
    // 16 is 4 x 4.
    for (; n % radix == 0 && !(radix == 8 && n == 16); n /= radix) add(radix, n);
  }
  if (length.passes == 0) add(1, n);
}

void FourierLengthData::add(int radix, int64_t n) {
  check(length.passes < FourierLength::kMostPasses, "no transform has length {}", length.n);
  std::vector<float>& w = twiddles_[length.passes];
  for (int64_t p = 0; p < n / radix; ++p) {
    for (int64_t j = 1; j < radix; ++j) {
      const double turn = -2 * std::numbers::pi * static_cast<double>(p * j % n);
      w.push_back(static_cast<float>(std::cos(turn / static_cast<double>(n))));
      w.push_back(static_cast<float>(std::sin(turn / static_cast<double>(n))));
    }
  }
  length.twiddles[length.passes] = w.data();
  length.radix[length.passes++] = radix;
}

Offsets offsets_in(int64_t n, int64_t first, int64_t count, int64_t stride) {
  Offsets offsets(static_cast<size_t>(n), -1);
  for (int64_t i = 0; i < count; ++i) offsets[static_cast<size_t>((first + i) % n)] = i * stride;
  return offsets;
}

std::vector<FourierPiece> pieces_of(const WindowDim& d, const FourierDim& plan, int64_t result) {
  std::vector<FourierPiece> pieces;
  const int64_t size = result == kOfX ? d.x_size : d.y_size;
  for (int64_t from = 0; from < size; from += plan.tile) {
    const int64_t count = std::min(plan.tile, size - from);
    FourierPiece p;
    if (result == kOfX) {
      // What is seen of y; x = y + window - before.
      const int64_t first = std::max<int64_t>(0, from + d.before - d.windows + 1);
      const int64_t end = std::min(d.y_size, from + count + d.before);
      p.a = {.first = d.y_first + first, .count = end - first, .at = 0};
      p.b = {.first = d.x_first + from, .count = count, .at = from + d.before - first};
    } else {
      const int64_t first = std::max<int64_t>(0, from - d.before);
      const int64_t end = std::min(d.x_size, from + count - d.before + d.windows - 1);
      p.a = {.first = d.x_first + first, .count = end - first, .at = d.before - from + first};
      p.b = {.first = d.y_first + from, .count = count, .at = result == kOfY ? d.windows - 1 : 0};
    }
    pieces.push_back(p);
  }
  return pieces;
}

SideVector FourierSide::vector(int64_t v) const {
  const int64_t all = static_cast<int64_t>(channels.size());
  if (lanes < kFourierLanes) return {v * kFourierLanes / lanes, kFourierLanes / lanes, 0, all};
  const int64_t of_image = lanes / kFourierLanes, channel = v % of_image * kFourierLanes;
  return {v / of_image, 1, channel, std::min(kFourierLanes, all - channel)};
}

}  // namespace tessera::cpu
