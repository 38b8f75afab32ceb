// Convolution through the Fourier domain, for filters with many places: a product per frequency
// instead of one per window place. Two halves of one decision, as of conv_direct.h: what views and
// attributes tell, so that the workspace can be planned, and what a rank's window adds at bind.
//
// A number that is not finite spreads over all places of its image, and over no other image (in a
// gradient by the filter, over all of it).
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/conv_fourier_ops.h"
#include "kernels/cpu/conv_views.h"
#include "kernels/kernel.h"

namespace tessera::cpu {

/// One spatial dim: how long a transform is, and how many places of the result's side (of y for a
/// gradient by the filter) are computed with one; more are cut into tiles.
struct FourierDim {
  int64_t n = 1, tile = 1;
  int64_t size = 1;                   ///< of what is cut into tiles, at most
  int64_t a = 1, b = 1, windows = 1;  ///< the most places of a piece of each side, and of a window
};

/// The side that a product reads as scalars is a (x; y in a gradient by x), the one with vectors
/// over its channels b.
struct FourierPlan {
  /// Unless `always`, only where it is clearly cheaper than direct convolution.
  explicit FourierPlan(const Step& step, bool always = false);

  bool applies = false;
  int64_t result = kOfY;
  int64_t images = 1, groups = 1;
  int64_t a_channels = 1, b_channels = 1;  ///< of a group
  int64_t a_lanes = 1, b_lanes = 1;        ///< of an image: with padding
  int64_t block = 1;                       ///< images that are transformed before a product
  FourierDim dims[2];                      ///< of one spatial dim: the second
  int64_t slots() const { return dims[1].n / 2 + 1; }  ///< frequencies that are kept of a line
  int64_t b_vectors() const { return b_lanes / kFourierLanes; }

  /// Floats of the parts of the workspace.
  int64_t spectrum() const;              ///< of the filter
  int64_t filter_plane() const;          ///< of a part of it, half transformed
  int64_t plane_row() const;             ///< of a line of a vector of images, half transformed
  int64_t plane() const;                 ///< of all lines
  int64_t planes() const;                ///< of a block's images
  int64_t column_step(bool of_a) const;  ///< of a frequency of a block's images
  int64_t line() const;                  ///< of the longest line
  int64_t total() const;                 ///< bytes

 private:
  double choose_lengths(const int64_t (&needs)[2]);
  void choose_block();
  int64_t bytes() const;
  double cost() const;
};

/// The kernel, or null where a rank's window sees nothing; args.workspace has total() bytes.
std::unique_ptr<Kernel> bind_fourier_conv(const KernelArgs& args, const FourierPlan& plan,
                                          const FourierOps& ops = *usable_fourier_ops().back());

}  // namespace tessera::cpu
