// Inspecting tensors: summaries, the first difference of two values, and files with the results of
// a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/array.h"
#include "tessera/session.h"

namespace tessera {

/// Minimum, maximum, mean and L2 norm of the finite elements; NaN if there is none.
struct Summary {
  double min = 0, max = 0, mean = 0, l2 = 0;
  int64_t non_finite = 0;  ///< elements that are NaN or infinite
};
Summary summarize(const Array& array);
/// "float32 [batch=4, length=8]  min -1.2  max 3.4  mean 0.1  L2 5.6  non-finite 0"
std::string describe(const Array& array);
/// The logical index of element i, row-major: "[batch 1, length 7]".
std::string index_text(const std::vector<std::string>& dims, const std::vector<int64_t>& sizes,
                       int64_t i);

/// A line for each parameter: name, dims, number of elements, whether it is trained (an update
/// stores it), and the weight decay of its update. The last line has the numbers of all.
std::string parameter_table(const Graph& graph);

/// How far `a` is from `b`.
struct Difference {
  double relative = 0;  ///< L2(a - b) / L2(b); infinite if only b is zero, or if only one of the
                        ///< two has non-finite values
  int64_t first = -1;   ///< index of the first element with |a - b| > tolerance * rms(b), or -1
};
/// a and b must have the same dims and sizes. `first` is set if `relative` is above the tolerance.
Difference difference(const Array& a, const Array& b, double tolerance);

/// Compares parameters and state between ranks that hold the same part, by 32-bit checksums.
/// Returns "" if all are bit-equal, else the first tensor that differs and the ranks. Collective;
/// returns the same text in every process.
std::string replica_difference(Session& session);

/// SHA-256 of parameters and state, as hexadecimal digits. No layout changes it: of a tensor the
/// name, dtype, dims with sizes, and elements are hashed in logical order. Under strict numerics
/// (CompileOptions::strict_chunks) it is the same on every mesh.
struct StateHash {
  std::string all;                                           ///< of the hashes of all tensors
  std::vector<std::pair<std::string, std::string>> tensors;  ///< (name, hash)
};
/// Fetches one tensor at a time. Collective; the same in every process.
StateHash state_hash(Session& session);

/// Writes the named tensors (as known to fetch()) to one safetensors file: whole, in this order. It
/// replaces an existing file atomically. The file's metadata are `metadata` and
///   dims     JSON: {"tensor": ["dim", ...], ...}
///   source   JSON: {"tensor": "model.cpp:41", ...}
/// read_tensor() of tessera/checkpoint.h reads a tensor with its dims. Collective: one tensor at a
/// time is fetched, and the root process writes. Throws io errors in every process.
void dump(Session& session, const Graph& graph, const std::vector<std::string>& names,
          const std::string& path, const std::map<std::string, std::string>& metadata = {});

}  // namespace tessera
