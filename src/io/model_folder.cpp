// Reading a folder of a model: config.json by its family's table, then each rank's slices of each
// parameter from the files' tensors, in runs of consecutive elements.
#include "tessera/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "io/agree.h"
#include "io/elements.h"
#include "io/families/family_file.h"
#include "io/image_processor.h"
#include "io/model_description.h"
#include "tessera/mesh.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

std::string config_path(const std::string& folder) {
  return (fs::path(folder) / "config.json").string();
}

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 4);
  return fmt::format("{}{}",
                     fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "),
                     shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "");
}

/// The family that the folder itself describes, if it does.
std::shared_ptr<const Family> own_family(const std::string& folder) {
  const std::string path = (fs::path(folder) / kFamilyFile).string();
  if (!is_there(path)) return nullptr;
  return std::make_shared<const Family>(read_family(path, read_text_file("model", path)));
}

/// The tensors of a family that a file describes have to be those of the model.
void require_complete(const ModelDescription& d) {
  try {
    tensor_map(*d.family, d.options);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::io) throw;
    fail(ErrorKind::io, "[model] '{}': the options that it makes of '{}' do not fit: {}",
         d.family->file, d.path, e.what());
  }
}

/// A copy of another tensor must have its elements: heads that are tied in config.json and differ
/// in the files would be dropped silently.
void require_equal(const WeightFiles::Place& a, const WeightFiles::Place& b) {
  constexpr int64_t kChunk = 1 << 20;
  bool same = a.info->bytes() == b.info->bytes() && a.info->dtype == b.info->dtype;
  std::vector<char> x(kChunk), y(kChunk);
  for (int64_t at = 0; same && at < a.info->bytes(); at += kChunk) {
    const int64_t n = std::min(kChunk, a.info->bytes() - at);
    a.reader->read(*a.info, at, n, x.data());
    b.reader->read(*b.info, at, n, y.data());
    same = std::equal(x.begin(), x.begin() + n, y.begin());
  }
  if (!same)
    fail(ErrorKind::io,
         "[model] '{}': its config.json makes '{}' a copy of '{}' (tie_word_embeddings), but their "
         "elements differ; set tie_word_embeddings to false if both are to be used",
         a.reader->path(), a.info->name, b.info->name);
}

void read_part(const WeightFiles::Place& place, const TensorPart& part, const Slice& slice) {
  const int64_t item = size_of(place.info->dtype);
  std::vector<std::byte> bytes;
  visit_runs(part, slice, [&](int64_t offset, const int64_t* to, int64_t count) {
    bytes.resize(static_cast<size_t>(count * item));
    place.reader->read(*place.info, offset * item, count * item, bytes.data());
    convert_elements(bytes.data(), place.info->dtype, slice.data, slice.dtype, to, count);
  });
}

/// Globs of the tensors of layers of another kind, behind the last one.
std::vector<std::string> layers_behind(const ModelDescription& folder, const WeightFiles& files) {
  constexpr std::string_view kLayer = "{layer}";
  const std::string& mark = folder.family->mark_of_more_layers;
  const size_t at = mark.find(kLayer);
  std::vector<std::string> found;
  for (int64_t layer = folder.options.layers; at != std::string::npos; ++layer) {
    const std::string front = fmt::format("{}{}", mark.substr(0, at), layer);
    if (files.tensors().count(front + mark.substr(at + kLayer.size())) == 0) break;
    found.push_back(front + ".*");
  }
  return found;
}

/// Throws unless `session` has the parameters of the map.
void require_session(Session& session, const TensorMap& map, const ModelDescription& folder) {
  const std::vector<std::string> names = session.program().stored_names();
  for (const auto& [name, shape] : map.parameters) {
    const bool has = std::find(names.begin(), names.end(), name) != names.end();
    std::vector<int64_t> sizes;
    for (const Dim& d : shape) sizes.push_back(d.size);
    TESSERA_REQUIRE(has && session.shape_of(name).sizes == sizes,
                    "[model] the session has no parameter '{}' {}; it is not of the model in '{}'",
                    name, shape.to_string(), folder.path);
  }
}

}  // namespace

const WeightFiles::Place* find_tensor(const WeightFiles& files, const Family& family,
                                      const std::string& name) {
  auto it = files.tensors().find(name);
  if (it == files.tensors().end() && !family.optional_prefix.empty() &&
      name.starts_with(family.optional_prefix))
    it = files.tensors().find(name.substr(family.optional_prefix.size()));
  for (const auto& [end, old] : family.old_ends) {
    if (it == files.tensors().end() && name.ends_with(end))
      it = files.tensors().find(name.substr(0, name.size() - end.size()) + old);
  }
  return it == files.tensors().end() ? nullptr : &it->second;
}

