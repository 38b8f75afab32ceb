// The safetensors files of a model's folder, as one set of tensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/safetensors.h"

namespace tessera {

class WeightFiles {
 public:
  /// Whether there are weights: model.safetensors, or an index of several files. Throws an io error
  /// for a folder that has pickled ones only.
  static bool exist(const std::string& folder);

  /// Opens all files. Throws io errors for damaged ones, and for an index that names a file outside
  /// of the folder, a tensor that its file lacks, or not every tensor.
  explicit WeightFiles(const std::string& folder);

  struct Place {
    const SafetensorsReader* reader;
    const TensorInfo* info;
    std::string file;  ///< name in the folder
  };
  const std::map<std::string, Place>& tensors() const { return tensors_; }
  /// A hash of names, lengths, headers and the last bytes of all files.
  std::string hash() const;

 private:
  void open_index(const std::string& path);
  void open_file(const std::string& name);

  std::string folder_;
  std::map<std::string, std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, Place> tensors_;
};

}  // namespace tessera
