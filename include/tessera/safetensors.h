// Files of named tensors in the safetensors format: a little-endian uint64 length, a JSON header of
// that length, and the elements, row-major and little-endian, one tensor behind the other without
// gaps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/array.h"
#include "tessera/dtype.h"

namespace tessera {

/// One tensor of a file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::float32;
  std::vector<int64_t> sizes;
  int64_t begin = 0,
          end = 0;  ///< its bytes, counted from the end of the header; a writer fills them in

  int64_t bytes() const { return end - begin; }
};

/// Reads a file without loading it. Opening validates the whole header and the length of the file:
/// what was opened is complete. May be used by several threads at once.
class SafetensorsReader {
 public:
  /// Throws io errors that name the file, the tensor and the numbers.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  const std::string& path() const;
  const std::map<std::string, std::string>& metadata() const;
  /// All tensors, in the order of their bytes.
  const std::vector<TensorInfo>& tensors() const;
  /// Null if there is none of this name.
  const TensorInfo* find(const std::string& name) const;
  /// Throws an io error with the nearest name if there is none.
  const TensorInfo& tensor(const std::string& name) const;

  /// Copies bytes [offset, offset + bytes) of a tensor, so that a slice can be read run by run.
  /// Throws a usage error for a range outside of the tensor, an io error if the file cannot be
  /// read.
  void read(const TensorInfo& tensor, int64_t offset, int64_t bytes, void* to) const;
  /// Where the elements begin in the file.
  int64_t data_begin() const;
  /// Copies bytes [position, position + bytes) of the file. Throws an io error if it cannot be
  /// read.
  void read_file(int64_t position, int64_t bytes, void* to) const;
  /// A whole tensor; its dims are called dim0, dim1, ... The format keeps no names.
  Array read(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a file front to back, holding nothing in memory, and lets it appear under its name only
/// when it is complete and on disk: a file of that name is replaced at once or not at all.
class SafetensorsWriter {
 public:
  /// Starts a temporary file PATH.tmp-<pid>-<n> in the directory of `path` and writes the header
  /// for `tensors` (name, dtype and sizes), whose elements follow in this order. Throws usage
  /// errors for a name that is empty, reserved, not UTF-8 or used twice, negative sizes and a
  /// header above 100 MB; io errors.
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  /// Removes the temporary file unless finish() succeeded.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;

  /// Appends elements of tensor `name`, whole or piece by piece. Throws a usage error out of order
  /// or for too many bytes; an io error, after which the temporary file is gone and the writer
  /// unusable.
  void write(const std::string& name, const void* data, int64_t bytes);
  /// Appends the next bytes of whatever tensors they belong to. Throws as write(). Bytes that lie
  /// at multiples of 4096, in memory and behind the header, are not copied.
  void append(const void* data, int64_t bytes);
  /// Makes the file durable and renames it to `path`; without `sync_name` the new name itself may
  /// be lost until somebody syncs the directory. Throws a usage error if bytes are missing; io
  /// errors as write().
  void finish(bool sync_name = true);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
