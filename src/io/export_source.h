// The parameters of a checkpoint as ExportOptions ask for them: trained or averaged, and the
// matrices of LoRA beside them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/shards.h"
#include "tessera/model_folder.h"

namespace tessera {

/// Elements of a parameter in float64, row-major.
struct Elements {
  std::vector<std::string> dims;
  std::vector<int64_t> sizes;
  std::vector<double> values;
};

class ExportSource {
 public:
  /// Opens the checkpoint `path`, or the newest in it. Throws usage errors for a checkpoint without
  /// averages, or of another rank than the options say.
  ExportSource(const std::string& path, const ExportOptions& options);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const nn::LoraOptions& lora() const { return options_.lora; }
  /// The tensor of the checkpoint that has the elements of a parameter.
  std::string name_of(const std::string& parameter) const;
  /// "X.lora_a" and "X.lora_b" for "X.w", if the checkpoint has them; else "".
  std::string adapter_of(const std::string& parameter, char which) const;
  bool is_adapted(const std::string& parameter) const {
    return !adapter_of(parameter, 'a').empty();
  }
  /// The elements of a parameter at the given indices of some of its dims, whose sizes are then 1.
  Elements read(OpenShards& shards, const std::string& parameter,
                const std::vector<std::pair<std::string, int64_t>>& at) const;
  /// The same of an adapted parameter, with (alpha / rank) a b added.
  Elements merged(OpenShards& shards, const std::string& parameter,
                  const std::vector<std::pair<std::string, int64_t>>& at) const;

 private:
  std::string path_;
  ExportOptions options_;
  Manifest manifest_;
};

}  // namespace tessera
