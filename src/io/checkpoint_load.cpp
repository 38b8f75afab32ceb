// A rank reads, of each piece that meets its slice, the runs of bytes in common, straight to their
// place. Beyond the session's own memory a load holds one block of one file.
#include <algorithm>
#include <list>
#include <optional>

#include "base/fail.h"
#include "io/agree.h"
#include "io/checkpoint_files.h"
#include "io/shard.h"

namespace tessera {

namespace {

/// The files of a checkpoint that were used last.
class OpenShards {
 public:
  OpenShards(const std::string& checkpoint, const Manifest& manifest)
      : checkpoint_(checkpoint), manifest_(manifest) {}
  ShardReader& operator[](int file) {
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

 private:
  const std::string& checkpoint_;
  const Manifest& manifest_;
  std::list<std::pair<int, std::unique_ptr<ShardReader>>> open_;
};

/// What a piece and a slice have in common: of `piece` elements from[d], of the slice elements
/// to[d], count[d] of them.
struct Common {
  std::vector<int64_t> from, to, count;
};
std::optional<Common> meet(const Piece& piece, const Slice& slice) {
  Common c;
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

void read_common(ShardReader& shard, const TensorInfo& info, const Piece& piece, const Common& c,
                 const Slice& slice) {
  const int64_t item = size_of(slice.dtype);
  const size_t rank = c.count.size();
  // Dims [inner, rank) are one run of bytes in both.
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

void read_slice(OpenShards& shards, const std::string& name, const ManifestTensor& tensor,
                const Slice& slice) {
  for (const Piece& piece : tensor.pieces) {
    const std::optional<Common> common = meet(piece, slice);
    if (!common) continue;
    ShardReader& shard = shards[piece.file];
    read_common(shard, shard.entry(name, tensor, piece), piece, *common, slice);
  }
}

std::string describe(const Array& shape) {
  std::string text = to_string(shape.dtype);
  for (size_t d = 0; d < shape.sizes.size(); ++d) {
    text += fmt::format("{}{}{}", d == 0 ? " [" : ", ",
                        d < shape.dims.size() ? shape.dims[d] + "=" : "", shape.sizes[d]);
  }
  return shape.sizes.empty() ? text + " scalar" : text + "]";
}

std::string shortened(const std::vector<std::string>& items) {
  const size_t shown = std::min<size_t>(items.size(), 8);
  return fmt::format(
      "{}{}", fmt::join(items.begin(), items.begin() + static_cast<long>(shown), ", "),
      shown < items.size() ? fmt::format(", and {} more", items.size() - shown) : "");
}

/// Throws a usage error unless checkpoint and model have the same tensors; with `partly` the model
/// may lack some of the checkpoint's.
void require_same_model(const Session& session, const std::string& path, const Manifest& manifest,
                        const std::vector<std::string>& names, bool partly) {
  std::vector<std::string> missing, extra, different;
  for (const std::string& name : names) {
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end()) {
      missing.push_back(name);
      continue;
    }
    const Array model = session.shape_of(name), &stored = found->second.shape;
    const bool same_dims = stored.dims.empty() || stored.dims == model.dims;
    if (stored.dtype != model.dtype || stored.sizes != model.sizes || !same_dims)
      different.push_back(fmt::format("{} ({} in the file, {} in the model)", name,
                                      describe(stored), describe(model)));
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!partly && std::find(names.begin(), names.end(), name) == names.end())
      extra.push_back(name);
  }
  if (missing.empty() && extra.empty() && different.empty()) return;
  std::string text;
  if (!missing.empty()) text += "; the file lacks " + shortened(missing);
  if (!extra.empty()) text += "; the model lacks " + shortened(extra);
  if (!different.empty()) text += "; different: " + shortened(different);
  fail(ErrorKind::usage,
       "[checkpoint] '{}' is a checkpoint of another model{}; use the configuration that it was "
       "saved with",
       path, text);
}

void load(Session& session, const std::string& path, const std::vector<std::string>& names,
          bool partly, Checkpoint& checkpoint) {
  std::optional<Manifest> manifest;
  run_together(session.cluster(), [&] {
    manifest = partly ? manifest_of_any(path) : read_manifest(path);
    checkpoint = checkpoint_of(path, *manifest);
    require_same_model(session, path, *manifest, names, partly);
  });
  run_together(session.cluster(), [&] {
    OpenShards shards(path, *manifest);
    for (const std::string& name : names) {
      const ManifestTensor& tensor = manifest->tensors.at(name);
      session.assign_slices(name,
                            [&](const Slice& slice) { read_slice(shards, name, tensor, slice); });
    }
  });
}

}  // namespace

Checkpoint load_checkpoint(Session& session, const std::string& path) {
  Checkpoint checkpoint;
  load(session, path, session.stored_names(), false, checkpoint);
  session.set_step(checkpoint.step);
  return checkpoint;
}

Checkpoint load_tensors(Session& session, const std::string& path,
                        const std::vector<std::string>& names) {
  Checkpoint checkpoint;
  load(session, path, names, true, checkpoint);
  return checkpoint;
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
    for (const Piece& piece : tensor.pieces) shards[piece.file].entry(name, tensor, piece);
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
