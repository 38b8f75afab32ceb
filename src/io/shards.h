// The files of one checkpoint, and reading slices of tensors from them.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "io/shard.h"
#include "tessera/session.h"

namespace tessera {

/// The most recently used files of a checkpoint. Checkpoint and manifest must outlive it.
class OpenShards {
 public:
  OpenShards(const std::string& checkpoint, const Manifest& manifest)
      : checkpoint_(checkpoint), manifest_(manifest) {}
  /// Throws as ShardReader.
  ShardReader& operator[](int file);

 private:
  const std::string& checkpoint_;
  const Manifest& manifest_;
  std::list<std::pair<int, std::unique_ptr<ShardReader>>> open_;
};

/// Reads a slice of a tensor from all pieces that intersect it. Needs one block of memory per open
/// file besides the slice. Throws io errors.
void read_slice(OpenShards& shards, const std::string& name, const ManifestTensor& tensor,
                const Slice& slice);

}  // namespace tessera
