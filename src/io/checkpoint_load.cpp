// Loads the slices of the local ranks from the pieces of a checkpoint (io/shards.h).
#include <algorithm>
#include <cmath>
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

/// The differences between a checkpoint and a model.
struct ConfigDifference {
  std::vector<std::string> missing, extra, different;
  std::vector<std::string> same;  ///< common to both
  bool none() const { return missing.empty() && extra.empty() && different.empty(); }
  std::string text() const {
    std::string text;
    if (!missing.empty()) text += "; the file lacks " + shortened(missing);
    if (!extra.empty()) text += "; the model lacks " + shortened(extra);
    if (!different.empty()) text += "; different: " + shortened(different);
    return text;
  }
};

enum class Wanted { all, names, averages, fitting };

/// The tensor of the checkpoint that `name` is read from.
std::string source_of(const Manifest& manifest, const std::string& name, Wanted wanted) {
  const std::string average = average_name(name);
  return wanted == Wanted::averages && manifest.tensors.contains(average) ? average : name;
}

/// A count of steps, which older files have in float32.
bool is_older_count(const Array& stored, const Array& model) {
  return stored.sizes.empty() && stored.dtype == DType::float32 && model.dtype == DType::int64;
}

/// Compares the model's `names` with the checkpoint, which may have more if only these are wanted.
ConfigDifference difference(const Session& session, const Manifest& manifest,
                            const std::vector<std::string>& names, Wanted wanted) {
  ConfigDifference d;
  const bool partly = wanted == Wanted::names || wanted == Wanted::averages;
  for (const std::string& name : names) {
    const auto found = manifest.tensors.find(source_of(manifest, name, wanted));
    if (found == manifest.tensors.end()) {
      d.missing.push_back(name);
      continue;
    }
    const Array model = session.shape_of(name), &stored = found->second.shape;
    const bool same_dims = stored.dims.empty() || stored.dims == model.dims;
    const bool same_dtype = stored.dtype == model.dtype || is_older_count(stored, model);
    if (!same_dtype || stored.sizes != model.sizes || !same_dims) {
      d.different.push_back(fmt::format("{} ({} in the file, {} in the model)", name,
                                        describe(stored), describe(model)));
    } else {
      d.same.push_back(name);
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!partly && std::find(names.begin(), names.end(), name) == names.end())
      d.extra.push_back(name);
  }
  return d;
}

void read(OpenShards& shards, const std::string& name, const ManifestTensor& tensor,
          const Slice& slice) {
  if (slice.dtype == tensor.shape.dtype) return read_slice(shards, name, tensor, slice);
  float count = 0;
  Slice older = slice;
  older.dtype = tensor.shape.dtype;
  older.data = &count;
  read_slice(shards, name, tensor, older);
  *static_cast<int64_t*>(slice.data) = std::llround(count);
}

Checkpoint load(Session& session, const std::string& path, std::vector<std::string> names,
                Wanted wanted) {
  std::optional<Manifest> manifest;
  Checkpoint checkpoint;
  run_together(session.cluster(), [&] {
    manifest = wanted == Wanted::names ? manifest_of_any(path) : read_manifest(path);
    checkpoint = checkpoint_of(path, *manifest);
    if (wanted == Wanted::averages) require_averages(*manifest, path);
    const ConfigDifference d = difference(session, *manifest, names, wanted);
    if (d.none()) return;
    if (wanted != Wanted::fitting || d.same.empty()) {
      fail(
          ErrorKind::usage,
          "[checkpoint] '{}' is a checkpoint of another model{}; use the configuration that it was "
          "saved with{}",
          path, d.text(),
          wanted == Wanted::all ? ", or load what fits (train --resume --allow-changes)" : "");
    }
    checkpoint.warning = fmt::format("{} of {} tensors are loaded, the others start anew{}",
                                     d.same.size(), names.size(), d.text());
    names = d.same;
  });
  run_together(session.cluster(), [&] {
    OpenShards shards(path, *manifest);
    for (const std::string& name : names) {
      const std::string source = source_of(*manifest, name, wanted);
      const ManifestTensor& tensor = manifest->tensors.at(source);
      session.assign_slices(name, [&](const Slice& slice) { read(shards, source, tensor, slice); });
    }
  });
  return checkpoint;
}

}  // namespace

Checkpoint load_checkpoint(Session& session, const std::string& path) {
  Checkpoint checkpoint = load(session, path, session.program().stored_names(), Wanted::all);
  session.set_step(checkpoint.step);
  return checkpoint;
}

Checkpoint load_fitting(Session& session, const std::string& path) {
  Checkpoint checkpoint = load(session, path, session.program().stored_names(), Wanted::fitting);
  session.set_step(checkpoint.step);
  return checkpoint;
}

Checkpoint load_tensors(Session& session, const std::string& path,
                        const std::vector<std::string>& names) {
  return load(session, path, names, Wanted::names);
}

Checkpoint load_averages(Session& session, const std::string& path,
                         const std::vector<std::string>& names) {
  return load(session, path, names, Wanted::averages);
}

}  // namespace tessera
