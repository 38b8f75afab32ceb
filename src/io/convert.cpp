// Converts tensor by tensor: reads whole tensors through the manifest, however they are split, and
// writes them to one file.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "io/checkpoint_files.h"
#include "io/shard.h"
#include "tessera/mesh.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

/// `name` renamed by the first rule whose glob matches; the part that * matches is kept.
std::string renamed(const std::string& name, const ConvertOptions& options) {
  for (const auto& [glob, to] : options.names) {
    if (!glob_match(glob, name)) continue;
    const size_t star = glob.find('*'), place = to.find('*');
    if (star == std::string::npos || place == std::string::npos) return to;
    const std::string kept = name.substr(star, name.size() - (glob.size() - 1));
    return to.substr(0, place) + kept + to.substr(place + 1);
  }
  return name;
}

void require_rules(const ConvertOptions& options) {
  for (const auto& [glob, to] : options.names) {
    const auto stars = [](const std::string& s) { return std::count(s.begin(), s.end(), '*'); };
    TESSERA_REQUIRE(!glob.empty() && !to.empty() && stars(glob) <= 1 && stars(to) <= stars(glob),
                    "[convert] the rule '{}={}' needs a name on both sides, with one * at most",
                    glob, to);
  }
}

/// The tensors to write, (old name, new name), in order.
std::vector<std::pair<std::string, std::string>> chosen(const Manifest& manifest,
                                                        const ConvertOptions& options) {
  std::set<std::string> parameters;
  const auto listed = manifest.metadata.find("parameters");
  if (listed != manifest.metadata.end() && !options.all) {
    const auto names = parse_json(listed->second);
    for (const auto& name : names)
      if (name.is_string()) parameters.insert(name.get<std::string>());
  }
  std::vector<std::pair<std::string, std::string>> names;
  std::set<std::string> used;
  std::vector<std::string> known;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!parameters.empty() && parameters.count(name) == 0) continue;
    known.push_back(name);
    names.emplace_back(name, renamed(name, options));
    TESSERA_REQUIRE(used.insert(names.back().second).second,
                    "[convert] two tensors would be called '{}'; change the rules of names",
                    names.back().second);
  }
  for (const auto& [glob, to] : options.names) {
    const auto matches = [&glob = glob](const std::string& name) { return glob_match(glob, name); };
    TESSERA_REQUIRE(std::any_of(known.begin(), known.end(), matches),
                    "[convert] no tensor is called like '{}' of the rule '{}={}'{}", glob, glob, to,
                    suggestion(glob, known));
  }
  return names;
}

using Names = std::vector<std::pair<std::string, std::string>>;

void to_file(const std::string& from, const std::string& to, const Manifest& manifest,
             const Names& names) {
  std::vector<TensorInfo> infos;
  nlohmann::json dims = nlohmann::json::object();
  for (const auto& [old, name] : names) {
    const Array& shape = manifest.tensors.at(old).shape;
    TensorInfo info;
    info.name = name;
    info.dtype = shape.dtype;
    info.sizes = shape.sizes;
    infos.push_back(std::move(info));
    if (!shape.dims.empty()) dims[name] = shape.dims;
  }
  SafetensorsWriter file(to, infos, {{"format", "pt"}, {kDimsKey, dims.dump()}});
  for (const auto& [old, name] : names) {
    const Array whole = read_tensor(from, old);
    file.write(name, whole.bytes.data(), std::ssize(whole.bytes));
  }
  file.finish();
}

void to_checkpoint(const std::string& from, const std::string& to, const Manifest& manifest,
                   const Names& names) {
  const fs::path directory = folder_path(to);
  const std::string temporary = directory.string() + ".tmp-convert";
  std::error_code error;
  fs::remove_all(temporary, error);
  make_folders(directory.parent_path());
  const bool is_new = fs::create_directory(temporary, error);
  if (!is_new && !error) error = std::make_error_code(std::errc::file_exists);
  if (error)
    fail(ErrorKind::io, "[convert] cannot make the directory '{}': {}", temporary, error.message());
  std::vector<ShardPiece> pieces;
  for (const auto& [old, name] : names) {
    const Array& shape = manifest.tensors.at(old).shape;
    if (manifest.tensors.at(old).pieces.empty()) continue;
    pieces.push_back({name, shape, {0, std::vector<int64_t>(shape.sizes.size(), 0), shape.sizes}});
  }
  const std::string shard = shard_name(0);
  ShardWriter file((fs::path(temporary) / shard).string(), pieces);
  for (const auto& [old, name] : names) {
    const Array whole = read_tensor(from, old);
    file.append(whole.bytes.data(), std::ssize(whole.bytes));
  }
  file.finish();
  Checkpoint checkpoint{directory.string(), manifest.step, manifest.metadata, ""};
  checkpoint.metadata[kSerialKey] = "1";
  for (const char* key : {kDimsKey, "format", "source"}) checkpoint.metadata.erase(key);
  publish_checkpoint(temporary, {shard}, checkpoint, directory.parent_path().string(), INT32_MAX);
}

}  // namespace

int64_t convert_checkpoint(const std::string& from, const std::string& to,
                           const ConvertOptions& options) {
  require_rules(options);
  TESSERA_REQUIRE(!is_taken(to), "[convert] '{}' exists already; choose another name or remove it",
                  to);
  const Manifest manifest = manifest_of_any(from);
  const auto names = chosen(manifest, options);
  is_folder(from) ? to_file(from, to, manifest, names) : to_checkpoint(from, to, manifest, names);
  return std::ssize(names);
}

std::string describe_checkpoint(const std::string& path) {
  const Manifest m = read_manifest(path);
  std::string text = fmt::format("{}: step {}, serial {}, {} tensors in {} files\n", path, m.step,
                                 m.serial, m.tensors.size(), m.files.size());
  for (const auto& [key, value] : m.metadata) {
    const bool long_one = value.size() > 100 || value.find('\n') != std::string::npos;
    text += fmt::format("  {} = {}\n", key,
                        long_one ? fmt::format("({} characters)", value.size()) : value);
  }
  for (const auto& [name, t] : m.tensors) {
    std::string shape;
    for (size_t d = 0; d < t.shape.sizes.size(); ++d)
      shape += fmt::format("{}{}{}", d ? ", " : "",
                           d < t.shape.dims.size() ? t.shape.dims[d] + "=" : "", t.shape.sizes[d]);
    text += fmt::format("  {} {} [{}] in {} part(s)\n", name, to_string(t.shape.dtype), shape,
                        t.pieces.size());
  }
  for (const ManifestFile& f : m.files) text += fmt::format("  {} {} bytes\n", f.name, f.bytes);
  return text;
}

}  // namespace tessera
