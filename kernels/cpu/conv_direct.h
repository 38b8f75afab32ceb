// Convolution by a library's direct kernels, which read images with their channels last as they
// lie: nothing is packed but the filter. Two halves of one decision: what views and attributes
// tell, so that the workspace can be planned, and what a rank's window adds to it at bind.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/conv_sizes.h"
#include "kernels/kernel.h"

namespace tessera::cpu {

/// Elements per image of x (or y) and how they lie.
struct DirectSide {
  bool dense = true;     ///< the channels are last and dense, and of a type that the library takes
  bool copied = false;   ///< per call into the workspace, of ranks that have a part or if not dense
  int64_t elements = 0;  ///< of one image
  int64_t bytes = 0;     ///< of the copy
};

struct DirectPlan {
  explicit DirectPlan(const Step& step);

  /// Whether the library is asked: it may still decline at bind, for any rank's window.
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

/// Whether each view has the step's factors of the kinds that are its own, and no others.
bool has_factors(const Step& step);

/// Elements of a view whose dims of one kind follow `run` dense elements in order, without gaps:
/// `run` times their sizes; -1 if they lie otherwise or run is -1.
int64_t dense_after(const View& view, const std::vector<int64_t>& kinds, int64_t kind, int64_t run);

/// Offsets of all indices of the factors of one kind in one view, in one order for all views.
std::vector<int64_t> offsets_of(const Step& step, Kind kind, const std::vector<int64_t>& strides);

/// One spatial dim of what the library computes on this rank: a box of x, one of y and a window,
/// where in = stride * out + dilation * window - before.
struct DirectDim {
  int64_t x_first = 0, x_size = 0, y_first = 0, y_size = 0, windows = 0;
  int64_t stride = 1, dilation = 1, before = 0, after = 0;
  bool empty = false;  ///< no window sees anything, or all of a window may lie in the padding
};

/// Spatial dim `s` of the step on this rank, and all.
DirectDim window_dim(const KernelArgs& args, size_t s);
std::vector<DirectDim> window_dims(const KernelArgs& args);

/// The same; nothing where the library is not to be asked: one is empty; where version 2.6 has some
/// wrong, more than half of it for a gradient by the filter; where version 3.7 has, a y of one
/// place from a single channel.
std::vector<DirectDim> direct_dims(const KernelArgs& args);

/// The kernel, or null where the library declines; args.workspace has DirectPlan::total() bytes.
/// float32, and bfloat16 where the processor has products of it.
std::unique_ptr<Kernel> bind_direct_conv(const KernelArgs& args, const DirectPlan& plan);

}  // namespace tessera::cpu
