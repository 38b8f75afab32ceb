// The file is written atomically: a temporary file in the same directory (hence on the same file
// system), fsync, rename, fsync of the directory. If anything fails before the rename, an existing
// file of that name is unchanged and the temporary file is removed.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/part_file.h"
#include "io/file.h"
#include "io/output_file.h"
#include "io/safetensors_format.h"
#include "tessera/safetensors.h"

namespace tessera {

namespace {

using OrderedJson = nlohmann::ordered_json;
using namespace safetensors;

std::string type_name(DType dtype) {
  for (const TypeName& t : kTypes) {
    if (t.dtype == dtype) return std::string(t.name);
  }
  fail(ErrorKind::internal, "[safetensors] no name for dtype {}", to_string(dtype));
}

/// Assigns consecutive byte ranges to the tensors; returns their total size.
int64_t place(const std::string& path, std::vector<TensorInfo>& tensors) {
  std::set<std::string> names;
  int64_t at = 0;
  for (TensorInfo& t : tensors) {
    TESSERA_REQUIRE(!t.name.empty() && t.name != kMetadata,
                    "[safetensors] '{}': a tensor cannot be called '{}'", path, t.name);
    TESSERA_REQUIRE(names.insert(t.name).second, "[safetensors] '{}': two tensors are called '{}'",
                    path, t.name);
    for (int64_t size : t.sizes) {
      TESSERA_REQUIRE(size >= 0, "[safetensors] '{}': tensor '{}' has the size {}", path, t.name,
                      size);
    }
    const int64_t bytes = byte_count(t);
    t.begin = at;
    TESSERA_REQUIRE(bytes >= 0 && !__builtin_add_overflow(at, bytes, &at),
                    "[safetensors] '{}': tensor '{}' of sizes [{}] is too large for a file", path,
                    t.name, fmt::join(t.sizes, ", "));
    t.end = at;
  }
  return at;
}

/// The length and the header, padded with spaces so that the elements begin at a multiple of 8; in
/// a large file, where elements can be written without a copy.
std::string header_of(const std::string& path, const std::vector<TensorInfo>& tensors,
                      const std::map<std::string, std::string>& metadata, int64_t total) {
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  for (const TensorInfo& t : tensors) {
    header[t.name] = {{"dtype", type_name(t.dtype)},
                      {"shape", t.sizes},
                      {"data_offsets", std::vector<int64_t>{t.begin, t.end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const OrderedJson::exception& e) {
    fail(ErrorKind::usage, "[safetensors] '{}': names and metadata must be UTF-8 ({})", path,
         e.what());
  }
  const size_t align = total >= OutputFile::kDirectFrom ? OutputFile::kAlign : 8;
  text.resize((text.size() + 8 + align - 1) / align * align - 8, ' ');
  TESSERA_REQUIRE(
      static_cast<int64_t>(text.size()) <= kMaxHeader,
      "[safetensors] '{}': a header of {} bytes, for {} tensors and {} metadata entries; at "
      "most {}",
      path, text.size(), tensors.size(), metadata.size(), kMaxHeader);
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

}  // namespace

struct SafetensorsWriter::State {
  std::string path, temporary;
  std::vector<TensorInfo> tensors;
  OutputFile file;
  size_t current = 0;   // index of the tensor being written
  int64_t written = 0;  // bytes of all tensors
  int64_t total = 0;

  ~State() { discard(); }

  void discard() {
    file.close();
    if (!temporary.empty()) ::unlink(temporary.c_str());
    temporary.clear();
  }

  /// Removes the temporary file and throws an io error about a failed system call.
  [[noreturn]] void give_up(const std::string& what, int error) {
    discard();
    const char* remedy = error == ENOSPC || error == EDQUOT || error == EFBIG
                             ? "; make room or choose another directory"
                             : "; check the directory and its permissions";
    fail(ErrorKind::io, "[safetensors] cannot {} '{}' ({} bytes of tensors): {}{}", what, path,
         total, system_message(error), remedy);
  }

  void open(int64_t bytes) {
    int error = EEXIST;
    remove_abandoned_parts(path);
    for (int n = 0; error == EEXIST; ++n) {
      temporary = part_name(path, n);
      error = file.create(temporary, bytes);
    }
    if (file.is_open() && error != 0) give_up("write", error);
    if (error == 0) return;
    temporary.clear();
    give_up("create", error);
  }

  void put(const void* data, int64_t bytes) {
    if (const int error = file.append(data, bytes)) give_up("write", error);
  }

  void require_usable() const {
    TESSERA_REQUIRE(file.is_open(), "[safetensors] '{}' is finished or failed and takes no more",
                    path);
  }

  /// Advances `current` beyond complete tensors.
  void skip_complete() {
    while (current < tensors.size() && written >= tensors[current].end) ++current;
  }

  void sync_directory() {
    const std::string parent = std::filesystem::path(path).parent_path().string();
    const FileHandle directory(
        ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems cannot sync a directory (EINVAL) and need not.
    if (!directory || (fsync(directory.get()) != 0 && errno != EINVAL)) {
      give_up("sync the directory of", errno);
    }
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.tensors = std::move(tensors);
  s.total = place(path, s.tensors);
  const std::string header = header_of(path, s.tensors, metadata, s.total);
  s.open(std::ssize(header) + s.total);
  s.put(header.data(), static_cast<int64_t>(header.size()));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const void* data, int64_t bytes) {
  State& s = *state_;
  s.require_usable();
  // Writing a tensor without elements is optional.
  const auto named = [&](const TensorInfo& t) { return t.name == name && t.bytes() == 0; };
  if (bytes == 0 && std::any_of(s.tensors.begin(), s.tensors.end(), named)) return;
  s.skip_complete();
  TESSERA_REQUIRE(
      s.current < s.tensors.size() && s.tensors[s.current].name == name,
      "[safetensors] '{}': tensor '{}' is written, but {} is next; write the tensors in the order "
      "given to the constructor",
      s.path, name,
      s.current < s.tensors.size() ? fmt::format("'{}'", s.tensors[s.current].name) : "none");
  const int64_t rest = s.tensors[s.current].end - s.written;
  TESSERA_REQUIRE(bytes >= 0 && bytes <= rest,
                  "[safetensors] '{}': {} bytes for tensor '{}', which has {} to come", s.path,
                  bytes, name, rest);
  append(data, bytes);
}

void SafetensorsWriter::append(const void* data, int64_t bytes) {
  State& s = *state_;
  s.require_usable();
  TESSERA_REQUIRE(bytes >= 0 && bytes <= s.total - s.written,
                  "[safetensors] '{}': {} bytes more, but {} are to come", s.path, bytes,
                  s.total - s.written);
  s.put(data, bytes);
  s.written += bytes;
}

void SafetensorsWriter::finish(bool sync_name) {
  State& s = *state_;
  TESSERA_REQUIRE(s.file.is_open(), "[safetensors] '{}' is finished or failed already", s.path);
  s.skip_complete();
  TESSERA_REQUIRE(s.current == s.tensors.size(), "[safetensors] '{}': tensor '{}' lacks {} bytes",
                  s.path, s.current < s.tensors.size() ? s.tensors[s.current].name : "",
                  s.current < s.tensors.size() ? s.tensors[s.current].end - s.written : 0);
  if (const int error = s.file.finish()) s.give_up("sync", error);
  if (::rename(s.temporary.c_str(), s.path.c_str()) != 0) s.give_up("rename to", errno);
  s.temporary.clear();
  s.file.close();
  if (sync_name) s.sync_directory();
}

}  // namespace tessera
