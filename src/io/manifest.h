// The manifest of a sharded checkpoint: which tensors it has, which box of each lies in which file,
// and what every file has to look like. It is written last; a checkpoint without it does not exist.
//
// The file is {"crc32c":"0123abcd","manifest":{...}} and the checksum is that of the inner object's
// bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/array.h"

namespace tessera {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kManifestVersion = 2;

/// A box of a tensor, in logical coordinates, which is one tensor (of its name) of a file.
struct FilePiece {
  int file = 0;  ///< index in Manifest::files
  std::vector<int64_t> offset, extent;
};

struct ManifestTensor {
  Array shape;  ///< without elements
  std::vector<FilePiece> pieces;
};

struct ManifestFile {
  std::string name;         ///< in the directory of the manifest
  int64_t bytes = 0;        ///< its length
  uint32_t header_crc = 0;  ///< of everything in front of the elements
  uint32_t sums_crc = 0;    ///< of the checksums at its end
};

struct Manifest {
  int64_t step = 0, serial = 0;
  std::map<std::string, std::string> metadata;
  std::vector<ManifestFile> files;
  std::map<std::string, ManifestTensor> tensors;
  /// False for checkpoints of format 1, one file without checksums, which is files[0].
  bool has_checksums = true;
};

/// As the text of a file.
std::string to_text(const Manifest& manifest);
/// Throws io errors that name `path`: damaged, of a newer version, or with pieces that do not make
/// up their tensors.
Manifest parse_manifest(const std::string& text, const std::string& path);

/// Reads and parses a checkpoint, a directory with a manifest or a file of format 1, and compares
/// the lengths of its files. Throws io errors: missing or cut files.
Manifest read_manifest(const std::string& checkpoint);
/// The path of a file of a checkpoint.
std::string file_path(const std::string& checkpoint, const Manifest& manifest, int file);

}  // namespace tessera
