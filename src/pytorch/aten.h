// The table of ATen ops: rows by kind, one file each.
#pragma once

#include <array>
#include <span>

#include "pytorch/call.h"

namespace tessera::pytorch {

std::span<const Row> pointwise_rows();
std::span<const Row> shape_rows();
std::span<const Row> product_rows();
std::span<const Row> layer_rows();
std::span<const Row> loss_rows();
std::span<const Row> reduction_rows();
std::span<const Row> index_rows();
std::span<const Row> moving_rows();
std::span<const Row> recurrent_rows();
/// Of complex numbers, which are two tensors. Other ops of theirs run the rule for real numbers on
/// each part (Import::run).
std::span<const Row> complex_rows();

/// All of them.
std::array<std::span<const Row>, 10> all_rows();
Rule find_complex_rule(const std::string& overload);

/// The dtype that comparisons and other ops of two operands compute in.
DType common_dtype(const Value& a, const Value& b);

// ------------------------------------------------------------------- what rules have in common
/// The elements in their order under other sizes; {-1} is all of them.
Value reshaped(Call& call, const Value& x, std::vector<int64_t> sizes);
/// Elements [begin, begin + size) of an axis, which are an axis of their own.
Value interval(Call& call, const Value& x, size_t axis, int64_t begin, int64_t size,
               int64_t step = 1);
/// Part `index` of the `parts` equal ones of an axis, which are blocks or have every n-th element.
Value part_of(Call& call, const Value& x, size_t axis, int64_t parts, bool strided, int64_t index);
/// Element `index` along an axis, without it.
Value element(Call& call, const Value& x, size_t axis, int64_t index);
/// Elements of an axis by their indices, which are an axis of their own.
Value taken(Call& call, const Value& x, size_t axis, const std::vector<int64_t>& indices);
/// Behind one another along an axis, in the dtype `dtype`.
Value concatenated(Call& call, std::vector<Value> xs, size_t axis, DType dtype);
/// The same along a new axis in front of `axis`.
Value stacked(Call& call, std::vector<Value> xs, size_t axis, DType dtype);
/// The axes in front that the others are moved to, as transposing by `order` does.
Value reordered(const Call& call, const Value& x, const std::vector<size_t>& order);
/// Axis 1, of channels, moved to the end; and back.
Value channels_last(Call& call, const Value& x);
Value channels_first(Call& call, const Value& x);
/// The sum of a b over the dims that `out` lacks. An operand may lack dims along which it is
/// constant.
Tensor contract(const Tensor& a, const Tensor& b, const std::vector<Dim>& contracted,
                const std::vector<Dim>& out);
/// x with the dims of an axis, all there, as the dim `to`.
Tensor one_dim(const Call& call, Tensor x, const Axis& axis, const Dim& to);
/// atan; atan2.
Tensor arc_tangent(const Tensor& x);
Tensor arc_tangent(const Tensor& y, const Tensor& x);
/// The inverse; an axis of size 1 has no dim.
Tensor dims_again(const Call& call, Tensor x, const Dim& from, const Axis& axis);

}  // namespace tessera::pytorch
