// Attention as a graph of cuDNN operations, in the form for which cuDNN has kernels.
#pragma once

#include <string>
#include <vector>

#include "gpu/device/cuda_dnn.h"
#include "gpu/library/cudnn.h"

namespace tessera::cuda {

/// A cuDNN descriptor.
struct Node {
  cudnnBackendDescriptor_t at = nullptr;
};

inline cudnnBackendAttributeType_t type_of(int64_t) { return CUDNN_TYPE_INT64; }
inline cudnnBackendAttributeType_t type_of(bool) { return CUDNN_TYPE_BOOLEAN; }
inline cudnnBackendAttributeType_t type_of(char) { return CUDNN_TYPE_CHAR; }
inline cudnnBackendAttributeType_t type_of(void*) { return CUDNN_TYPE_VOID_PTR; }
inline cudnnBackendAttributeType_t type_of(Node) { return CUDNN_TYPE_BACKEND_DESCRIPTOR; }
inline cudnnBackendAttributeType_t type_of(cudnnHandle_t) { return CUDNN_TYPE_HANDLE; }
inline cudnnBackendAttributeType_t type_of(cudnnDataType_t) { return CUDNN_TYPE_DATA_TYPE; }
inline cudnnBackendAttributeType_t type_of(cudnnBackendHeurMode_t) { return CUDNN_TYPE_HEUR_MODE; }
inline cudnnBackendAttributeType_t type_of(cudnnPointwiseMode_t) {
  return CUDNN_TYPE_POINTWISE_MODE;
}
inline cudnnBackendAttributeType_t type_of(cudnnReduceTensorOp_t) {
  return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
}
inline cudnnBackendAttributeType_t type_of(cudnnBackendNumericalNote_t) {
  return CUDNN_TYPE_NUMERICAL_NOTE;
}

/// Owns descriptors and destroys them together.
class Nodes {
 public:
  explicit Nodes(const Cudnn& dnn) : dnn_(dnn) {}
  ~Nodes();
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;

  Node make(cudnnBackendDescriptorType_t type);
  template <class T>
  void set(Node node, cudnnBackendAttributeName_t name, const T* values, size_t count) {
    set(node, name, type_of(T{}), static_cast<int64_t>(count), values);
  }
  template <class T>
  void set(Node node, cudnnBackendAttributeName_t name, const T& value) {
    set(node, name, &value, 1);
  }
  /// Reads at most to.size() values; descriptors in `to` must have been created before.
  template <class T>
  void get(Node node, cudnnBackendAttributeName_t name, std::vector<T>& to) {
    int64_t count = 0;
    get(node, name, type_of(T{}), static_cast<int64_t>(to.size()), &count, to.data());
    if (count < static_cast<int64_t>(to.size())) to.resize(static_cast<size_t>(count));
  }
  void finalize(Node node);
  /// Returns false and sets `why` if the library does not support the description.
  bool finalize(Node node, std::string& why);

 private:
  void set(Node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           int64_t count, const void* values);
  void get(Node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           int64_t most, int64_t* count, void* to);

  const Cudnn& dnn_;
  std::vector<cudnnBackendDescriptor_t> made_;
};

/// The ids of a graph's operands.
enum AttentionId : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLogSum,
  kGrad,
  kQueryGrad,
  kKeyGrad,
  kValueGrad,
  kRowSums,  ///< sums of out times its gradient, float32 [batch, heads, queries], in the workspace
  kScale,    ///< numbers in host memory
  kOne,
  kUnseen,  ///< logit of a masked key
};

/// Builds the graph; `nodes` owns its parts. Without a handle it is for GPUs that are described
/// otherwise. Returns null and sets `why` if the library does not support it.
Node attention_graph(Nodes& nodes, const CudaAttend& attend, cudnnHandle_t handle,
                     std::string& why);

}  // namespace tessera::cuda
