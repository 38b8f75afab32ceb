// Exporting: each tensor of the files is put together from the slices of a checkpoint's parameters,
// which are read straight to their places in it.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "io/checkpoint_files.h"
#include "io/elements.h"
#include "io/export_source.h"
#include "io/model_description.h"
#include "io/peft_adapter.h"
#include "io/shards.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// Files of a folder that other programs need beside the weights.
constexpr const char* kCompanions[] = {
    "config.json",     "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",      "chat_template.jinja",     "spiece.model",      "vocab.txt",
    "tekken.json",     "tiktoken.model",          "family.toml",       "preprocessor_config.json"};

/// Whether a file of this name goes with the weights; tiktoken files have names of their own.
bool is_companion(const fs::path& name) {
  return std::find(std::begin(kCompanions), std::end(kCompanions), name.string()) !=
             std::end(kCompanions) ||
         name.extension() == ".tiktoken";
}

/// A tensor to write.
struct Output {
  const MappedTensor* tensor;
  TensorInfo info;
  std::string file;
};

int64_t bytes_of(const TensorInfo& info) {
  int64_t bytes = size_of(info.dtype);
  for (const int64_t size : info.sizes) bytes *= size;
  return bytes;
}

/// As `like` has its tensors: their names, dtypes, files and order.
std::vector<Output> outputs_like(const ModelDescription& like, const TensorMap& map) {
  const WeightFiles files(like.path);
  require_match(like, files, map);
  std::vector<Output> outputs;
  for (const MappedTensor& t : map.tensors) {
    const WeightFiles::Place* place = find_tensor(files, *like.family, t.name);
    if (!place) continue;
    TensorInfo info;
    info.name = place->info->name;
    info.dtype = place->info->dtype;
    info.sizes = t.sizes;
    info.begin = place->info->begin;  // set again by the writer
    outputs.push_back({&t, std::move(info), place->file});
  }
  std::sort(outputs.begin(), outputs.end(), [](const Output& a, const Output& b) {
    return std::pair(a.file, a.info.begin) < std::pair(b.file, b.info.begin);
  });
  return outputs;
}

/// In files of at most `shard_bytes`, or with one tensor.
std::vector<Output> outputs_of(const TensorMap& map, DType dtype, int64_t shard_bytes) {
  std::vector<Output> outputs;
  std::vector<int> number;
  int64_t bytes = 0;
  for (const MappedTensor& t : map.tensors) {
    if (t.is_copy) continue;
    TensorInfo info;
    info.name = t.name;
    info.dtype = dtype;
    info.sizes = t.sizes;
    const int64_t more = bytes_of(info);
    const bool is_new = number.empty() || bytes + more > shard_bytes;
    bytes = is_new ? more : bytes + more;
    number.push_back(number.empty() ? 1 : number.back() + (is_new ? 1 : 0));
    outputs.push_back({&t, std::move(info), ""});
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    outputs[i].file = number.back() == 1 ? "model.safetensors"
                                         : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                       number[i], number.back());
  return outputs;
}

void require_parameters(const std::string& path, const Manifest& manifest, const TensorMap& map,
                        const ModelDescription& like) {
  for (const auto& [name, shape] : map.parameters) {
    const auto it = manifest.tensors.find(name);
    std::vector<int64_t> sizes;
    for (const Dim& d : shape) sizes.push_back(d.size);
    const bool good = it != manifest.tensors.end() && it->second.shape.sizes == sizes &&
                      is_weight_dtype(it->second.shape.dtype) &&
                      (it->second.shape.dims.empty() || it->second.shape.dims == shape.names());
    TESSERA_REQUIRE(good, "[export] '{}' is not a checkpoint of the model of '{}': {} '{}' {}",
                    path, like.path,
                    it == manifest.tensors.end() ? "it lacks" : "it has in other sizes", name,
                    shape.to_string());
  }
}

class Exporter {
 public:
  Exporter(const std::string& checkpoint, const ModelDescription& like,
           const ExportOptions& options)
      : source_(checkpoint, options), manifest_(source_.manifest()), like_(like) {
    nn::TransformerOptions o = like.options;
    o.scan = std::any_of(manifest_.tensors.begin(), manifest_.tensors.end(), [&](const auto& t) {
      const std::vector<std::string>& dims = t.second.shape.dims;
      return t.first.starts_with(o.name + ".block.") ||
             (t.first.starts_with(o.name + ".block") &&
              std::find(dims.begin(), dims.end(), "layers") != dims.end());
    });
    map_ = tensor_map(*like.family, o);
    require_parameters(source_.path(), manifest_, map_, like);
  }

