// One node as its rule sees it. A rule runs twice. The first time there are only axes: it says
// which of them are one, and which its results have. Then atoms have names, and the same rule runs
// again with tensors: it says of which ops of Tessera the results are made. So what an op says of
// dims and what it becomes stand side by side (aten_*.cpp).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pytorch/atoms.h"
#include "pytorch/program.h"
#include "tessera/array.h"
#include "tessera/ops.h"

namespace tessera::pytorch {

class Import;

/// A value of the program.
struct Value {
  AxisList axes;
  DType dtype = DType::float32;
  bool is_constant = false;  ///< depends on no input, parameter or random number
  /// The second time: with the dims of `axes`, in any order. Dims along which all elements are
  /// equal may be missing.
  Tensor tensor = {};
  std::shared_ptr<const Array> array = {};  ///< of a constant, once it is known
  std::optional<double> number = {};        ///< of a number that is an argument
  bool is_complex = false;
  Tensor imaginary = {};  ///< of a complex value, whose `tensor` is the real part
};

/// Operands whose dims have one name where they are one.
struct Joined {
  std::vector<Tensor> x;                 ///< an empty one for an operand that is not there
  std::map<int, std::vector<Dim>> dims;  ///< by label
  std::vector<Dim> out;                  ///< of the result
  const std::vector<Dim>& of(char label) const { return dims.at(label); }
};

class Call {
 public:
  /// `imaginary`: complex operands of which the rule sees the imaginary part, not the real one, as
  /// "self" or "tensors[1]".
  Call(Import& import, const Node& node, std::set<std::string> imaginary = {})
      : import_(import), node_(node), imaginary_(std::move(imaginary)) {}

  const Node& node() const { return node_; }
  /// Whether there are tensors: the second time.
  bool builds() const;
  Graph& graph() const;
  /// The error "aten.linear.default in b.0.attn (model.py:12) ...", unsupported.
  [[noreturn]] void refuse(const std::string& why) const;

  // ------------------------------------------------------------------------- arguments, by name
  /// Tensor or number; refuses another argument.
  Value value(const std::string& arg) const;
  /// Nothing for None and for an argument that is not given.
  std::optional<Value> find(const std::string& arg) const;
  std::vector<Value> values(const std::string& arg) const;  ///< a list of tensors
  Value of(const std::string& name) const;                  ///< a value of the graph
  int64_t whole(const std::string& arg, std::optional<int64_t> fallback = {}) const;
  double number(const std::string& arg, std::optional<double> fallback = {}) const;
  bool flag(const std::string& arg, bool fallback) const;
  std::string text(const std::string& arg, const std::string& fallback) const;
  /// Whole numbers, one or several.
  std::vector<int64_t> list(const std::string& arg,
                            std::optional<std::vector<int64_t>> fallback = {}) const;
  bool is_given(const std::string& arg) const;
  /// The axis that an argument counts, from the end if it is negative.
  size_t axis(const std::string& arg, size_t rank, std::optional<int64_t> fallback = {}) const;
  /// Sizes and dtype of result `i`.
  const TensorMeta& meta(size_t i = 0) const;
  DType dtype(size_t i = 0) const;
  size_t results() const;

  // -------------------------------------------------------------------------------------- axes
  const Atoms& atoms() const;
  Axis expand(const Axis& axis) const;
  AxisList expand(const AxisList& axes) const;
  int64_t size(const Axis& axis) const;
  std::vector<int64_t> sizes(const Value& x) const;
  /// A new axis, whose uses differ from those of the axes that it will stand beside.
  Axis fresh(int64_t size, const AxisList& beside = {});
  /// Both times: whether the axis has that boundary now.
  bool cut(const Axis& axis, int64_t inner);
  /// What was asked the first time: later cuts would make another answer.
  bool once(bool answer);
  /// Says that they are one; refuses axes of other sizes.
  void unify(const Axis& a, const Axis& b);
  /// A name that the axis would have: of the part of a model that it plays.
  void role(const Axis& axis, const std::string& name, int weight);
  /// Whether an argument is constant positions: 0, 1, 2, ... along its last axis, or a part of
  /// them.
  bool counts_up(const std::string& arg) const;
  /// A product over `in` that gives `out`: what a layer's width and its hidden width are known by.
  void projection(const Axis& in, const Axis& out);
  /// The number of equal parts that the slices of a value along an axis are, 0 if they are not:
  /// blocks, or with `strided` every n-th element.
  int64_t tiles(const std::string& arg, size_t axis, bool& strided) const;

