// The directory of checkpoints: names, order, lock, retention.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/file.h"
#include "tessera/checkpoint.h"
#include "tessera/safetensors.h"

namespace tessera {

inline constexpr const char* kFormatVersion = "1";
inline constexpr const char* kVersionKey = "format_version";
inline constexpr const char* kStepKey = "step";
inline constexpr const char* kSerialKey = "serial";
inline constexpr const char* kDimsKey = "dims";

std::string checkpoint_path(const std::string& directory, int64_t step);

/// What a directory holds.
struct CheckpointScan {
  std::vector<Checkpoint> readable;  ///< the newest (greatest serial) first
  struct Unreadable {
    int64_t step;
    std::string why;
  };
  std::vector<Unreadable> unreadable;  ///< latest step first
  int64_t last_serial = 0;
};
CheckpointScan scan_checkpoints(const std::string& directory);

/// The metadata entry "dims" as JSON: an object, empty if there is none. Throws an io error if it
/// is not JSON.
nlohmann::json checkpoint_dims(const SafetensorsReader& file);
/// The dim names of one tensor, or dim0, dim1, ... if there are none. Throws an io error unless
/// they fit its sizes.
std::vector<std::string> dims_of(const nlohmann::json& dims, const TensorInfo& info);

/// Takes the lock; it is held until the handle closes.
FileHandle lock_directory(const std::string& directory);
/// Removes temporary files of checkpoints. The caller holds the lock.
void remove_leftovers(const std::string& directory);
/// Removes all readable checkpoints but the newest `keep`; returns a warning, or "".
std::string remove_old(const std::string& directory, int keep);

}  // namespace tessera
