// The slices that a rank owns, out of the pieces of a checkpoint (io/shards.h).
#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "io/agree.h"
#include "io/checkpoint_files.h"
#include "io/shards.h"

namespace tessera {

namespace {

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

}  // namespace tessera
