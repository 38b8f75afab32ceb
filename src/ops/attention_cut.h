// Queries or keys of attention in slices, one for each rank.
#pragma once

#include "ops/attention.h"
#include "ops/sliced.h"

namespace tessera {

/// The intervals of a dim that a rank computes with. Plainly each has its slice. Under a causal
/// structure the last slice of the queries then sees most keys and the first one fewest. Balanced,
/// a rank has two intervals: the first half of its slice and the second half of the mirrored rank's
/// (rank r of n: halves 2r and 2n - 1 - 2r of 2n), which together see as many keys on each rank.
/// Only the second halves are sent.
class AttentionCut {
 public:
  /// `whole` in slices along `slices`, which is named like the dim that the ranks have slices of.
  AttentionCut(const Dim& whole, const Dim& slices, bool balanced)
      : whole_(whole),
        slices_(slices),
        inner_(whole.name + "/inner", (whole.size + slices.size - 1) / slices.size),
        first_(balanced ? (inner_.size + 1) / 2 : inner_.size) {}

  /// The dim inside a slice, and inside an interval.
  const std::string& inner() const { return inner_.name; }
  size_t intervals() const { return first_ < inner_.size ? 2 : 1; }
  /// The intervals of a tensor with the dim: [slices, inner] in its place.
  std::vector<Tensor> of(const Tensor& x) const;
  /// The inverse, in a shape with the dim.
  Tensor whole(const std::vector<Tensor>& intervals, const Shape& shape) const;
  /// By slice: where an interval begins that `turns` ranks before this one has.
  Tensor start(Graph& g, size_t interval, int64_t turns) const;

 private:
  Dim whole_, slices_, inner_;
  int64_t first_;  ///< elements of the first interval
};

}  // namespace tessera