void require_match(const ModelDescription& folder, const WeightFiles& files, const TensorMap& map) {
  std::vector<std::string> missing, unknown, different;
  std::set<std::string> used;
  for (const MappedTensor& t : map.tensors) {
    const WeightFiles::Place* place = find_tensor(files, *folder.family, t.name);
    if (!place) {
      if (!t.is_copy) missing.push_back(t.name);
      continue;
    }
    used.insert(place->info->name);
    if (place->info->sizes != t.sizes || !is_weight_dtype(place->info->dtype))
      different.push_back(
          fmt::format("{} is {} [{}] in {} instead of [{}]", t.name, to_string(place->info->dtype),
                      fmt::join(place->info->sizes, ", "), place->file, fmt::join(t.sizes, ", ")));
  }
  std::vector<std::string> ignored = folder.family->ignored;
  for (std::string& glob : layers_behind(folder, files)) ignored.push_back(std::move(glob));
  for (const auto& [name, place] : files.tensors()) {
    const auto fits = [&, &n = name](const std::string& glob) { return glob_match(glob, n); };
    for (const auto& [glob, why] : folder.family->refused) {
      if (fits(glob))
        fail(ErrorKind::io, "[model] '{}' has the tensor '{}': {}", folder.path, name, why);
    }
    if (used.count(name) == 0 && std::none_of(ignored.begin(), ignored.end(), fits))
      unknown.push_back(name);
  }
  if (missing.empty() && unknown.empty() && different.empty()) return;
  std::string text;
  if (!missing.empty()) text += fmt::format("; missing: {}", listed(missing));
  if (!unknown.empty()) text += fmt::format("; not in the model: {}", listed(unknown));
  if (!different.empty()) text += fmt::format("; {}", listed(different));
  fail(ErrorKind::io, "[model] the weights in '{}' are not those of its config.json ({}){}",
       folder.path, folder.family->model_type, text);
}

bool ModelFolder::is_one(const std::string& path) {
  return is_folder(path) && is_there(config_path(path));
}

ModelFolder::ModelFolder(const std::string& path)
    : model_(std::make_unique<ModelDescription>(describe_model(
          path, config_path(path), read_text_file("model", config_path(path)), own_family(path)))) {
  if (!model_->family->file.empty()) require_complete(*model_);
  if (const fs::path adapter = fs::path(path) / "adapter_config.json"; is_there(adapter))
    fail(
        ErrorKind::unsupported,
        "[model] '{}': transformers would apply this adapter to the model, and Tessera reads whole "
        "models; merge it with PEFT's merge_and_unload(), or move it to a folder of its own",
        adapter.string());
  if (nn::ImageOptions& image = model_->options.image; image.classes > 0)
    read_image_processor(path, image);
}

ModelFolder::~ModelFolder() = default;
ModelFolder::ModelFolder(ModelFolder&&) noexcept = default;

const std::string& ModelFolder::path() const { return model_->path; }
const std::string& ModelFolder::family() const { return model_->options.name; }
const nn::TransformerOptions& ModelFolder::options() const { return model_->options; }
const std::string& ModelFolder::config_hash() const { return model_->hash; }
bool ModelFolder::has_weights() const { return WeightFiles::exist(model_->path); }
std::string ModelFolder::weights_hash() const { return WeightFiles(model_->path).hash(); }

void ModelFolder::load(Session& session, const nn::TransformerOptions& options) const {
  nn::TransformerOptions in_files = options;
  in_files.lora = {};
  const TensorMap map = tensor_map(*model_->family, in_files);
  require_session(session, map, *model_);
  std::unique_ptr<WeightFiles> files;
  run_together(session.cluster(), [&] {
    files = std::make_unique<WeightFiles>(model_->path);
    require_match(*model_, *files, map);
  });
  run_together(session.cluster(), [&] {
    std::map<std::string, std::vector<std::pair<const WeightFiles::Place*, const TensorPart*>>> of;
    for (const MappedTensor& t : map.tensors) {
      const WeightFiles::Place* place = find_tensor(*files, *model_->family, t.name);
      if (!place) continue;
      for (const TensorPart& part : t.parts) {
        auto& sources = of[part.parameter];
        if (t.is_copy) {
          require_equal(*place, *sources.front().first);
        } else {
          sources.emplace_back(place, &part);
        }
      }
    }
    for (const auto& [name, sources] : of) {
      session.assign_slices(name, [&, &s = sources](const Slice& slice) {
        for (const auto& [place, part] : s) read_part(*place, *part, slice);
      });
    }
  });
}

}  // namespace tessera
