// Between whole tensors and the slices of ranks.
#pragma once

#include "runtime/executor.h"
#include "tessera/session.h"

namespace tessera {

/// The part of a port on the rank of an executor.
Slice slice_of(const Program& program, const Port& port, const Executor& executor,
               const std::vector<int64_t>& scalars);
/// An empty whole tensor for a port, with the actual sizes of bounded dims.
Array array_for(const Port& port, const std::vector<int64_t>& scalars);
/// The same without elements.
Array shape_for(const Port& port, const std::vector<int64_t>& scalars);
/// Element i of an array of `dtype` as a double.
double number_at(const void* data, DType dtype, int64_t i);
/// Throws a usage error unless `whole` has the dtype and sizes of the port.
void require_matches(const Port& port, const std::vector<int64_t>& scalars, const Array& whole);
void require_matches(const Port& port, const std::vector<int64_t>& scalars, const ArrayView& whole);
/// Whether the dims of `whole` are `dims`, or nameless: it can be copied as it lies.
inline bool lies_as(const std::vector<std::string>& dims, const Array& whole) {
  return whole.dims.empty() || whole.dims == dims;
}
/// `whole`, which does not lie so, with its dims in the order `dims`. Throws a usage error if the
/// names are others.
ArrayView by_name(const std::string& name, const std::vector<std::string>& dims,
                  const Array& whole);
/// `whole`; or, if it shares memory with one of `slices`, which are to be written, `copy` of it.
ArrayView apart_from(const std::vector<Slice>& slices, const ArrayView& whole, Array& copy);
void copy_in(const Array& whole, const Slice& slice);
void copy_in(const ArrayView& whole, const Slice& slice);
void copy_out(const Slice& slice, Array& whole);
/// Collective: collects the slices of all ranks into `whole` on each. mine: this rank's, in memory
/// of the host.
void gather_whole(const Program& program, const Port& port, Executor& executor, const void* mine,
                  const std::vector<int64_t>& scalars, Array& whole);

}  // namespace tessera
