// The files of one checkpoint, and the slices of tensors that are read from them.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "io/shard.h"
#include "tessera/session.h"

namespace tessera {

/// The files of a checkpoint that were used last. Checkpoint and manifest must outlive it.
class OpenShards {
 public:
  OpenShards(const std::string& checkpoint, const Manifest& manifest)
      : checkpoint_(checkpoint), manifest_(manifest) {}
  /// Throws what ShardReader does.
  ShardReader& operator[](int file);

 private:
  const std::string& checkpoint_;
  const Manifest& manifest_;
  std::list<std::pair<int, std::unique_ptr<ShardReader>>> open_;
};

/// Reads a slice of a tensor from all pieces that meet it. Beyond the slice itself it holds one
/// block of each open file. Throws io errors.
void read_slice(OpenShards& shards, const std::string& name, const ManifestTensor& tensor,
                const Slice& slice);

}  // namespace tessera
