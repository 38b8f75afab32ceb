// Descriptors of cuDNN's backend. Attributes are set, the descriptor is finalized, and then it can
// be read and be an attribute of others, which keep it as it was when it was set.
#pragma once

#include <cudnn.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace tessera::test::rules::cudnn {

struct Descriptor {
  using Parts = std::vector<std::shared_ptr<const Descriptor>>;

  cudnnBackendDescriptorType_t type{};
  bool is_final = false;
  std::map<int, std::vector<char>> values = {};  ///< bytes, by number of the attribute
  std::map<int, Parts> parts = {};

  bool has(int name) const { return values.count(name) + parts.count(name) != 0; }
  template <class T>
  std::vector<T> all(int name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> values_of(found->second.size() / sizeof(T));
    std::memcpy(values_of.data(), found->second.data(), found->second.size());
    return values_of;
  }
  template <class T>
  T get(int name, T otherwise) const {
    const auto found = values.find(name);
    if (found != values.end()) std::memcpy(&otherwise, found->second.data(), sizeof(T));
    return otherwise;
  }
  template <class T>
  void set(int name, const std::vector<T>& to) {
    std::vector<char>& bytes = values[name];
    bytes.resize(to.size() * sizeof(T));
    if (!to.empty()) std::memcpy(bytes.data(), to.data(), bytes.size());
  }
  /// Null if it is not set.
  const Descriptor* part(int name) const {
    const auto found = parts.find(name);
    return found == parts.end() ? nullptr : found->second.front().get();
  }
};

cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type,
                                cudnnBackendDescriptor_t* descriptor);
cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void* values);
cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t most, int64_t* count,
                            void* values);
cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor);

/// Null, and a misuse, if it was destroyed.
Descriptor* find_descriptor(cudnnBackendDescriptor_t descriptor);
size_t living_descriptors();

}  // namespace tessera::test::rules::cudnn
