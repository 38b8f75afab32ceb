// Descriptors, layouts and preferences of cuBLASLt's stand-ins: attributes by number.
#pragma once

#include <cublasLt.h>

#include <cstring>
#include <map>
#include <vector>

namespace tessera::test {

using Attributes = std::map<int, std::vector<char>>;

template <class T>
T get(const Attributes& attributes, int which, T otherwise) {
  const auto it = attributes.find(which);
  if (it == attributes.end() || it->second.size() != sizeof(T)) return otherwise;
  std::memcpy(&otherwise, it->second.data(), sizeof(T));
  return otherwise;
}
template <class Tag, class Which>
cublasStatus_t set(Tag tag, Which which, const void* value, size_t bytes) {
  const char* first = static_cast<const char*>(value);
  (*reinterpret_cast<Attributes*>(tag))[which].assign(first, first + bytes);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Tag>
cublasStatus_t make(Tag* tag) {
  *tag = reinterpret_cast<Tag>(new Attributes);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Tag>
cublasStatus_t drop(Tag tag) {
  delete reinterpret_cast<Attributes*>(tag);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace tessera::test