  int64_t write_adapter(const std::string& folder) {
    TESSERA_REQUIRE(
        WeightFiles::exist(like_.path),
        "[export] '{}' holds no weights, and an adapter is what differs from them; give "
        "the folder with the weights that training began with",
        like_.path);
    const WeightFiles base(like_.path);
    require_match(like_, base, map_);
    OpenShards shards(source_.path(), manifest_);
    TrainedTensors trained;
    trained.elements = [&](const MappedTensor& t, DType dtype) {
      return elements_of(shards, t, false, dtype);
    };
    std::set<std::string> parameters;
    for (const MappedTensor& t : map_.tensors) {
      const auto is_trained = [&](const TensorPart& p) { return parameters.contains(p.parameter); };
      if (!t.is_copy && differs(shards, t, *find_tensor(base, *like_.family, t.name))) {
        for (const TensorPart& part : t.parts) parameters.insert(part.parameter);
        trained.tensors.push_back(&t);
      } else if (t.is_copy && std::any_of(t.parts.begin(), t.parts.end(), is_trained)) {
        trained.tensors.push_back(&t);
      }
    }
    return write_peft_adapter(folder, source_, map_, like_.options, like_.path, trained);
  }

  int64_t write(const std::string& folder, int64_t shard_bytes) {
    const std::vector<Output> outputs = WeightFiles::exist(like_.path)
                                            ? outputs_like(like_, map_)
                                            : outputs_of(map_, like_.dtype, shard_bytes);
    std::map<std::string, std::vector<const Output*>> files;
    nlohmann::json weight_map = nlohmann::json::object();
    int64_t total = 0;
    for (const Output& o : outputs) {
      files[o.file].push_back(&o);
      weight_map[o.info.name] = o.file;
      total += bytes_of(o.info);
    }
    for (const auto& [file, tensors] : files)
      write_file((fs::path(folder) / file).string(), tensors);
    if (files.size() > 1 || files.begin()->first != "model.safetensors")
      write_text_file(
          (fs::path(folder) / "model.safetensors.index.json").string(),
          nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(
              2) +
              "\n");
    return std::ssize(outputs);
  }

 private:
  void write_file(const std::string& path, const std::vector<const Output*>& tensors) {
    std::vector<TensorInfo> infos;
    for (const Output* o : tensors) infos.push_back(o->info);
    SafetensorsWriter file(path, infos, {{"format", "pt"}});
    OpenShards shards(source_.path(), manifest_);
    for (const Output* o : tensors) {
      const std::vector<std::byte> bytes = elements_of(shards, *o->tensor, true, o->info.dtype);
      file.write(o->info.name, bytes.data(), std::ssize(bytes));
    }
    file.finish();
  }

  DType dtype_of(const TensorPart& part) const {
    return manifest_.tensors.at(source_.name_of(part.parameter)).shape.dtype;
  }

  /// Whether a tensor has other elements than the file `place`, in the dtype of the checkpoint.
  bool differs(OpenShards& shards, const MappedTensor& t, const WeightFiles::Place& place) {
    const DType from = place.info->dtype, dtype = dtype_of(t.parts[0]);
    std::vector<std::byte> base(static_cast<size_t>(place.info->bytes()));
    place.reader->read(*place.info, 0, std::ssize(base), base.data());
    const int64_t elements = std::ssize(base) / size_of(from);
    std::vector<std::byte> same(static_cast<size_t>(elements * size_of(dtype)));
    convert_elements(base.data(), from, same.data(), dtype, nullptr, elements);
    return elements_of(shards, t, false, dtype) != same;
  }

