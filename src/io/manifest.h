// The manifest of a sharded checkpoint: its tensors, which box of each is in which file, and the
// length and checksums of every file. It is written last; without it there is no checkpoint.
//
// The file is {"crc32c":"0123abcd","manifest":{...}}; the checksum covers the bytes of the inner
// object.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/array.h"

namespace tessera {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kManifestVersion = 2;

/// A box of a tensor in logical coordinates. In the file it is a tensor of the same name.
struct FilePiece {
  int file = 0;  ///< index in Manifest::files
  std::vector<int64_t> offset, extent;
};

struct ManifestTensor {
  Array shape;  ///< without elements
  std::vector<FilePiece> pieces;
};

struct ManifestFile {
  std::string name;         ///< relative to the manifest's directory
  int64_t bytes = 0;        ///< length of the file
  uint32_t header_crc = 0;  ///< of everything before the elements
  uint32_t sums_crc = 0;    ///< of the checksums at the end of the file
};

struct Manifest {
  int64_t step = 0, serial = 0;
  std::map<std::string, std::string> metadata;
  std::vector<ManifestFile> files;
  std::map<std::string, ManifestTensor> tensors;
  /// False for format 1: one file, files[0], without checksums.
  bool has_checksums = true;
};

/// The text of the manifest file.
std::string to_text(const Manifest& manifest);
/// Throws io errors that name `path`: damaged, newer version, or pieces that do not cover their
/// tensors exactly.
Manifest parse_manifest(const std::string& text, const std::string& path);

/// Reads a checkpoint (a directory with a manifest, or a file of format 1) and checks the lengths
/// of its files. Throws io errors for missing or truncated files.
Manifest read_manifest(const std::string& checkpoint);
/// The path of a checkpoint's file.
std::string file_path(const std::string& checkpoint, const Manifest& manifest, int file);

}  // namespace tessera
