// A tensor is an array of float32 in the tensor's own strides, so that a reshape is the same array.
// Where an operand has fewer heads than the result, or the result of a reduction than its operand,
// consecutive ones share.
#include "gpu/rules/cudnn/values.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/float16.h"

namespace tessera::test::rules::cudnn {

namespace {

using Index = std::array<int64_t, 4>;
using Array = std::vector<float>;

template <class F>
void for_all(const std::vector<int64_t>& dims, F f) {
  Index at{};
  for (at[0] = 0; at[0] < dims[0]; ++at[0]) {
    for (at[1] = 0; at[1] < dims[1]; ++at[1]) {
      for (at[2] = 0; at[2] < dims[2]; ++at[2]) {
        for (at[3] = 0; at[3] < dims[3]; ++at[3]) f(at);
      }
    }
  }
}

/// Where the element of `t` is that belongs to index `at` of a tensor with these dims.
size_t place(const TensorInfo& t, const Index& at, const std::vector<int64_t>& dims) {
  int64_t sum = 0;
  for (size_t i = 0; i < at.size(); ++i)
    sum += (dims[i] == t.dims[i] ? at[i] : at[i] * t.dims[i] / dims[i]) * t.strides[i];
  return static_cast<size_t>(sum);
}

float load(const void* from, size_t at, cudnnDataType_t type) {
  if (type == CUDNN_DATA_BFLOAT16) return to_float(static_cast<const BFloat16*>(from)[at]);
  if (type == CUDNN_DATA_HALF) return to_float(static_cast<const Float16*>(from)[at]);
  return static_cast<const float*>(from)[at];
}
void store(void* to, size_t at, cudnnDataType_t type, float value) {
  if (type == CUDNN_DATA_BFLOAT16)
    static_cast<BFloat16*>(to)[at] = to_bfloat16(value);
  else if (type == CUDNN_DATA_HALF)
    static_cast<Float16*>(to)[at] = to_float16(value);
  else
    static_cast<float*>(to)[at] = value;
}
float rounded(float value, cudnnDataType_t type) {
  return type == CUDNN_DATA_BFLOAT16 ? round_to_bfloat16(value)
         : type == CUDNN_DATA_HALF   ? to_float(to_float16(value))
                                     : value;
}

float pointwise(int mode, float x, float b) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b ? 1 : 0;
    default:
      return std::numeric_limits<float>::quiet_NaN();  // nobody asks for it
  }
}

class Computation {
 public:
  Computation(const Places& places, bool is_finite) : places_(places), is_finite_(is_finite) {}

  void run(const Operation& op) {
    for (const TensorInfo& t : op.in) read(t);
    const TensorInfo& to = op.out[0];
    Array& result = arrays_[to.id];
    result.assign(static_cast<size_t>(to.span()), 0);
    switch (op.type) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        run_pointwise(op, result);
        break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        run_reduction(op, result);
        break;
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        run_matmul(op, result);
        break;
      default:
        result = of(op.in[0]);
    }
    for (float& value : result) value = rounded(value, to.type);
    if (!to.is_in_memory()) return;
    for_all(to.dims, [&](const Index& at) {
      const size_t k = place(to, at, to.dims);
      store(places_.memory.at(to.id), k, to.type, result[k]);
    });
  }

 private:
  const Array& of(const TensorInfo& t) const { return arrays_.at(t.id); }

  void read(const TensorInfo& t) {
    Array& array = arrays_[t.id];
    if (!array.empty()) return;
    array.resize(static_cast<size_t>(t.span()));
    if (t.is_number) {
      array[0] = places_.numbers.at(t.id);
      return;
    }
    for_all(t.dims, [&](const Index& at) {
      const size_t k = place(t, at, t.dims);
      array[k] = load(places_.memory.at(t.id), k, t.type);
    });
  }

  void run_pointwise(const Operation& op, Array& result) const {
    const TensorInfo& to = op.out[0];
    for_all(to.dims, [&](const Index& at) {
      const auto get = [&](size_t k) { return of(op.in[k])[place(op.in[k], at, to.dims)]; };
      float& y = result[place(to, at, to.dims)];
      if (op.mode == CUDNN_POINTWISE_GEN_INDEX) {
        y = static_cast<float>(at[static_cast<size_t>(op.axis)]);
      } else if (op.mode == CUDNN_POINTWISE_BINARY_SELECT) {
        y = get(2) != 0 ? get(0) : get(1);
        if (is_finite_ && std::isinf(y)) y = std::numeric_limits<float>::quiet_NaN();
      } else {
        y = pointwise(op.mode, get(0), op.in.size() > 1 ? get(1) : 0);
      }
    });
  }

  void run_reduction(const Operation& op, Array& result) const {
    const TensorInfo &from = op.in[0], &to = op.out[0];
    const bool is_max = op.mode == CUDNN_REDUCE_TENSOR_MAX;
    if (is_max) result.assign(result.size(), -std::numeric_limits<float>::infinity());
    for_all(from.dims, [&](const Index& at) {
      float& y = result[place(to, at, from.dims)];
      const float x = of(from)[place(from, at, from.dims)];
      y = !is_max ? y + x : x > y || std::isnan(x) ? x : y;
    });
  }

  void run_matmul(const Operation& op, Array& result) const {
    const TensorInfo &a = op.in[0], &b = op.in[1], &to = op.out[0];
    const int64_t inner = a.dims[3];
    const Array &left = of(a), &right = of(b);
    std::vector<int64_t> dims_a = to.dims, dims_b = to.dims;
    dims_a[3] = dims_b[2] = inner;
    for_all(to.dims, [&](const Index& at) {
      size_t i = place(a, {at[0], at[1], at[2], 0}, dims_a),
             j = place(b, {at[0], at[1], 0, at[3]}, dims_b);
      float sum = 0;
      for (int64_t k = 0; k < inner; ++k) {
        sum += left[i] * right[j];
        i += static_cast<size_t>(a.strides[3]);
        j += static_cast<size_t>(b.strides[2]);
      }
      result[place(to, at, to.dims)] = sum;
    });
  }

  const Places& places_;
  const bool is_finite_;
  std::map<int64_t, Array> arrays_;
};

}  // namespace

void compute(const std::vector<Operation>& graph, const Places& places, bool is_finite) {
  Computation computation(places, is_finite);
  for (const Operation& op : graph) computation.run(op);
}

}  // namespace tessera::test::rules::cudnn
