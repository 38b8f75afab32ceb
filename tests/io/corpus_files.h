// Corpora byte by byte, and fields of examples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.h"
#include "tessera/data.h"

namespace tessera::test {

using Ints = std::vector<int32_t>;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::string bytes_of(T value) {
  return bytes_of(std::vector<T>{value});
}

/// An index as Megatron's writer makes it, field by field.
inline std::string megatron_index(uint8_t dtype, const std::vector<int32_t>& lengths,
                                  int64_t token_bytes, const std::vector<int64_t>& documents) {
  std::vector<int64_t> pointers;
  int64_t at = 0;
  for (const int32_t length : lengths) {
    pointers.push_back(at);
    at += length * token_bytes;
  }
  return std::string("MMIDIDX\0\0", 9) + bytes_of(uint64_t{1}) + bytes_of(dtype) +
         bytes_of(uint64_t{lengths.size()}) + bytes_of(uint64_t{documents.size()}) +
         bytes_of(lengths) + bytes_of(pointers) + bytes_of(documents);
}

template <class T>
std::vector<T> read_field(const DataSource& data, int64_t example, const std::string& name,
                          int64_t offset = 0, int64_t extent = -1) {
  for (size_t f = 0; f < data.fields().size(); ++f) {
    if (data.fields()[f].name != name) continue;
    if (extent < 0) extent = data.fields()[f].dims[0].size;
    std::vector<T> to(static_cast<size_t>(extent));
    data.read(example, static_cast<int>(f), {to.data(), {offset}, {extent}, {1}});
    return to;
  }
  FAIL("no field " << name);
  return {};
}

inline TextOptions with_documents(int64_t length) {
  TextOptions o;
  o.length = length;
  o.segments = "segments";
  o.positions = "positions";
  o.weights = "weights";
  return o;
}

}  // namespace tessera::test
