// For each piece that intersects its slice, a rank reads the common runs of bytes directly into
// place.
#include "io/shards.h"

#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "io/checkpoint_files.h"

namespace tessera {

ShardReader& OpenShards::operator[](int file) {
  constexpr size_t kMost = 64;
  for (auto it = open_.begin(); it != open_.end(); ++it) {
    if (it->first != file) continue;
    open_.splice(open_.begin(), open_, it);
    return *it->second;
  }
  if (open_.size() == kMost) open_.pop_back();
  open_.emplace_front(file, std::make_unique<ShardReader>(checkpoint_, manifest_, file));
  return *open_.front().second;
}

namespace {

/// The intersection of a piece and a slice: count[d] elements, from from[d] in the piece and to[d]
/// in the slice.
struct Overlap {
  std::vector<int64_t> from, to, count;
};
std::optional<Overlap> meet(const FilePiece& piece, const Slice& slice) {
  Overlap c;
  for (size_t d = 0; d < piece.offset.size(); ++d) {
    const int64_t begin = std::max(piece.offset[d], slice.offset[d]);
    const int64_t end =
        std::min(piece.offset[d] + piece.extent[d], slice.offset[d] + slice.valid[d]);
    if (begin >= end) return std::nullopt;
    c.from.push_back(begin - piece.offset[d]);
    c.to.push_back(begin - slice.offset[d]);
    c.count.push_back(end - begin);
  }
  return c;
}

void read_common(ShardReader& shard, const TensorInfo& info, const FilePiece& piece,
                 const Overlap& c, const Slice& slice) {
  const int64_t item = size_of(slice.dtype);
  const size_t rank = c.count.size();
  // Dims [inner, rank) are one contiguous run of bytes in both.
  size_t inner = rank;
  int64_t run = 1;
  while (inner > 0) {
    const size_t d = inner - 1;
    if (slice.strides[d] != run && c.count[d] > 1) break;
    run *= c.count[d];
    inner = d;
    if (c.count[d] != piece.extent[d]) break;
  }
  std::vector<int64_t> strides(rank, 1), index(rank, 0);
  for (size_t d = rank; d-- > 1;) strides[d - 1] = strides[d] * piece.extent[d];
  for (;;) {
    int64_t from = 0, to = 0;
    for (size_t d = 0; d < rank; ++d) {
      from += (c.from[d] + index[d]) * strides[d];
      to += (c.to[d] + index[d]) * slice.strides[d];
    }
    shard.read(info, from * item, run * item, static_cast<std::byte*>(slice.data) + to * item);
    size_t d = inner;
    while (d > 0 && ++index[d - 1] == c.count[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

void read_slice(OpenShards& shards, const std::string& name, const ManifestTensor& tensor,
                const Slice& slice) {
  for (const FilePiece& piece : tensor.pieces) {
    const std::optional<Overlap> common = meet(piece, slice);
    if (!common) continue;
    ShardReader& shard = shards[piece.file];
    read_common(shard, shard.entry(name, tensor, piece), piece, *common, slice);
  }
}

Array read_tensor(const std::string& path, const std::string& name) {
  const Manifest manifest = manifest_of_any(path);
  const auto found = manifest.tensors.find(name);
  if (found == manifest.tensors.end()) {
    std::vector<std::string> names;
    for (const auto& [other, tensor] : manifest.tensors) names.push_back(other);
    fail(ErrorKind::io, "[checkpoint] '{}' holds no tensor '{}'{}", path, name,
         suggestion(name, names));
  }
  const Array& shape = found->second.shape;
  std::vector<std::string> dims = shape.dims;
  for (size_t d = dims.size(); d < shape.sizes.size(); ++d) dims.push_back(fmt::format("dim{}", d));
  Array whole(shape.dtype, dims, shape.sizes);
  Slice slice;
  slice.data = whole.bytes.data();
  slice.dtype = whole.dtype;
  slice.valid = whole.sizes;
  slice.offset.assign(whole.sizes.size(), 0);
  slice.strides.assign(whole.sizes.size(), 1);
  for (size_t d = whole.sizes.size(); d-- > 1;)
    slice.strides[d - 1] = slice.strides[d] * whole.sizes[d];
  OpenShards shards(path, manifest);
  read_slice(shards, name, found->second, slice);
  return whole;
}

std::string verify_checkpoint(const std::string& path) {
  const Manifest manifest = read_manifest(path);
  int64_t bytes = 0;
  OpenShards shards(path, manifest);
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const FilePiece& piece : tensor.pieces) shards[piece.file].entry(name, tensor, piece);
  }
  for (int file = 0; file < std::ssize(manifest.files); ++file) bytes += shards[file].verify();
  if (!manifest.has_checksums)
    return fmt::format(
        "{} tensors in a file of format 1, which has no checksums: only its header "
        "and length are verified",
        manifest.tensors.size());
  return fmt::format("{} tensors, {} bytes in {} files: every checksum agrees",
                     manifest.tensors.size(), bytes, manifest.files.size());
}

}  // namespace tessera
