// Compute steps that move with a bucket.
#pragma once

#include <set>

#include "program/program.h"

namespace tessera {

struct BucketAttachments {
  /// Buffers that one step computes, from values that never change, for one bucket only. Example: a
  /// parameter cast to the dtype in which it is gathered. The step can run right before the bucket.
  std::set<int> fed;
  /// Buffers that buckets write, one after the other, and that one step alone reads. Example: a
  /// gradient that is cast to the dtype in which it is kept. The step can run right after the wait
  /// of the last of these buckets.
  std::set<int> followed;
};

BucketAttachments find_bucket_attachments(const Program& program, const Function& function);

}  // namespace tessera
