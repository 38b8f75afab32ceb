// Looking into tensors: what a tensor is at a glance, where two values of it part, and files of
// what a run computed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/array.h"
#include "tessera/session.h"

namespace tessera {

/// Minimum, maximum, mean and L2 norm are those of the finite elements; NaN if there is none.
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

/// How far `a` is from `b`.
struct Difference {
  double relative = 0;  ///< L2(a - b) / L2(b); infinite where only b is zero or values are not
                        ///< finite in one alone
  int64_t first = -1;   ///< the first element that is farther than tolerance * rms(b), or -1
};
/// Dims and sizes agree. If `relative` is above the tolerance there is such an element.
Difference difference(const Array& a, const Array& b, double tolerance);

/// Compares the parameters and state of ranks that hold the same part: "" if they are equal to the
/// bit, else the first tensor that differs, and the ranks. By checksums of 32 bits. Collective; the
/// same text in every process.
std::string replica_difference(Session& session);

/// Writes tensors that fetch() knows to one safetensors file, whole, under their logical names, in
/// this order; it replaces a file of that name at once or not at all. Its metadata are `metadata`
/// and
///   dims     JSON: {"tensor": ["dim", ...], ...}
///   source   JSON: {"tensor": "model.cpp:41", ...}
/// read_tensor() of tessera/checkpoint.h reads a tensor with its dims. Collective: one tensor at a
/// time is fetched, and the root process writes. Throws io errors, in every process.
void dump(Session& session, const Graph& graph, const std::vector<std::string>& names,
          const std::string& path, const std::map<std::string, std::string>& metadata = {});

}  // namespace tessera
