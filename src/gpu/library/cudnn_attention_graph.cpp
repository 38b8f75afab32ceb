// cuDNN recognizes attention by its form: which operations, in which order, and which intermediate
// values are in memory. For the gradient of the queries, the sum over keys is a matmul of the whole
// matrix of logit gradients with the keys. The kernel then stores that matrix in 16 bits and is
// deterministic. (With a float32 operand for these sums it uses atomics, and has no note that says
// so.)
#include "gpu/library/cudnn_attention_graph.h"

#include <array>
#include <utility>

namespace tessera::cuda {

#define CHECKED(name) TESSERA_DNN(dnn_, name)

Nodes::~Nodes() {
  for (cudnnBackendDescriptor_t node : made_) dnn_.cudnnBackendDestroyDescriptor_(node);
}

Node Nodes::make(cudnnBackendDescriptorType_t type) {
  Node node;
  CHECKED(cudnnBackendCreateDescriptor)(type, &node.at);
  made_.push_back(node.at);
  return node;
}

void Nodes::set(Node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void* values) {
  CHECKED(cudnnBackendSetAttribute)(node.at, name, type, count, values);
}

void Nodes::get(Node node, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t most, int64_t* count, void* to) {
  CHECKED(cudnnBackendGetAttribute)(node.at, name, type, most, count, to);
}

void Nodes::finalize(Node node) { CHECKED(cudnnBackendFinalize)(node.at); }

bool Nodes::finalize(Node node, std::string& why) {
  const cudnnStatus_t status = dnn_.cudnnBackendFinalize_(node.at);
  if (status != CUDNN_STATUS_SUCCESS) why = dnn_.error(status);
  return status == CUDNN_STATUS_SUCCESS;
}

namespace {

using Dims = std::array<int64_t, 4>;

/// A tensor between operations.
struct Value {
  Node node;
  Dims dims{}, strides{};
  bool is_there() const { return node.at != nullptr; }
};

Dims packed(const Dims& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

class Builder {
 public:
  Builder(Nodes& nodes, const CudaAttend& attend)
      : nodes_(nodes),
        a_(attend),
        small_(attend.dtype == DType::bfloat16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF),
        logits_{attend.batch, attend.heads, attend.queries, attend.keys} {}

  void forward();
  void backward();
  const std::vector<Node>& operations() const { return operations_; }

 private:
  Value tensor(cudnnDataType_t type, const Dims& dims, const Dims& strides, int64_t id,
               bool inside = false, bool number = false);
  Value inside(const Dims& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return tensor(type, dims, packed(dims), next_++, true);
  }
  Value number(AttentionId id) {
    return tensor(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, id, false, true);
  }
  /// Rows of all heads or key heads: [batch, heads, positions, width], or with the last two dims
  /// swapped.
  Value rows(AttentionId id, const CudaAttend::Strides& strides, bool of_keys,
             bool swapped = false);
  Value log_sums(AttentionId id) {
    const Dims dims{a_.batch, a_.heads, a_.queries, 1};
    return tensor(CUDNN_DATA_FLOAT, dims, packed(dims), id);
  }

  Value done(Node node, Value to);
  Value point(cudnnPointwiseMode_t mode, Value x, Value second = {}, Value to = {},
              Value chosen = {}, int64_t axis = -1);
  Value seen_only(Value logits);
  Value reduce(cudnnReduceTensorOp_t with, Value x, Value to);
  Value matmul(Value a, Value b, Value to);
  /// The same memory with the last two dims swapped.
  Value swapped(Value x, cudnnDataType_t type);
  void matmul_of_heads(Value a, Value b, AttentionId id, const CudaAttend::Strides& strides);

  Nodes& nodes_;
  const CudaAttend& a_;
  cudnnDataType_t small_;
  Dims logits_;
  int64_t next_ = kUnseen + 1;
  std::vector<Node> operations_;
};

Value Builder::tensor(cudnnDataType_t type, const Dims& dims, const Dims& strides, int64_t id,
                      bool inside, bool number) {
  const Node node = nodes_.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  nodes_.set(node, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  nodes_.set(node, CUDNN_ATTR_TENSOR_DIMENSIONS, dims.data(), dims.size());
  nodes_.set(node, CUDNN_ATTR_TENSOR_STRIDES, strides.data(), strides.size());
  nodes_.set(node, CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  nodes_.set(node, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  if (inside) nodes_.set(node, CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  if (number) nodes_.set(node, CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  nodes_.finalize(node);
  return {node, dims, strides};
}

Value Builder::rows(AttentionId id, const CudaAttend::Strides& s, bool of_keys, bool swapped) {
  Dims dims{a_.batch, of_keys ? a_.key_heads : a_.heads, of_keys ? a_.keys : a_.queries, a_.width};
  Dims strides = packed(dims);  // strides of dims of size 1 do not matter
  if (dims[0] > 1) strides[0] = s.batch;
  if (dims[1] > 1) strides[1] = s.head;
  if (dims[2] > 1) strides[2] = s.position;
  if (swapped) {
    std::swap(dims[2], dims[3]);
    std::swap(strides[2], strides[3]);
  }
  return tensor(small_, dims, strides, id);
}

Value Builder::done(Node node, Value to) {
  nodes_.finalize(node);
  operations_.push_back(node);
  return to;
}

Value Builder::point(cudnnPointwiseMode_t mode, Value x, Value second, Value to, Value chosen,
                     int64_t axis) {
  if (!to.is_there()) to = inside(x.dims);
  const Node how = nodes_.make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  nodes_.set(how, CUDNN_ATTR_POINTWISE_MODE, mode);
  nodes_.set(how, CUDNN_ATTR_POINTWISE_MATH_PREC,
             mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT);
  if (axis >= 0) nodes_.set(how, CUDNN_ATTR_POINTWISE_AXIS, axis);
  nodes_.finalize(how);
  const Node node = nodes_.make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  nodes_.set(node, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  nodes_.set(node, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.node);
  if (second.is_there()) nodes_.set(node, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, second.node);
  if (chosen.is_there()) nodes_.set(node, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, chosen.node);
  nodes_.set(node, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to.node);
  return done(node, to);
}

/// With a causal mask, sets the logits of keys after a query to kUnseen.
Value Builder::seen_only(Value logits) {
  if (!a_.causal) return logits;
  const auto index = [&](int64_t axis) {
    return point(CUDNN_POINTWISE_GEN_INDEX, logits, {}, inside(logits_, CUDNN_DATA_INT32), {},
                 axis);
  };
  const Value query = index(2), key = index(3);
  const Value seen = point(CUDNN_POINTWISE_CMP_GE, query, key, inside(logits_, CUDNN_DATA_BOOLEAN));
  return point(CUDNN_POINTWISE_BINARY_SELECT, logits, number(kUnseen), {}, seen);
}

Value Builder::reduce(cudnnReduceTensorOp_t with, Value x, Value to) {
  const Node how = nodes_.make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  nodes_.set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  nodes_.set(how, CUDNN_ATTR_REDUCTION_OPERATOR, with);
  nodes_.finalize(how);
  const Node node = nodes_.make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  nodes_.set(node, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  nodes_.set(node, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.node);
  nodes_.set(node, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to.node);
  return done(node, to);
}

Value Builder::matmul(Value a, Value b, Value to) {
  const Node how = nodes_.make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  nodes_.set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  nodes_.finalize(how);
  const Node node = nodes_.make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  nodes_.set(node, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  nodes_.set(node, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.node);
  nodes_.set(node, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.node);
  nodes_.set(node, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to.node);
  return done(node, to);
}

Value Builder::swapped(Value x, cudnnDataType_t type) {
  Dims dims = x.dims, strides = x.strides;
  std::swap(dims[2], dims[3]);
  std::swap(strides[2], strides[3]);
  const Value to = tensor(type, dims, strides, next_++, true);
  const Node node = nodes_.make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  nodes_.set(node, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.node);
  nodes_.set(node, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to.node);
  return done(node, to);
}

/// A gradient of keys or values; heads that share keys are summed.
void Builder::matmul_of_heads(Value a, Value b, AttentionId id,
                              const CudaAttend::Strides& strides) {
  const Value to = rows(id, strides, true);
  if (a_.heads == a_.key_heads) {
    matmul(a, b, to);
    return;
  }
  const Dims all{a_.batch, a_.heads, a_.keys, a_.width};
  reduce(CUDNN_REDUCE_TENSOR_ADD, matmul(a, b, inside(all, small_)), to);
}

void Builder::forward() {
  const Value query = rows(kQuery, a_.query, false), key = rows(kKey, a_.key, true, true),
              value = rows(kValue, a_.value, true), out = rows(kOut, a_.out, false);
  const Dims each{a_.batch, a_.heads, a_.queries, 1};
  Value logits = matmul(query, key, inside(logits_));
  logits = seen_only(point(CUDNN_POINTWISE_MUL, logits, number(kScale)));
  const Value most = reduce(CUDNN_REDUCE_TENSOR_MAX, logits, inside(each));
  const Value raised = point(CUDNN_POINTWISE_EXP, point(CUDNN_POINTWISE_SUB, logits, most));
  const Value sum = reduce(CUDNN_REDUCE_TENSOR_ADD, raised, inside(each));
  point(CUDNN_POINTWISE_ADD, most, point(CUDNN_POINTWISE_LOG, sum), log_sums(kLogSum));
  const Value shares = point(CUDNN_POINTWISE_DIV, raised, sum, inside(logits_, small_));
  matmul(shares, value, out);
}

void Builder::backward() {
  const Value query = rows(kQuery, a_.query, false), key = rows(kKey, a_.key, true, true),
              value = rows(kValue, a_.value, true, true), out = rows(kOut, a_.out, false),
              grad = rows(kGrad, a_.grad, false), scale = number(kScale);
  const Dims each{a_.batch, a_.heads, a_.queries, 1};
  Value sums = point(CUDNN_POINTWISE_MUL, grad, out, inside(query.dims));
  sums = reduce(CUDNN_REDUCE_TENSOR_ADD, sums, inside(each));
  sums = point(CUDNN_POINTWISE_MUL, sums, number(kOne), log_sums(kRowSums));
  Value logits = matmul(query, key, inside(logits_));
  logits = point(CUDNN_POINTWISE_MUL, logits, scale);
  logits = point(CUDNN_POINTWISE_SUB, logits, log_sums(kLogSum));
  const Value shares = point(CUDNN_POINTWISE_EXP, seen_only(logits));
  matmul_of_heads(swapped(shares, small_), grad, kValueGrad, a_.value_grad);
  Value grads = matmul(grad, value, inside(logits_));
  grads = point(CUDNN_POINTWISE_SUB, grads, sums);
  grads = point(CUDNN_POINTWISE_MUL, grads, shares);
  grads = point(CUDNN_POINTWISE_MUL, grads, scale);
  matmul_of_heads(swapped(grads, small_), query, kKeyGrad, a_.key_grad);
  const Value keys = swapped(key, CUDNN_DATA_FLOAT);
  matmul(grads, keys, rows(kQueryGrad, a_.query_grad, false));
}

}  // namespace

Node attention_graph(Nodes& nodes, const CudaAttend& attend, cudnnHandle_t handle,
                     std::string& why) {
  Builder builder(nodes, attend);
  attend.backward ? builder.backward() : builder.forward();
  const std::vector<Node>& operations = builder.operations();
  const Node graph = nodes.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (handle != nullptr) nodes.set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
  nodes.set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operations.data(), operations.size());
  return nodes.finalize(graph, why) ? graph : Node{};
}

}  // namespace tessera::cuda
