// Checkpoints of format 1: whole tensors in one safetensors file with the checkpoint's metadata.
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "io/checkpoint_files.h"
#include "tessera/safetensors.h"

namespace tessera {

namespace {

constexpr const char* kOldVersion = "1";

int64_t number_in(const SafetensorsReader& file, const char* key) {
  const auto it = file.metadata().find(key);
  int64_t value = -1;
  if (it != file.metadata().end()) {
    const char* const last = it->second.data() + it->second.size();
    const auto [end, error] = std::from_chars(it->second.data(), last, value);
    if (error != std::errc() || end != last) value = -1;
  }
  if (value >= 0) return value;
  fail(ErrorKind::io, "[checkpoint] '{}' is not a checkpoint: its metadata '{}' is {}", file.path(),
       key, it == file.metadata().end() ? "missing" : "'" + it->second + "'");
}

/// The metadata entry "dims": an object, empty if there is none.
nlohmann::json dims_in(const SafetensorsReader& file) {
  const auto it = file.metadata().find(kDimsKey);
  if (it == file.metadata().end()) return nlohmann::json::object();
  auto dims = parse_json(it->second);
  if (dims.is_object()) return dims;
  fail(ErrorKind::io, "[checkpoint] '{}': the metadata '{}' is not a JSON object", file.path(),
       kDimsKey);
}

/// The dim names of one tensor; empty if there are none.
std::vector<std::string> dims_of(const nlohmann::json& dims, const TensorInfo& info) {
  std::vector<std::string> names;
  const auto entry = dims.find(info.name);
  if (entry == dims.end()) return names;
  bool good = entry->is_array() && entry->size() == info.sizes.size();
  for (size_t d = 0; good && d < entry->size(); ++d) {
    good = (*entry)[d].is_string();
    if (good) names.push_back((*entry)[d].get<std::string>());
  }
  if (good) return names;
  fail(ErrorKind::io, "[checkpoint] the dim names of tensor '{}' do not fit its {} sizes",
       info.name, info.sizes.size());
}

}  // namespace

Manifest manifest_of_safetensors(const std::string& path) {
  const SafetensorsReader file(path);
  Manifest m;
  m.has_checksums = false;
  m.metadata = file.metadata();
  m.files.push_back({path, 0, 0, 0});
  const nlohmann::json dims = dims_in(file);
  for (const TensorInfo& info : file.tensors()) {
    ManifestTensor& tensor = m.tensors[info.name];
    tensor.shape.dtype = info.dtype;
    tensor.shape.dims = dims_of(dims, info);
    tensor.shape.sizes = info.sizes;
    if (info.bytes() > 0)
      tensor.pieces.push_back({0, std::vector<int64_t>(info.sizes.size(), 0), info.sizes});
  }
  return m;
}

Manifest manifest_of_any(const std::string& path) {
  return is_folder(path) ? read_manifest(path) : manifest_of_safetensors(path);
}

Manifest manifest_of_one_file(const std::string& path) {
  const SafetensorsReader file(path);
  const int64_t version = number_in(file, kVersionKey);
  if (fmt::format("{}", version) != kOldVersion) {
    fail(ErrorKind::io,
         "[checkpoint] '{}' has the format version {}, but this build reads {} and directories of "
         "version {}; use the version of Tessera that wrote it",
         path, version, kOldVersion, kManifestVersion);
  }
  Manifest m = manifest_of_safetensors(path);
  m.step = number_in(file, kStepKey);
  m.serial = number_in(file, kSerialKey);
  return m;
}

}  // namespace tessera