  /// The elements of a tensor, with or without the products of LoRA.
  std::vector<std::byte> elements_of(OpenShards& shards, const MappedTensor& t, bool merges,
                                     DType dtype) {
    const auto is_merged = [&](const TensorPart& part) {
      return merges && source_.is_adapted(part.parameter);
    };
    const std::vector<TensorPart>& parts = t.parts;
    DType stored = dtype_of(parts[0]);
    for (const TensorPart& part : parts) {
      if (is_merged(part) || dtype_of(part) != stored) stored = DType::float64;
    }
    int64_t elements = 1;
    for (const int64_t size : t.sizes) elements *= size;
    std::vector<std::byte> whole(static_cast<size_t>(elements * size_of(stored)));
    for (const TensorPart& part : parts) {
      const Slice place = place_of(part, map_.parameters.at(part.parameter), whole.data(), stored);
      if (is_merged(part)) {
        put(source_.merged(shards, part.parameter, part.at), place);
      } else if (dtype_of(part) != stored) {
        put(source_.read(shards, part.parameter, part.at), place);
      } else {
        const std::string name = source_.name_of(part.parameter);
        read_slice(shards, name, manifest_.tensors.at(name), place);
      }
    }
    if (stored == dtype) return whole;
    std::vector<std::byte> bytes(static_cast<size_t>(elements * size_of(dtype)));
    convert_elements(whole.data(), stored, bytes.data(), dtype, nullptr, elements);
    return bytes;
  }

  /// Writes elements of a parameter to their places, in float64.
  static void put(const Elements& from, const Slice& place) {
    std::vector<int64_t> index(from.sizes.size(), 0);
    auto* const to = static_cast<double*>(place.data);
    for (const double value : from.values) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) at += index[d] * place.strides[d];
      to[at] = value;
      for (size_t d = index.size(); d-- > 0 && ++index[d] == from.sizes[d];) index[d] = 0;
    }
  }

  /// The part as a slice of its parameter that lies in the tensor's elements.
  static Slice place_of(const TensorPart& part, const Shape& shape, std::byte* whole, DType dtype) {
    Slice slice;
    slice.dtype = dtype;
    for (const Dim& d : shape) {
      slice.dims.push_back(d.name);
      const auto is_it = [&](const auto& index) { return index.first == d.name; };
      const auto at = std::find_if(part.at.begin(), part.at.end(), is_it);
      slice.offset.push_back(at == part.at.end() ? 0 : at->second);
      slice.valid.push_back(at == part.at.end() ? d.size : 1);
      slice.strides.push_back(0);
    }
    int64_t stride = 1, first = 0;
    for (size_t i = part.dims.size(); i-- > 0;) {
      const PartDim& p = part.dims[i];
      const auto d = std::find(slice.dims.begin(), slice.dims.end(), p.name) - slice.dims.begin();
      first += p.first * stride;
      if (d < std::ssize(slice.dims)) slice.strides[static_cast<size_t>(d)] = stride;
      stride *= p.size;
    }
    slice.data = whole + first * size_of(dtype);
    return slice;
  }

  ExportSource source_;
  const Manifest& manifest_;
  const ModelDescription& like_;
  TensorMap map_;
};

/// A config.json without what it says of numbers of 8 bits: the weights beside it are plain.
void write_config(const std::string& from, const std::string& to) {
  const std::string text = read_text_file("a model's configuration", from);
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text);
  write_text_file(to, config.erase("quantization_config") > 0 ? config.dump(2) + "\n" : text);
}

}  // namespace

int64_t export_model(const std::string& checkpoint, const ModelFolder& like, const std::string& to,
                     const ExportOptions& options) {
  const fs::path folder = folder_path(to);
  TESSERA_REQUIRE(!is_taken(folder),
                  "[export] '{}' exists already; choose another folder or remove it", to);
  TESSERA_REQUIRE(options.shard_bytes > 0,
                  "[export] files of at most {} bytes; the number is positive",
                  options.shard_bytes);
  Exporter exporter(checkpoint, *like.model_, options);
  const std::string temporary = folder.string() + ".tmp-export";
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error)
    fail(ErrorKind::io, "[export] cannot make the folder '{}': {}", temporary, error.message());
  try {
    const int64_t tensors = options.adapter ? exporter.write_adapter(temporary)
                                            : exporter.write(temporary, options.shard_bytes);
    for (const std::string& name : names_in(like.path())) {
      if (options.adapter || !is_companion(name)) continue;
      const fs::path from = fs::path(like.path()) / name;
      if (name == "config.json")
        write_config(from.string(), (fs::path(temporary) / name).string());
      else
        fs::copy_file(from, fs::path(temporary) / name);
    }
    fs::rename(temporary, folder);
    return tensors;
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(temporary, error);
    fail(ErrorKind::io, "[export] '{}' cannot be written: {}", to, e.what());
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

}  // namespace tessera
