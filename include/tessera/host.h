// The arguments of a user-defined op's host function: one rank's part of the op's index space. See
// docs/how-to/adding-an-op.md, "A host function in your own code".
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

/// One factor of the index space on this rank.
struct HostDim {
  std::string name;
  int64_t size = 1;    ///< elements on this rank, padding included
  int64_t offset = 0;  ///< global index of the first element on this rank
  int64_t valid = 1;   ///< the first `valid` elements are not padding; 0 .. size
  int64_t extent = 1;  ///< global size, without padding
};

/// An operand or result. Element (i0, i1, ...) of the index space is at data + sum i_d * strides[d]
/// elements; the stride is 0 along dims that it lacks. Operands must not be written.
struct HostOperand {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::vector<int64_t> strides;  ///< one for each of HostCall::dims

  /// The element at `index` of the index space. T must match dtype: float, double, int32_t,
  /// int64_t, uint8_t (also for bool), or uint16_t for the bits of bfloat16 and float16.
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
  std::vector<HostDim> dims;     ///< the factors in the order of Op::factors; by name: the results'
                                 ///< dims, then further dims of the operands
  std::vector<HostOperand> in, out;

  /// The index of the dim called `name`. Throws a usage error if the op has none.
  int find(std::string_view name) const;
  /// Calls visit(index) for every element of this rank's part, padding included, the last dim
  /// fastest. The index of dim `except`, if given, stays 0.
  template <class Visit>
  void each(Visit visit, int except = -1) const;
};

/// Computes all elements of the results' slices from the operands' slices: a reduced factor is
/// combined only over the part on this rank, a lookup handles only rows on this rank and gives zero
/// for the others. Padding of operands holds what Op declares. The content of the results' padding
/// matters only for an op that is linear in all operands: zeros must give zeros. Called on every
/// rank, at the same time from several threads, so it may write nothing but the results. An Error
/// is reported with the node's name and line, any other exception as a device error.
using HostFunction = void (*)(const HostCall& call);

constexpr int kMostHostDims = 24;  ///< max dims of an index space with a host function

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
