// What a graph means: a slow interpreter in float64 that shares nothing with lowering and kernels.
// It walks the nodes and evaluates each op by its name with loops over named indices; a composite
// is its body. Tests compare everything with it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/array.h"
#include "tessera/attrs.h"
#include "tessera/graph.h"

namespace tessera::test {

/// A whole tensor, row-major. Integers and bools are held as doubles.
struct Whole {
  std::vector<std::string> dims;
  std::vector<int64_t> sizes;
  std::vector<double> data;

  Whole() = default;
  Whole(std::vector<std::string> dims, std::vector<int64_t> sizes, double fill = 0);
  int64_t elements() const { return static_cast<int64_t>(data.size()); }
  /// Position of a dim, or -1.
  int find(const std::string& dim) const;
  /// The steps of `data` along the given dims; 0 along those it lacks.
  std::vector<int64_t> strides_over(const std::vector<std::string>& names) const;
};

Whole whole_of(const Array& array);
/// Converts element by element (as cast does).
Array array_of(const Whole& whole, DType dtype);
/// A float64 number as `dtype` holds it.
double as_dtype(double x, DType dtype);

/// Calls visit(index) for every index below `sizes`, last fastest.
template <class Visit>
void each_index(const std::vector<int64_t>& sizes, Visit visit) {
  std::vector<int64_t> index(sizes.size(), 0);
  for (int64_t size : sizes) {
    if (size == 0) return;
  }
  while (true) {
    visit(static_cast<const std::vector<int64_t>&>(index));
    size_t d = sizes.size();
    while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}
int64_t dot(const std::vector<int64_t>& index, const std::vector<int64_t>& strides);

/// The sum over all dims that `out` lacks of the products of the operands. `out` gives dims and
/// sizes.
Whole brute_einsum(const std::vector<Whole>& operands, Whole out);

/// What an op with one result computes.
using Meaning = std::function<Whole(const Attrs& attrs, const std::vector<Whole>& in)>;

class Reference {
 public:
  /// `sizes`: the run's sizes of bounded dims. `tie`: the relative distance below which rounding
  /// could decide a comparison.
  explicit Reference(const Graph& graph, std::map<std::string, int64_t> sizes = {},
                     double tie = 1e-9);

  /// Gives an input or stored tensor (or any other) its value.
  void set(const Tensor& tensor, Whole value) { known_[tensor.id()] = std::move(value); }
  /// Says what the op called `name` computes.
  void define(const std::string& name, Meaning meaning) { meanings_[name] = std::move(meaning); }
  /// Throws an internal error for an op it does not know, and std::runtime_error for a source
  /// without a value.
  const Whole& value(const Tensor& tensor);
  const Whole& value(int id);
  /// A comparison was so close that rounding could have decided it the other way.
  bool near_tie() const { return near_tie_; }

 private:
  Whole empty(const Shape& shape, double fill = 0) const;
  void evaluate(const Node& node);
  void evaluate_body(const Node& node, const std::vector<Whole>& in);
  Whole source(const Node& node, const Shape& shape);
  Whole pointwise(const Node& node, const std::vector<Whole>& in, const Value& out);
  static void reshape(const Whole& x, const Shape& from, Whole& result, const Shape& to);
  Whole reduce(const Node& node, const Whole& x, const Value& out) const;
  Whole gather(const Node& node, const Whole& table, const Whole& indices, const Value& out) const;
  Whole scatter(const Node& node, const Whole& indices, const Whole& updates,
                const Value& out) const;

  void loop(const Node& node);
  Whole slice(const Node& node, const Whole& whole);
  void forget_iteration(int loop);
  void window(const Node& node, const Whole& x, Whole& result) const;
  void conv(const Node& node, const Whole& a, const Whole& b, Whole& result) const;
  void cumsum(const Node& node, const Whole& x, Whole& result) const;
  void linear_scan(const Node& node, const Whole& x, const Whole& decay, Whole& result) const;
  void largest(const Node& node, const Whole& x, int64_t k, Whole& values, Whole& indices);
  /// Whether rounding could decide which of the two is larger. Equal ones are exact, unless
  /// numbers of 16 bits are among what made them.
  bool is_close(double a, double b) const;

  const Graph& graph_;
  std::map<std::string, int64_t> sizes_;
  double tie_;
  std::map<int, Whole> known_;
  std::map<std::string, Meaning> meanings_;
  std::map<int, int64_t> iteration_of_;  ///< of the loops that are run
  bool near_tie_ = false;
};

/// ||a - b|| / max(||b||, floor) in the Euclidean norm; infinite where only one of two elements is
/// NaN, or shapes differ.
double relative_error(const Whole& a, const Whole& b, double floor = 1e-30);

}  // namespace tessera::test
