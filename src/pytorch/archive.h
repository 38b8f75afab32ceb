// The zip file that torch.export.save() writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tessera::pytorch {

/// Entries are found below the one folder that the file holds: "models/model.json". One thread at a
/// time.
class Archive {
 public:
  /// Throws io errors for a file that is not there or no zip; unsupported in a build without
  /// libzip.
  explicit Archive(const std::string& path);
  ~Archive();

  const std::string& path() const { return path_; }
  bool has(const std::string& entry) const;
  /// Bytes of an entry. Throws an io error if there is none.
  int64_t size(const std::string& entry) const;
  /// A whole entry, checked against its checksum. Throws io errors.
  std::string read(const std::string& entry) const;
  /// Copies bytes [offset, offset + bytes) of an entry; of one that is stored, only these are read.
  /// Throws io errors, also for a range outside of the entry.
  void read(const std::string& entry, int64_t offset, int64_t bytes, void* to) const;

 private:
  struct State;
  std::string path_;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::pytorch
