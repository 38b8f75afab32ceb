// Compute steps that move with a bucket.
#pragma once

#include <set>

#include "program/program.h"

namespace tessera {

struct BucketAttachments {
  /// Buffers that a step computes for one bucket only, from values that never change: a parameter
  /// in the dtype in which it is gathered. The step can run right before the bucket, wherever that
  /// is.
  std::set<int> fed;
  /// Buffers that buckets write, one after the other, and that one step alone reads: a gradient
  /// that is cast to the dtype in which it is kept. The step can run right behind the last of these
  /// buckets.
  std::set<int> followed;
};

BucketAttachments find_bucket_attachments(const Program& program, const Function& function);

}  // namespace tessera
