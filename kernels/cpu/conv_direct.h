// Convolution by a library's direct kernels, which read images with their channels last as they
// lie: nothing is packed but the filter. Two halves of one decision: what views and attributes
// tell, so that the workspace can be planned, and what a rank's window adds to it at bind.
#pragma once

#include <memory>
#include <vector>

#include "kernels/common/conv_views.h"
#include "kernels/common/kernel.h"

namespace tessera::cpu {

using namespace kernels;

/// Elements per image of x (or y) and how they lie.
struct DirectSide {
  bool dense = true;     ///< the channels are last and dense, and of a type that the library takes
  bool copied = false;   ///< per call into the workspace, of ranks that have a part or if not dense
  int64_t elements = 0;  ///< of one image
  int64_t bytes = 0;     ///< of the copy
};

struct DirectPlan {
  explicit DirectPlan(const Step& step);

  /// True if the library is tried. It may still decline when the step is bound.
  bool applies = false;
  int64_t images = 1, groups = 1, inputs = 1, outputs = 1;
  int64_t item = 4;      ///< bytes of an element
  bool widened = false;  ///< bfloat16 is copied, and convolved, as float32
  DirectSide x, y;
  int64_t copied_images = 1;  ///< of a call with a copied side; divides images
  int64_t filter_bytes = 0;   ///< as the library orders it, at most
  int64_t sums_bytes = 0;     ///< the same again, where calls add to one filter
  int64_t scratch_bytes = 0;  ///< what the library may ask for
  int64_t total() const;
};

/// The spatial dims of the step on this rank; nothing where the library is not to be asked: one is
/// empty; where version 2.6 has some wrong, more than half of it for a gradient by the filter;
/// where version 3.7 has, a y of one place from a single channel.
std::vector<WindowDim> direct_dims(const KernelArgs& args);

/// The kernel, or null where the library declines; args.workspace has DirectPlan::total() bytes.
/// float32, and bfloat16 where the processor has products of it.
std::unique_ptr<Kernel> bind_direct_conv(const KernelArgs& args, const DirectPlan& plan);

}  // namespace tessera::cpu
