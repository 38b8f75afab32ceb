#include "gpu/rules/cudnn/operations.h"

#include <algorithm>
#include <set>

#include "gpu/rules/cudnn/status.h"

namespace tessera::test::rules::cudnn {

namespace {

constexpr size_t kMostDims = 8, kDims = 4;  ///< of a tensor, and of those that engines have

int inputs_of(int pointwise_mode) {
  switch (pointwise_mode) {
    case CUDNN_POINTWISE_BINARY_SELECT:
      return 3;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE:
      return 2;
    default:
      return 1;
  }
}

/// True if every dim of `a` is a multiple of that of `b`.
bool divides(const std::vector<int64_t>& a, const std::vector<int64_t>& b, size_t dims) {
  for (size_t i = 0; i < dims; ++i) {
    if (a[i] % b[i] != 0) return false;
  }
  return true;
}

cudnnStatus_t bad(const std::string& why) { return told(CUDNN_STATUS_BAD_PARAM, why); }

cudnnStatus_t check_pointwise(const Operation& op) {
  if (op.in.size() < static_cast<size_t>(inputs_of(op.mode)))
    return bad("a pointwise operation lacks an operand");
  const auto rank = static_cast<int64_t>(op.in[0].dims.size());
  if (op.mode == CUDNN_POINTWISE_GEN_INDEX && (op.axis < 0 || op.axis >= rank))
    return bad("an index of no axis");
  return op.out[0].dims.size() == op.in[0].dims.size() ? CUDNN_STATUS_SUCCESS
                                                       : bad("x and y have other ranks");
}

cudnnStatus_t check_reduction(const Operation& op) {
  const auto &x = op.in[0].dims, &y = op.out[0].dims;
  return x.size() == y.size() && divides(x, y, x.size())
             ? CUDNN_STATUS_SUCCESS
             : bad("the dims of x are no multiples of those of y");
}

cudnnStatus_t check_matmul(const Operation& op) {
  const auto &a = op.in[0].dims, &b = op.in[1].dims, &c = op.out[0].dims;
  const size_t rank = c.size(), m = rank - 2, n = rank - 1;
  if (rank < 2 || a.size() != rank || b.size() != rank) return bad("matrices of other ranks");
  if (a[n] != b[m] || a[m] != c[m] || b[n] != c[n]) return bad("matrices that do not fit");
  return divides(c, a, m) && divides(c, b, m) ? CUDNN_STATUS_SUCCESS : bad("other batches");
}

cudnnStatus_t check_reshape(const Operation& op) {
  const auto count = [](const TensorInfo& t) {
    int64_t product = 1;
    for (const int64_t size : t.dims) product *= size;
    return product;
  };
  return count(op.in[0]) == count(op.out[0]) ? CUDNN_STATUS_SUCCESS
                                             : bad("a reshape to another number of elements");
}

}  // namespace

int64_t bytes_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_BOOLEAN:
      return 1;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_INT32:
    case CUDNN_DATA_FLOAT:
      return 4;
    default:
      return 0;  // nobody asks for it
  }
}

bool is_operation(cudnnBackendDescriptorType_t type) {
  return type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

TensorInfo::TensorInfo(const Descriptor& d)
    : dims(d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
      strides(d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
      id(d.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0)),
      alignment(d.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0)),
      type(d.get(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT)),
      is_virtual(d.get(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)),
      is_number(d.get(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)) {}

int64_t TensorInfo::span() const {
  int64_t last = 0;
  for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return last + 1;
}

Operation::Operation(const Descriptor& d) : type(d.type) {
  const auto add = [&](int name) {
    if (d.part(name) != nullptr) in.emplace_back(*d.part(name));
  };
  switch (type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Descriptor& how = *d.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      mode = how.get(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
      axis = how.get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
      add(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      add(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      add(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
      out.emplace_back(*d.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      mode = d.part(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                 ->get(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_REDUCE_TENSOR_ADD);
      add(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
      out.emplace_back(*d.part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
      break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      add(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
      add(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
      out.emplace_back(*d.part(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
      break;
    default:
      add(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
      out.emplace_back(*d.part(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
  }
}

cudnnStatus_t check_tensor(const Descriptor& d) {
  const TensorInfo t(d);
  if (t.dims.size() != t.strides.size() || t.dims.size() > kMostDims)
    return bad("as many strides as dims are needed, at most 8");
  if (std::any_of(t.dims.begin(), t.dims.end(), [](int64_t size) { return size <= 0; }))
    return bad("a dim is empty");
  if (bytes_of(t.type) == 0) return told(CUDNN_STATUS_NOT_SUPPORTED, "the type of a tensor");
  return t.alignment > 0 && t.alignment % bytes_of(t.type) == 0
             ? CUDNN_STATUS_SUCCESS
             : bad("the alignment is no multiple of an element");
}

cudnnStatus_t check_operation(const Descriptor& d) {
  const Operation op(d);
  switch (op.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return check_pointwise(op);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return check_reduction(op);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return check_matmul(op);
    default:
      return check_reshape(op);
  }
}

/// Descriptors that an operation was given before they were finalized are found here.
cudnnStatus_t check_graph(const Descriptor& d) {
  std::set<int64_t> written;
  for (const auto& operation : d.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    for (const auto& [name, parts] : operation->parts) {
      if (!parts.front()->is_final) return bad("a part of an operation is not finalized");
    }
    const Operation op(*operation);
    if (!written.insert(op.out[0].id).second) return bad("two operations write the same");
  }
  return CUDNN_STATUS_SUCCESS;
}

std::vector<Operation> read_graph(const Descriptor& graph) {
  std::vector<Operation> left, sorted;
  std::set<int64_t> missing;
  for (const auto& operation : graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    left.emplace_back(*operation);
    missing.insert(left.back().out[0].id);
  }
  while (!left.empty()) {
    const auto next = std::find_if(left.begin(), left.end(), [&](const Operation& op) {
      return std::none_of(op.in.begin(), op.in.end(),
                          [&](const TensorInfo& t) { return missing.count(t.id) != 0; });
    });
    const auto taken = next == left.end() ? left.begin() : next;  // a cycle has no engine
    missing.erase(taken->out[0].id);
    sorted.push_back(std::move(*taken));
    left.erase(taken);
  }
  return sorted;
}

std::string why_not(const std::vector<Operation>& graph) {
  std::map<int64_t, TensorInfo> known;  ///< memory, and what was computed
  for (const Operation& op : graph) {
    const std::vector<int64_t>& to = op.out[0].dims;
    if (to.size() != kDims) return "tensors of other than 4 dims";
    for (const TensorInfo& t : op.in) {
      const auto found = known.find(t.id);
      if (found == known.end() && t.is_virtual) return "a virtual tensor that is never computed";
      if (found != known.end() && (found->second.dims != t.dims || found->second.type != t.type))
        return "two tensors with one id";
      known.emplace(t.id, t);
    }
    if (op.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
      for (size_t k = 0; k < op.in.size(); ++k) {
        const std::vector<int64_t>& from = op.in[k].dims;
        for (size_t i = 0; i < from.size(); ++i) {
          if (from[i] != to[i] && from[i] != 1) return "operands that do not broadcast";
        }
        if (k == 2 && op.in[k].type != CUDNN_DATA_BOOLEAN) return "a choice that is no boolean";
      }
    }
    if (op.type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR &&
        op.in[0].span() != op.out[0].span())
      return "a reshape to other memory";
    known.insert_or_assign(op.out[0].id, op.out[0]);
  }
  return "";
}

}  // namespace tessera::test::rules::cudnn
