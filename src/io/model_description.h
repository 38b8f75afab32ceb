// What a ModelFolder knows, for reading and for exporting.
#pragma once

#include <memory>
#include <string>

#include "io/tensor_map.h"
#include "io/weight_files.h"
#include "tessera/model_folder.h"

namespace tessera {

/// A folder's config.json, read by its family's table.
struct ModelDescription {
  std::string path;
  std::shared_ptr<const Family> family;
  nn::TransformerOptions options;
  std::string hash;
  DType dtype = DType::float32;  ///< that config.json gives
};

/// A file of a folder that describes its family: read_family().
inline constexpr const char* kFamilyFile = "family.toml";

/// Reads `text`, the content of the config.json called `file`, of the folder `path`, by the table
/// of its model_type or by that of `own`. Throws as ModelFolder.
ModelDescription describe_model(const std::string& path, const std::string& file,
                                const std::string& text,
                                std::shared_ptr<const Family> own = nullptr);

/// The name in the files of a tensor that the table calls `name`: old files may lack a prefix.
/// Null if they do not hold it.
const WeightFiles::Place* find_tensor(const WeightFiles& files, const Family& family,
                                      const std::string& name);
/// Throws an io error unless the files hold exactly the tensors of the map, in its sizes and in
/// floating dtypes.
void require_match(const ModelDescription& folder, const WeightFiles& files, const TensorMap& map);

}  // namespace tessera
