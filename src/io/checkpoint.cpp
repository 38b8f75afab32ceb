// A checkpoint is written by the root process while all processes fetch tensor after tensor. A
// failure of the root must neither leave the others waiting in a collective nor be seen by it
// alone: it goes on fetching, and all agree on the failure at the end.
#include "tessera/checkpoint.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "io/agree.h"
#include "io/checkpoint_files.h"
#include "tessera/safetensors.h"

namespace tessera {

namespace {

using Json = nlohmann::json;

/// What the Session stores: each tensor without its elements. Collective.
std::vector<Array> stored_tensors(Session& session) {
  std::vector<Array> tensors;
  for (const std::string& name : session.stored_names()) {
    Array tensor = session.fetch(name);
    tensor.bytes = {};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string describe(DType dtype, const std::vector<std::string>& dims,
                     const std::vector<int64_t>& sizes) {
  std::string text = to_string(dtype);
  for (size_t d = 0; d < sizes.size(); ++d) {
    text +=
        fmt::format("{}{}{}", d == 0 ? " [" : ", ", d < dims.size() ? dims[d] + "=" : "", sizes[d]);
  }
  return sizes.empty() ? text + " scalar" : text + "]";
}

std::string shortened(const std::vector<std::string>& items) {
  const size_t shown = std::min<size_t>(items.size(), 8);
  return fmt::format(
      "{}{}", fmt::join(items.begin(), items.begin() + static_cast<long>(shown), ", "),
      shown < items.size() ? fmt::format(", and {} more", items.size() - shown) : "");
}

/// Throws a usage error unless file and model have the same tensors.
void require_same_model(const SafetensorsReader& file, const std::vector<std::string>& names,
                        const std::vector<Array>& tensors) {
  const Json dims = checkpoint_dims(file);
  std::vector<std::string> missing, extra, different;
  for (size_t i = 0; i < names.size(); ++i) {
    const TensorInfo* info = file.find(names[i]);
    if (!info) {
      missing.push_back(names[i]);
      continue;
    }
    const std::vector<std::string> file_dims = dims_of(dims, *info);
    const Array& model = tensors[i];
    if (info->dtype != model.dtype || info->sizes != model.sizes || file_dims != model.dims) {
      different.push_back(fmt::format("{} ({} in the file, {} in the model)", names[i],
                                      describe(info->dtype, file_dims, info->sizes),
                                      describe(model.dtype, model.dims, model.sizes)));
    }
  }
  for (const TensorInfo& t : file.tensors()) {
    if (std::find(names.begin(), names.end(), t.name) == names.end()) extra.push_back(t.name);
  }
  if (missing.empty() && extra.empty() && different.empty()) return;
  std::string text;
  if (!missing.empty()) text += "; the file lacks " + shortened(missing);
  if (!extra.empty()) text += "; the model lacks " + shortened(extra);
  if (!different.empty()) text += "; different: " + shortened(different);
  fail(ErrorKind::usage,
       "[checkpoint] '{}' is a checkpoint of another model{}; use the configuration that it was "
       "saved "
       "with",
       file.path(), text);
}

std::string to_text(const Checkpoint& c) {
  return Json{{"path", c.path}, {"step", c.step}, {"metadata", c.metadata}, {"warning", c.warning}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Checkpoint from_text(const std::string& text) {
  const Json json = Json::parse(text);
  return {json["path"], json["step"], json["metadata"], json["warning"]};
}

}  // namespace

Checkpoint load_checkpoint(Session& session, const std::string& path) {
  const std::vector<std::string> names = session.stored_names();
  const std::vector<Array> tensors = stored_tensors(session);
  Checkpoint checkpoint;
  std::optional<SafetensorsReader> file;
  run_together(session.cluster(), [&] {
    checkpoint = read_checkpoint(path);
    file.emplace(path);
    require_same_model(*file, names, tensors);
  });
  run_together(session.cluster(), [&] {
    for (size_t i = 0; i < names.size(); ++i) {
      Array whole(tensors[i].dtype, tensors[i].dims, tensors[i].sizes);
      file->read(file->tensor(names[i]), 0, static_cast<int64_t>(whole.bytes.size()),
                 whole.bytes.data());
      session.assign(names[i], whole);
    }
  });
  session.set_step(checkpoint.step);
  return checkpoint;
}

struct Checkpoints::State {
  Cluster& cluster;
  std::string directory;
  int keep;
  FileHandle lock;                            // of the root process
  uint64_t program = 0;                       // the Program that `tensors` are of
  std::optional<std::vector<Array>> tensors;  // asked for once, at the first save

  const std::vector<Array>& tensors_of(Session& session) {
    if (!tensors || program != session.program_hash()) {
      tensors = stored_tensors(session);
      program = session.program_hash();
    }
    return *tensors;
  }

  /// Starts the file of a checkpoint. Root only.
  std::unique_ptr<SafetensorsWriter> start(Checkpoint& checkpoint,
                                           const std::vector<std::string>& names) {
    std::vector<TensorInfo> infos;
    Json dims = Json::object();
    for (size_t i = 0; i < names.size(); ++i) {
      TensorInfo info;
      info.name = names[i];
      info.dtype = (*tensors)[i].dtype;
      info.sizes = (*tensors)[i].sizes;
      infos.push_back(info);
      dims[names[i]] = (*tensors)[i].dims;
    }
    checkpoint.path = checkpoint_path(directory, checkpoint.step);
    checkpoint.metadata[kVersionKey] = kFormatVersion;
    checkpoint.metadata[kStepKey] = std::to_string(checkpoint.step);
    checkpoint.metadata[kSerialKey] = std::to_string(scan_checkpoints(directory).last_serial + 1);
    checkpoint.metadata[kDimsKey] = dims.dump();
    return std::make_unique<SafetensorsWriter>(checkpoint.path, infos, checkpoint.metadata);
  }

  /// Every process fetches; the root writes until something fails, which it returns.
  std::exception_ptr write(Session& session, SafetensorsWriter* writer,
                           const std::vector<std::string>& names) {
    std::exception_ptr failure;
    for (const std::string& name : names) {
      const Array whole = session.fetch(name);
      if (!writer || failure) continue;
      try {
        writer->write(name, whole.bytes.data(), static_cast<int64_t>(whole.bytes.size()));
      } catch (...) {
        failure = std::current_exception();
      }
    }
    return failure;
  }
};

Checkpoints::Checkpoints(Cluster& cluster, const std::string& directory, int keep)
    : state_(new State{cluster, directory, keep, FileHandle(), 0, {}}) {
  require(keep >= 1, "[checkpoint] keep = {}; at least 1 checkpoint must be kept", keep);
  run_together(cluster, [&] {
    if (!cluster.is_root()) return;
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      fail(ErrorKind::io, "[checkpoint] cannot create the directory '{}': {}; choose another",
           directory, error.message());
    }
    state_->lock = lock_directory(directory);
    remove_leftovers(directory);
  });
}

Checkpoints::~Checkpoints() = default;

Checkpoint Checkpoints::save(Session& session, int64_t step,
                             const std::map<std::string, std::string>& extra) {
  State& s = *state_;
  require(step >= 0, "[checkpoint] cannot save the step {}; steps begin at 0", step);
  for (const char* key : {kVersionKey, kStepKey, kSerialKey, kDimsKey}) {
    require(!extra.count(key), "[checkpoint] the metadata key '{}' is written by save() itself",
            key);
  }
  const std::vector<std::string> names = session.stored_names();
  s.tensors_of(session);
  Checkpoint checkpoint{"", step, extra, ""};
  std::unique_ptr<SafetensorsWriter> writer;
  const bool is_root = s.cluster.is_root();
  run_together(s.cluster, [&] {
    if (is_root) writer = s.start(checkpoint, names);
  });
  const std::exception_ptr failure = s.write(session, writer.get(), names);
  run_together(s.cluster, [&] {
    if (!is_root) return;
    if (failure) std::rethrow_exception(failure);
    writer->finish();
    checkpoint.warning = remove_old(s.directory, s.keep);
  });
  return from_text(s.cluster.first_text(is_root ? to_text(checkpoint) : ""));
}

std::optional<Checkpoint> Checkpoints::latest() {
  State& s = *state_;
  std::string text;
  run_together(s.cluster, [&] {
    if (!s.cluster.is_root()) return;
    if (const auto found = find_latest(s.directory)) text = to_text(*found);
  });
  text = s.cluster.first_text(text);
  if (text.empty()) return std::nullopt;
  return from_text(text);
}

}  // namespace tessera
