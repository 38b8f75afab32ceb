// Tests a user-defined op as Tessera tests its own: its values, its gradients, and that neither
// depends on the layout. Needs no test framework; runs on thread ranks of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/graph.h"

namespace tessera::testing {

/// An operand. Its elements are uniform in [lo, hi), or integers from lo to hi.
struct OpInput {
  std::string name = {};
  Shape shape;  ///< uneven sizes test padding: 5 or 7 rather than 4 or 8
  double lo = -1, hi = 1;
  DType dtype = DType::float32;  ///< a floating type is replaced by each of OpTest::types
  bool whole_numbers = false;
  bool differentiable = true;  ///< false: no gradient is tested; integers never have one
};

struct OpTest {
  using Tensors = std::vector<Tensor>;
  using Values = std::vector<std::vector<double>>;  ///< per tensor, row-major

  std::string name = {};
  std::vector<OpInput> in = {};
  /// Adds the op (or several) to a graph and returns its results.
  std::function<Tensors(Graph&, const Tensors& in)> build = {};
  /// Computes the expected results in float64 from the operands, which are already rounded to their
  /// type. Empty: results in the different types are only compared with each other.
  std::function<Values(const Values& in)> expect = {};
  /// The floating types that the op supports. Gradients and layouts are tested in float64 if it is
  /// listed, else in the first type.
  std::vector<DType> types = {DType::float32, DType::float64};
  std::map<std::string, int64_t> sizes = {};  ///< run-time sizes of bounded dims; else the bound
  double tolerance32 = 1e-5;                  ///< relative to the largest element
  double tolerance64 = 1e-11;
};

struct OpTestOptions {
  std::vector<std::string> meshes = {"x:1", "x:2", "x:3", "x:2;y:2", "x:2;y:2;z:2"};
  size_t most_layouts = 200;  ///< if there are more, this many are sampled
  uint64_t seed = 1;          ///< of the operands and of that sample
};

/// Number of comparisons, and one line per failure.
struct OpReport {
  std::string name = {};
  int values = 0;     ///< results compared with `expect`, or between types
  int gradients = 0;  ///< operands whose gradient was compared with finite differences
  int layouts = 0;    ///< runs under a layout, which compare values and gradients
  std::vector<std::string> failures;

  bool ok() const { return failures.empty(); }
  /// "interpolate: 2 values, 2 gradients, 87 layouts: ok", or the failures line by line.
  std::string to_string() const;
};

/// Tests the op: (1) its results on one rank, in each type, against `expect`; (2) the gradients of
/// a weighted sum of its floating results against central differences; (3) results and gradients
/// under every legal layout of the meshes against one rank. If the op throws, that is reported as a
/// failure. Throws usage errors for mistakes in the test itself: no operand or result, no floating
/// type, a mesh that cannot be parsed.
OpReport test_op(const OpTest& test, const OpTestOptions& options = {});

}  // namespace tessera::testing
