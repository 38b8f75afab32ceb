// Operations of a graph as plain data, and what finalizing checks of them.
#pragma once

#include <string>
#include <vector>

#include "gpu/rules/cudnn/descriptors.h"

namespace tessera::test::rules::cudnn {

struct TensorInfo {
  explicit TensorInfo(const Descriptor& d);
  std::vector<int64_t> dims, strides;
  int64_t id = 0, alignment = 0;
  cudnnDataType_t type{};
  bool is_virtual = false;  ///< never in memory
  bool is_number = false;   ///< of the host, read when the graph is executed
  /// From its first element to behind its last one, in elements.
  int64_t span() const;
  bool is_in_memory() const { return !is_virtual && !is_number; }
};

struct Operation {
  explicit Operation(const Descriptor& d);
  cudnnBackendDescriptorType_t type;
  int mode = 0;       ///< of a pointwise operation or a reduction
  int64_t axis = -1;  ///< of an index
  /// x and b (pointwise: then what chooses); a and b (matmul).
  std::vector<TensorInfo> in;
  std::vector<TensorInfo> out;  ///< one
};

int64_t bytes_of(cudnnDataType_t type);
bool is_operation(cudnnBackendDescriptorType_t type);
cudnnStatus_t check_tensor(const Descriptor& d);
cudnnStatus_t check_operation(const Descriptor& d);
cudnnStatus_t check_graph(const Descriptor& d);

/// The operations of a graph, each behind what it reads.
std::vector<Operation> read_graph(const Descriptor& graph);
/// Why no engine can do it; empty if one can.
std::string why_not(const std::vector<Operation>& graph);

}  // namespace tessera::test::rules::cudnn
