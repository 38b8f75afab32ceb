// What convolution through the Fourier domain cuts its work into: tiles of images, blocks of
// images, vectors of channels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/conv_fourier.h"

namespace tessera::cpu {

/// A length with its factors of unity.
struct FourierLengthData {
  explicit FourierLengthData(int64_t n);
  FourierLengthData(const FourierLengthData&) = delete;
  FourierLength length;

 private:
  void add(int radix, int64_t n);
  std::vector<float> twiddles_[FourierLength::kMostPasses];
};

/// Of n vectors: first, first + 1, ... (mod n) follow each other at a stride, `count` of them; the
/// others are nowhere (-1).
using Offsets = std::vector<int64_t>;
Offsets offsets_in(int64_t n, int64_t first, int64_t count, int64_t stride);

/// Of a tile along one dim: places in the views, and where they are in a transform.
struct FourierRange {
  int64_t first = 0, count = 1, at = 0;
  const Offsets* in_place = nullptr;  ///< of a transform's vectors in the view
  const Offsets* kept = nullptr;      ///< and in the workspace
};
struct FourierPiece {
  FourierRange a, b;
};

/// The tiles along one dim.
std::vector<FourierPiece> pieces_of(const WindowDim& d, const FourierDim& plan, int64_t result);

/// A vector of a side: of `images` images from `image` on, `channels` from `channel` on.
struct SideVector {
  int64_t image, images, channel, channels;
};

/// The images of a side, as they are and transformed.
struct FourierSide {
  float* data = nullptr;                          ///< of the present group
  std::vector<int64_t> groups, images, channels;  ///< offsets
  int64_t strides[2] = {0, 0};
  bool dense = true;  ///< the channels
  int64_t lanes = 0;  ///< of an image: with padding
  float* planes = nullptr;
  float* columns = nullptr;  ///< [frequency][re, im][image][lane]
  int64_t column_step = 0;
  Offsets column;  ///< of its frequencies

  int64_t vectors(int64_t of_images) const { return of_images * lanes / kFourierLanes; }
  SideVector vector(int64_t v) const;
};

/// The images first, first + 1, ... of a tile.
struct FourierBlock {
  const FourierPiece* pieces[2];
  int64_t first, images;
  int64_t filled;  ///< images with those that fill vectors
};

}  // namespace tessera::cpu
