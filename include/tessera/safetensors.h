// Files of named tensors in the safetensors format: a little-endian uint64 header length, a JSON
// header, then the elements, row-major and little-endian, tensor after tensor without gaps.
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
          end = 0;  ///< byte range, relative to the end of the header; set by a writer

  int64_t bytes() const { return end - begin; }
};

/// Reads a file without loading it. Opening validates the header and the file's length, so an open
/// file is complete. Several threads may use a reader at once.
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

  /// Copies bytes [offset, offset + bytes) of a tensor, to read slices. Throws a usage error for a
  /// range outside the tensor, an io error if the file cannot be read.
  void read(const TensorInfo& tensor, int64_t offset, int64_t bytes, void* to) const;
  /// Offset of the first element in the file.
  int64_t data_begin() const;
  /// Copies bytes [position, position + bytes) of the file. Throws an io error if it cannot be
  /// read.
  void read_file(int64_t position, int64_t bytes, void* to) const;
  /// A whole tensor. The format has no dim names; the dims are called dim0, dim1, ...
  Array read(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a file from front to back without keeping tensors in memory. The file appears under its
/// name only when it is complete and on disk; it then replaces an existing file atomically.
class SafetensorsWriter {
 public:
  /// Creates a temporary file PATH.tmp-<pid>-<n> in the directory of `path` and writes the header
  /// for `tensors` (name, dtype and sizes). Their elements must be written in this order. Throws
  /// usage errors for a name that is empty, reserved, repeated or not UTF-8, negative sizes and a
  /// header above 100 MB; io errors.
  SafetensorsWriter(const std::string& path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  /// Removes the temporary file unless finish() succeeded.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;

  /// Appends elements of tensor `name`, at once or in pieces. Throws a usage error for a wrong
  /// order or too many bytes. After an io error the temporary file is removed and the writer
  /// unusable.
  void write(const std::string& name, const void* data, int64_t bytes);
  /// Appends the next bytes, whatever tensors they belong to. Throws as write(). Bytes whose
  /// address and offset after the header are multiples of 4096 are written without a copy.
  void append(const void* data, int64_t bytes);
  /// Makes the file durable and renames it to `path`. Without `sync_name` the rename itself may be
  /// lost in a crash until the directory is synced. Throws a usage error if bytes are missing; io
  /// errors as write().
  void finish(bool sync_name = true);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
