// One row per configuration of an op. From each row the tests derive: its value against a
// reference, its gradient against differences, and that no layout changes either.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/reference.h"
#include "tessera/graph.h"
#include "tessera/ops.h"

namespace tessera::test {

/// An operand of a row. Its elements are uniform in [lo, hi), or whole numbers from lo to hi.
struct CaseInput {
  std::string name;
  Shape shape;
  double lo = -1, hi = 1;
  DType dtype = DType::float32;  ///< float32 stands for the floating type of the run
  bool whole_numbers = false;
  bool differentiable = true;
  bool stored = false;  ///< a parameter instead of an input
};

struct OpCase {
  using Tensors = std::vector<Tensor>;
  using Build = std::function<Tensors(Graph&, const Tensors& in)>;
  using Expect = std::function<Whole(const std::vector<Whole>& in)>;

  std::string name;
  std::vector<CaseInput> in;
  std::vector<std::string> splits;  ///< dims that layouts may split
  Build build;                      ///< parameters that it makes are operands too, after `in`
  Expect expect = {};  ///< the first result by a formula of its own; else only the graph's nodes
                       ///< are interpreted
  double tolerance32 = 1e-5, tolerance64 = 1e-11;
  bool random = false;       ///< no reference: only the layouts are compared
  bool reads_order = false;  ///< the result depends on the order of the dims of operands
  bool has_gradient = true;  ///< differences tell the gradient: smooth where the operands lie
  std::map<std::string, int64_t> sizes = {};     ///< of bounded dims
  std::map<std::string, Meaning> meanings = {};  ///< of ops that Reference does not know, by name
};

/// All rows, in the order of the files op_cases_*.cpp.
const std::vector<OpCase>& op_cases();

std::vector<OpCase> pointwise_cases();
std::vector<OpCase> product_cases();
std::vector<OpCase> composite_cases();
std::vector<OpCase> indexed_cases();
std::vector<OpCase> shape_cases();
std::vector<OpCase> ordered_cases();
std::vector<OpCase> attention_cases();
std::vector<OpCase> variant_cases();
std::vector<OpCase> layer_cases();
std::vector<OpCase> routing_cases();
std::vector<OpCase> window_cases();
std::vector<OpCase> loop_cases();

/// Operands.
inline CaseInput real(std::string name, Shape shape, double lo = -1, double hi = 1) {
  return {std::move(name), std::move(shape), lo, hi};
}
inline CaseInput positive(std::string name, Shape shape) {
  return {std::move(name), std::move(shape), 0.3, 2};
}
inline CaseInput integers(std::string name, Shape shape, int lo, int hi,
                          DType dtype = DType::int32) {
  return {std::move(name),   std::move(shape), double(lo), double(hi), dtype, true,
          is_floating(dtype)};
}
inline CaseInput flags(std::string name, Shape shape) {
  return {std::move(name), std::move(shape), 0, 1, DType::bool_, true, false};
}
inline CaseInput parameter(CaseInput in) {
  in.stored = true;
  return in;
}
inline CaseInput constant_of(CaseInput in) {
  in.differentiable = false;
  return in;
}

}  // namespace tessera::test