  // ------------------------------------------------------------------------------------ results
  /// The axes with copies so that no use stands twice.
  AxisList distinct(AxisList axes) const;
  /// The same elements under other axes.
  Value moved(const Value& x, AxisList axes) const;
  /// A result that is computed: its axes, and the second time its tensor.
  Value made(AxisList axes, const std::function<Tensor()>& build);
  Value result(AxisList axes, Tensor tensor) const;
  /// "...i,oi,o->...o": axes with one letter are one, those that only operands have are contracted.
  /// `...` are leading axes, as many as there are. Empty operands are skipped.
  Value joined(const std::string& spec, const std::vector<std::optional<Value>>& operands,
               const std::function<Tensor(const Joined&)>& build);
  /// Operands as broadcasting has them, cast to `dtype` if it is given.
  Value pointwise(const std::vector<Value>& operands, std::optional<DType> dtype,
                  const std::function<Tensor(const std::vector<Tensor>&)>& build);

  // ------------------------------------------------------------------- tensors, the second time
  Dim dim(const Use& use) const;
  std::vector<Dim> dims(const Axis& axis) const;
  std::vector<Dim> dims(const AxisList& axes) const;
  /// x with all dims of its axes, in their order.
  Tensor full(const Value& x) const;
  /// The same under other axes of the same atoms.
  Tensor full(const Value& x, const AxisList& axes) const;
  /// The index along an axis, int32 with its dims.
  Tensor positions(const Axis& axis) const;
  /// x, whose dims may be missing, with all of `dims`.
  static Tensor having(Tensor x, const std::vector<Dim>& dims);
  /// A tensor that has one dim for each of `axes`, in order, as one with those of the axes.
  Tensor with_axes(Tensor x, const AxisList& axes) const;
  Tensor constant(double value, DType dtype) const;
  Tensor cast(const Value& x, DType dtype) const;
  /// Dropout, batch norm: false if the model is built for evaluation.
  bool trains() const;
  /// The operand `arg` has another value from now on.
  void overwrite(const std::string& arg, const Value& value);

 private:
  Value part(Value x, const std::string& arg) const;

  Import& import_;
  const Node& node_;
  std::set<std::string> imaginary_;
  int made_axes_ = 0, answers_ = 0;
};

using Rule = std::vector<Value> (*)(Call&);
struct Row {
  const char* overloads;  ///< of ATen, separated by spaces: "add.Tensor add.Scalar"
  Rule rule;
};
/// The rule of "add.Tensor" or, for one that writes its operand, of "add_.Tensor". Null if none.
Rule find_rule(const std::string& overload);

/// The tensor of `base` in which the view that `call` takes of it, as the op `of` does, is `value`.
/// Empty the first time.
Tensor written_view(Call& call, const Value& base, const Value& value, const std::string& of);
/// The index along the product of dims, int32.
Tensor positions(Graph& graph, const std::vector<Dim>& dims);
/// Dims `from` of x, in this order, as one.
Tensor merge(Tensor x, const std::vector<Dim>& from, const Dim& to);
/// The inverse.
Tensor unmerge(Tensor x, const Dim& from, const std::vector<Dim>& to);
/// Element `index` along a dim, without it.
Tensor pick(Tensor x, const std::string& dim, int64_t index);
/// Renames dims at once, also a to b and b to a.
Tensor renamed(Tensor x, const std::vector<std::pair<std::string, std::string>>& names);
/// Of `dims`, those that x has.
std::vector<Dim> present(const Tensor& x, const std::vector<Dim>& dims);
Shape shape_of(const std::vector<Dim>& dims);
/// The dim that `dims` become in merge(); of none it is `unit`.
Dim merged(const std::vector<Dim>& dims, const char* unit = "unit");
std::vector<std::string> names_of(const std::vector<Dim>& dims);

}  // namespace tessera::pytorch
