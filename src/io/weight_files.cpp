#include "io/weight_files.h"

#include <filesystem>

#include "base/fail.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/file.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string inside(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

}  // namespace

bool WeightFiles::exist(const std::string& folder) {
  if (is_there(inside(folder, kSingle)) || is_there(inside(folder, kIndex))) return true;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (is_there(inside(folder, name)))
      fail(ErrorKind::io,
           "[model] '{0}/{1}' is pickled: reading it can run any code, and Tessera does not. "
           "Convert it with: python3 -c \"import glob, torch, safetensors.torch as s; "
           "s.save_file({{k: v.clone() for f in glob.glob('{0}/pytorch_model*.bin') for k, v in "
           "torch.load(f, weights_only=True).items()}}, '{0}/model.safetensors')\"",
           folder, name);
  }
  return false;
}

WeightFiles::WeightFiles(const std::string& folder) : folder_(folder) {
  if (!exist(folder))
    fail(ErrorKind::io, "[model] '{}' holds no weights: there is neither {} nor {}", folder,
         kSingle, kIndex);
  if (is_there(inside(folder, kSingle))) {
    open_file(kSingle);
  } else {
    open_index(inside(folder, kIndex));
  }
}

void WeightFiles::open_file(const std::string& name) {
  auto& reader = files_[name];
  if (reader) return;
  reader = std::make_unique<SafetensorsReader>(inside(folder_, name));
  for (const TensorInfo& t : reader->tensors()) {
    const auto [at, is_new] = tensors_.emplace(t.name, Place{reader.get(), &t, name});
    if (!is_new)
      fail(ErrorKind::io, "[model] the tensor '{}' is in '{}' and in '{}'", t.name,
           at->second.reader->path(), reader->path());
  }
}

void WeightFiles::open_index(const std::string& path) {
  const nlohmann::json index = parse_json(read_text_file("model", path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object())
    fail(ErrorKind::io, "[model] '{}' is not an index: it has no object 'weight_map'", path);
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == ".." || name == ".")
      fail(ErrorKind::io,
           "[model] '{}' says that tensor '{}' is in {}, which is not the name of a "
           "file in its folder",
           path, tensor, file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    open_file(name);
    const auto place = tensors_.find(tensor);
    if (place == tensors_.end() || place->second.file != name)
      fail(ErrorKind::io, "[model] '{}' says that tensor '{}' is in '{}', which does not hold it",
           path, tensor, name);
  }
  for (const auto& [tensor, place] : tensors_) {
    if (!map->contains(tensor))
      fail(ErrorKind::io, "[model] '{}' holds tensor '{}', which '{}' does not name",
           place.reader->path(), tensor, path);
  }
}

std::string WeightFiles::hash() const {
  constexpr int64_t kSample = 4096;
  uint64_t hash = kHashStart;
  std::string bytes;
  for (const auto& [name, reader] : files_) {
    const int64_t end =
        reader->data_begin() + (reader->tensors().empty() ? 0 : reader->tensors().back().end);
    bytes.resize(static_cast<size_t>(reader->data_begin()));
    reader->read_file(0, reader->data_begin(), bytes.data());
    hash = hash_of(bytes, hash_of(name, hash));
    bytes.resize(static_cast<size_t>(std::min(kSample, end)));
    reader->read_file(end - std::ssize(bytes), std::ssize(bytes), bytes.data());
    hash = hash_of(bytes, hash);
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace tessera
