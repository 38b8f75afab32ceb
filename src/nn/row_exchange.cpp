// A row's place is the number of earlier rows of its rank with the same owner: a running sum over
// the rows of ones at their owner. What a place holds is then a gather, by row or by token, and the
// way back is a scatter_add, which sums the results of a token. Both are each other's gradient.
#include "nn/row_exchange.h"

#include <algorithm>
#include <cmath>

namespace tessera::nn {

namespace {

constexpr double kFewPlaces = 64;  ///< a bound of fewer saves nothing

Tensor number(Graph& g, int64_t value) {
  return constant(g, static_cast<double>(value), DType::int32);
}

/// `shape` without `names`, `first` in front.
Shape with_first(const Shape& shape, const std::string& first) {
  std::vector<Dim> dims = {shape.dim(first)};
  for (const Dim& d : shape) {
    if (d.name != first) dims.push_back(d);
  }
  return Shape(dims);
}

}  // namespace

RowExchange::RowExchange(Tensor indices, const std::string& choices, const Dim& experts,
                         const std::string& tokens, int64_t slices, double bound)
    : choices_(indices.dim(choices)),
      experts_(experts),
      tokens_(with_first(indices.shape().without({choices}), tokens)),
      slice_(tokens, slices),
      owner_(experts.name, slices),
      inner_(experts.name + "/inner", (experts.size + slices - 1) / slices),
      token_(tokens + "/token", 1),
      row_(tokens + "/row", 1),
      place_(tokens + "/place", 1),
      room_((tokens_[0].size + slices - 1) / slices * slices) {
  Graph& g = indices.graph();
  const int64_t here = room_ / slices * (tokens_.elements() / tokens_[0].size);
  token_ = Dim(token_.name, here);
  row_ = Dim(row_.name, here * choices_.size);
  place_ = Dim(place_.name, row_.size);
  const double mean = static_cast<double>(row_.size) / static_cast<double>(slices);
  const double all = static_cast<double>(row_.size),
               places = std::max(kFewPlaces, std::ceil(bound * mean));
  if (bound > 0) place_.size = static_cast<int64_t>(std::min(places, all));
  used_ = std::min(1.0, mean / static_cast<double>(place_.size));

  like_ = iota(g, slice_).prefer(slice_.name);
  const PreferScope prefer(g, like_);
  const Tensor index = by_slices(cast(indices, DType::int32), choices_, -1);
  const Tensor none = number(g, -1), zero = number(g, 0), one = number(g, 1);
  const Tensor is_row = logical_and(less(none, index), less(index, number(g, experts.size)));
  const Tensor owner = where(is_row, floor_div(index, number(g, inner_.size)), none);
  local_ = index - owner * number(g, inner_.size) + one;

  const Tensor at_owner = one_hot(owner, owner_, 1, 0, DType::int32);  // [slice, row, owner]
  const Tensor before = cumsum(at_owner, row_.name, true);
  counts_ = reduce_sum(at_owner, row_.name);
  if (place_.size < row_.size) counts_ = within_bound(counts_, place_.size);
  const Tensor place = reduce_sum(before * at_owner, owner_.name);
  const Tensor fits = logical_and(is_row, less(place, number(g, place_.size)));
  const Dim slot(tokens + "/slot", slices * place_.size);
  const Tensor slot_of = where(fits, owner * number(g, place_.size) + place, none);
  const Tensor rows = broadcast(iota(g, row_) + one, {slice_, row_});
  row_of_ = reshape(scatter_add(slot_of, rows, {slice_, slot}, slot.name, OutOfRange::drop),
                    {slice_, owner_, place_}) -
            one;
  token_of_ = where(less(row_of_, zero), none, floor_div(row_of_, number(g, choices_.size)));
}

/// [slice, token, last], or [slice, row] for the choices: x [token dims..., last] with its padding.
Tensor RowExchange::by_slices(Tensor x, const Dim& last, double fill) const {
  const PreferScope prefer(x.graph(), like_);
  std::vector<Dim> dims = tokens_.dims();
  dims.push_back(last);
  if (x.shape() != Shape(dims)) x = transpose(x, Shape(dims));
  if (room_ > tokens_[0].size) x = pad(x, tokens_[0].name, 0, room_ - tokens_[0].size, fill);
  return last.name == choices_.name ? reshape(x, {slice_, row_})
                                    : reshape(x, {slice_, token_, last});
}

/// [slice, owner, place, rest of x]: elements of x [slice, dim, rest], at the owners.
Tensor RowExchange::to_owners(Tensor x, Tensor indices, const Dim& dim) const {
  Tensor blocks;
  {
    const PreferScope prefer(x.graph(), like_);
    blocks = gather(x, indices, dim.name, OutOfRange::zero);
  }
  return ragged(blocks, counts_, place_.name, used_).prefer(owner_.name);
}

Tensor RowExchange::tokens_to_owners(Tensor x) const {
  Dim rest("rest", 1);
  for (const Dim& d : x.shape()) {
    if (!tokens_.has(d.name)) rest = d;
  }
  return to_owners(by_slices(x, rest, 0), token_of_, token_);
}

Tensor RowExchange::choices_to_owners(Tensor x) const {
  return to_owners(by_slices(x, choices_, 0), row_of_, row_);
}

Tensor RowExchange::indices_at_owners() const {
  const Tensor local = to_owners(local_, row_of_, row_);
  const PreferScope prefer(local.graph(), local);
  return local - number(local.graph(), 1);
}

Tensor RowExchange::sums_at_tokens(Tensor y, const Shape& to) const {
  const Tensor back = ragged(y, counts_, place_.name, used_).prefer(slice_.name);
  const PreferScope prefer(y.graph(), like_);
  const Dim rest = y.shape()[y.shape().rank() - 1];
  Tensor sums = scatter_add(token_of_, back, {slice_, token_, rest}, token_.name, OutOfRange::drop);
  std::vector<Dim> dims = {Dim(tokens_[0].name, room_)};
  for (int d = 1; d < tokens_.rank(); ++d) dims.push_back(tokens_[d]);
  dims.push_back(rest);
  sums = reshape(sums, Shape(dims));
  if (room_ > tokens_[0].size) sums = slice(sums, tokens_[0].name, 0, tokens_[0].size);
  return sums.shape() == to ? sums : transpose(sums, to);
}

}  // namespace tessera::nn
