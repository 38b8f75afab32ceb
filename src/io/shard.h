// One file of a sharded checkpoint: the pieces of one rank as tensors of a safetensors file, and at
// its end the int32 tensor "tessera.checksums": the CRC-32C of each block of kShardBlock bytes of
// what comes before it, from the end of the header on. What is read is read in whole blocks and
// compared with them.
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

/// A piece that a shard holds: its name, dtype and place in the whole tensor.
struct ShardPiece {
  std::string name;
  Array shape;  ///< of the whole tensor, without elements
  FilePiece piece;
};

/// Writes the elements of all pieces, in order, as one stream of bytes.
class ShardWriter {
 public:
  /// Throws what SafetensorsWriter does.
  ShardWriter(const std::string& path, const std::vector<ShardPiece>& pieces);
  void append(const std::byte* data, int64_t bytes);
  /// The file is on disk then, its name when the directory is synced.
  void finish();

 private:
  std::unique_ptr<SafetensorsWriter> file_;
  int64_t in_block_ = 0;
  uint32_t crc_ = 0;
  std::vector<uint32_t> sums_;
};

/// Reads parts of one file of a checkpoint, with its checksums where it has some. One thread at a
/// time.
class ShardReader {
 public:
  /// Throws io errors: damaged header or checksums.
  ShardReader(const std::string& checkpoint, const Manifest& manifest, int file);
  /// Bytes [offset, offset + bytes) of a tensor. Throws io errors: a block that is damaged.
  void read(const TensorInfo& tensor, int64_t offset, int64_t bytes, std::byte* to);
  /// The entry of a piece; throws an io error if its sizes are not those of the piece.
  const TensorInfo& entry(const std::string& name, const ManifestTensor& tensor,
                          const FilePiece& piece) const;
  /// Reads everything and throws at the first damaged block. Returns the bytes of elements.
  int64_t verify();

 private:
  /// Reads `count` <= kAtOnce blocks, one behind the other.
  void read_blocks(int64_t first, int64_t count, std::byte* to) const;
  [[noreturn]] void refuse_block(int64_t block) const;
  /// Bytes of the elements that block `block` holds.
  int64_t block_bytes(int64_t block) const;

  static constexpr int64_t kAtOnce = 32;

  SafetensorsReader file_;
  bool checked_;
  int64_t covered_ = 0;  ///< bytes that have checksums
  std::vector<uint32_t> sums_;
  std::vector<std::byte> held_;
  int64_t held_block_ = -1;
};

/// What a manifest says of a finished shard, and its pieces. Throws io errors.
ManifestFile describe_shard(const std::string& directory, const std::string& name,
                            std::vector<ShardPiece>& pieces);

}  // namespace tessera
