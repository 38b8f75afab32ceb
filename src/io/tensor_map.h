// Where the tensors of a model's files lie in its parameters: the rules of a family, spelt out for
// one model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/families/family.h"
#include "tessera/session.h"

namespace tessera {

/// A dim of a part of a file's tensor: the places from `first` on are a dim of the parameter, or
/// without a name one place.
struct PartDim {
  std::string name;
  int64_t size = 1;  ///< in the tensor
  int64_t first = 0, count = 1;
};

/// The elements that a tensor of the files and a parameter share. In memory order of the tensor.
struct TensorPart {
  std::string parameter;
  /// Indices along dims of the parameter that the tensor lacks: {"layers", 3}.
  std::vector<std::pair<std::string, int64_t>> at;
  std::vector<PartDim> dims;
};

struct MappedTensor {
  std::string name;
  std::vector<int64_t> sizes;
  std::vector<TensorPart> parts;
  bool is_copy = false;
};

/// Copies stand behind all others.
struct TensorMap {
  std::vector<MappedTensor> tensors;
  std::map<std::string, Shape> parameters;
};

/// Throws for a table that does not cover every element of every parameter once: an io error if the
/// family is a file, else an internal one.
TensorMap tensor_map(const Family& family, const nn::TransformerOptions& options);

/// Calls `visit(offset, to, count)` for runs of consecutive elements of the tensor that lie in
/// `slice`, a slice of the part's parameter: `offset` in elements of the tensor, `to` the places
/// (elements from slice.data) of its `count` elements, which are valid during the call.
void visit_runs(const TensorPart& part, const Slice& slice,
                const std::function<void(int64_t offset, const int64_t* to, int64_t count)>& visit);

}  // namespace tessera
