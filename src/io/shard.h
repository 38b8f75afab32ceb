// One file of a sharded checkpoint: the pieces of one rank, as tensors of a safetensors file. Its
// last tensor, the int32 "tessera.checksums", has the CRC-32C of each block of kShardBlock bytes of
// all elements before it. Reads are done in whole blocks and verified.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/manifest.h"
#include "tessera/safetensors.h"

namespace tessera {

inline constexpr int64_t kShardBlock = 64 * 1024;
inline constexpr const char* kChecksums = "tessera.checksums";

/// A piece in a shard: its name and dtype, and its place in the whole tensor.
struct ShardPiece {
  std::string name;
  Array shape;  ///< of the whole tensor, without elements
  FilePiece piece;
};

/// Writes the elements of all pieces in order, as one stream of bytes.
class ShardWriter {
 public:
  /// Throws as SafetensorsWriter.
  ShardWriter(const std::string& path, const std::vector<ShardPiece>& pieces);
  void append(const std::byte* data, int64_t bytes);
  /// Makes the file durable; its name is durable when the directory is synced.
  void finish();

 private:
  std::unique_ptr<SafetensorsWriter> file_;
  int64_t in_block_ = 0;
  uint32_t crc_ = 0;
  std::vector<uint32_t> sums_;
};

/// Reads parts of one file of a checkpoint and verifies its checksums, if it has any. Use it from
/// one thread at a time.
class ShardReader {
 public:
  /// Throws io errors for a damaged header or damaged checksums.
  ShardReader(const std::string& checkpoint, const Manifest& manifest, int file);
  /// Reads bytes [offset, offset + bytes) of a tensor. Throws an io error for a damaged block.
  void read(const TensorInfo& tensor, int64_t offset, int64_t bytes, std::byte* to);
  /// The file's entry of a piece. Throws an io error if its sizes are not those of the piece.
  const TensorInfo& entry(const std::string& name, const ManifestTensor& tensor,
                          const FilePiece& piece) const;
  /// Reads everything; throws at the first damaged block. Returns the number of bytes of elements.
  int64_t verify();

 private:
  /// Reads `count` <= kAtOnce consecutive blocks.
  void read_blocks(int64_t first, int64_t count, std::byte* to) const;
  [[noreturn]] void refuse_block(int64_t block) const;
  /// Number of element bytes in a block.
  int64_t block_bytes(int64_t block) const;

  static constexpr int64_t kAtOnce = 32;

  SafetensorsReader file_;
  bool checked_;
  int64_t covered_ = 0;  ///< bytes covered by checksums
  std::vector<uint32_t> sums_;
  std::vector<std::byte> held_;
  int64_t held_block_ = -1;
};

/// The manifest entry of a finished shard; sets `pieces`. Throws io errors.
ManifestFile describe_shard(const std::string& directory, const std::string& name,
                            std::vector<ShardPiece>& pieces);

}  // namespace tessera
