// Lines of images, to and from the Fourier domain.
#pragma once

#include <vector>

#include "kernels/cpu/conv_fourier_tiles.h"

namespace tessera::cpu {

struct FourierRows {
  FourierRows(const FourierPlan& plan_of_step, const FourierOps& usable_ops);

  /// The first `vectors` vectors of a block's images, as they are, into the planes of their side:
  /// twice their frequencies, but `own` times those that are their own negatives.
  void transform(const FourierSide& side, const FourierBlock& block, int64_t vectors,
                 FourierRange FourierPiece::*which, float own);
  /// The planes of side b into its images.
  void restore(const FourierSide& side, const FourierBlock& block);

  const FourierPlan& plan;
  const FourierOps& ops;
  FourierLengthData row_length;
  Offsets lines;  ///< of a transform of two lines: frequencies k in one of them, -k in the other
  float *line = nullptr, *scratch = nullptr;  ///< of the workspace

 private:
  FourierLine kept_line(const Offsets& offsets) const {
    return {line, line + kFourierLanes, offsets.data()};
  }
  FourierLine lines_at(float* vectors) const {
    return {vectors, vectors + kFourierLanes, lines.data()};
  }
};

}  // namespace tessera::cpu
