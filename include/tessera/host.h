// What the host function of an op of a user's own is given: one rank's part of the op's index
// space. See docs/how-to/adding-an-op.md, "A host function in your own code".
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/attrs.h"
#include "tessera/dtype.h"

namespace tessera {

/// A factor of the index space, as this rank has it.
struct HostDim {
  std::string name;
  int64_t size = 1;    ///< elements here, padding included
  int64_t offset = 0;  ///< index in the whole of the first element here
  int64_t valid = 1;   ///< the first `valid` elements here are not padding; 0 .. size
  int64_t extent = 1;  ///< of the whole, without padding
};

/// An operand or a result: element (i0, i1, ...) of the index space is at data + sum i_d *
/// strides[d] elements; the stride is 0 along the dims that it lacks. Operands are not written.
struct HostOperand {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::vector<int64_t> strides;  ///< one for each HostCall::dims

  /// The element at `index` of the index space. T is what `dtype` says: float, double, int32_t,
  /// int64_t, uint8_t (also for bool), and the 16 bits as uint16_t for bfloat16 and float16.
  template <class T>
  T& at(std::span<const int64_t> index) const {
    int64_t position = 0;
    for (size_t d = 0; d < index.size(); ++d) position += index[d] * strides[d];
    return static_cast<T*>(data)[position];
  }
};

struct HostCall {
  std::string_view op;
  const Attrs* attrs = nullptr;  ///< of the node
  std::vector<HostDim> dims;     ///< the factors, in the order of Op::factors; by name: the dims of
                                 ///< the results, then the further ones of the operands
  std::vector<HostOperand> in, out;

  /// The position of the dim called `name`. Throws a usage error if the op has none.
  int find(std::string_view name) const;
  /// Calls visit(index) for every element of the index space here, padding included, the last dim
  /// fastest. The index of dim `except`, if given, stays 0.
  template <class Visit>
  void each(Visit visit, int except = -1) const;
};

/// Computes every element of the results' slices from the operands' slices, each in its own layout:
/// a reduced factor only over the part that is here, a lookup only for the rows that are here (zero
/// for the others). Padding of an operand holds what Op says; what the function leaves in the
/// padding of a result matters only to an op that is linear in all its operands: zeros give zeros.
/// Called on every rank, at the same time from several threads: it changes nothing but the results.
/// An Error is reported with the node's name and line, another exception as a device error.
using HostFunction = void (*)(const HostCall& call);

constexpr int kMostHostDims = 24;  ///< of an index space with a host function

template <class Visit>
void HostCall::each(Visit visit, int except) const {
  std::array<int64_t, kMostHostDims> index{};
  for (const HostDim& d : dims) {
    if (d.size == 0) return;
  }
  while (true) {
    visit(std::span<const int64_t>(index.data(), dims.size()));
    size_t d = dims.size();
    while (d > 0 && (static_cast<int>(d) - 1 == except || ++index[d - 1] == dims[d - 1].size))
      index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace tessera
