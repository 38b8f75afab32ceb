// Convolution with oneDNN's direct kernels, which read images with channels last in place: only the
// filter is packed. The decision has two halves: DirectPlan uses views and attributes, so that the
// workspace can be planned; bind adds what depends on the rank's window.
#pragma once

#include <memory>
#include <vector>

#include "kernels/common/conv_views.h"
#include "kernels/common/kernel.h"

namespace tessera::cpu {

using namespace kernels;

/// Elements per image of x (or y), and their memory layout.
struct DirectSide {
  bool dense = true;     ///< channels last and dense, in a type that the library takes
  bool copied = false;   ///< to the workspace, per call: not dense, or a rank may have a part
  int64_t elements = 0;  ///< per image
  int64_t bytes = 0;     ///< of the copy
};

struct DirectPlan {
  explicit DirectPlan(const Step& step);

  /// True if the library may compute it; it can still decline at bind, depending on the rank's
  /// window.
  bool applies = false;
  int64_t images = 1, groups = 1, inputs = 1, outputs = 1;
  int64_t item = 4;      ///< bytes of an element
  bool widened = false;  ///< bfloat16 is copied and convolved as float32
  DirectSide x, y;
  int64_t copied_images = 1;  ///< images per call if a side is copied; divides `images`
  int64_t filter_bytes = 0;   ///< upper bound in the library's order
  int64_t sums_bytes = 0;     ///< the same again, if several calls add to one filter gradient
  int64_t scratch_bytes = 0;  ///< upper bound of the library's scratch memory
  int64_t total() const;
};

/// The spatial dims of the step on this rank. Empty if the library must not be used: a dim is
/// empty; oneDNN 2.6 is wrong for filter gradients with padding of more than half a window; oneDNN
/// 3.7 is wrong for y of size 1 from one input channel.
std::vector<WindowDim> direct_dims(const KernelArgs& args);

/// The kernel, or null if the library declines. args.workspace has DirectPlan::total() bytes. For
/// float32, and for bfloat16 if the processor multiplies it.
std::unique_ptr<Kernel> bind_direct_conv(const KernelArgs& args, const DirectPlan& plan);

}  // namespace tessera::cpu
