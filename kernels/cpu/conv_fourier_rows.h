// Lines of images, to and from the Fourier domain.
#pragma once

#include <vector>

#include "kernels/cpu/conv_fourier_tiles.h"

namespace tessera::cpu {

struct FourierRows {
  FourierRows(const FourierPlan& plan_of_step, const FourierOps& usable_ops);

  /// The first `vectors` vectors of a block's images, as they are, into the planes of their side.
  void transform(const FourierSide& side, const FourierBlock& block, int64_t vectors,
                 FourierRange FourierPiece::*which);
  /// The planes of side b into its images.
  void restore(const FourierSide& side, const FourierBlock& block);

  const FourierPlan& plan;
  const FourierOps& ops;
  FourierLengthData row_length;
  Offsets pairs;  ///< of frequencies k and -k side by side
  std::vector<float> signs;
  float *line = nullptr, *scratch = nullptr;  ///< of the workspace

 private:
  FourierLine kept_line(const Offsets& offsets) const {
    return {line, line + kFourierLanes, offsets.data(), nullptr};
  }
  FourierLine pairs_at(float* vectors) const {
    return {vectors, vectors + kFourierLanes, pairs.data(), signs.data()};
  }
};

}  // namespace tessera::cpu
