// A row's place is the number of earlier rows of its rank with the same owner: a running sum over
// the rows of ones at their owner. What a place holds is then a gather, by row or by token, and the
// way back is a scatter_add, which sums the results of a token. Both are each other's gradient.
#include "lower/partition/token_dispatch.h"

#include <algorithm>
#include <cmath>

#include "ops/capacity.h"
#include "tessera/ragged.h"

namespace tessera {

namespace {

constexpr double kFewPlaces = 64;  ///< a capacity of fewer saves nothing

Tensor number(Graph& g, int64_t value) {
  return constant(g, static_cast<double>(value), DType::int32);
}

/// `shape` with the dims `names` in front.
Shape with_first(const Shape& shape, const std::vector<std::string>& names) {
  std::vector<Dim> dims;
  for (const std::string& name : names) dims.push_back(shape.dim(name));
  for (const Dim& d : shape.without(names)) dims.push_back(d);
  return Shape(dims);
}

/// The dims in slices, and those of other ranks.
std::vector<std::string> fronts(const TokenSlices& tokens) {
  std::vector<std::string> names = tokens.dims;
  for (const Dim& d : tokens.others) names.push_back(d.name);
  return names;
}

}  // namespace

TokenDispatch::TokenDispatch(Tensor indices, const std::string& choices, const Dim& groups,
                             const TokenSlices& tokens, int64_t owners, double capacity,
                             DispatchChunk chunk)
    : choices_(indices.dim(choices)),
      tokens_(with_first(indices.shape().without({choices}), fronts(tokens))),
      others_(tokens.others),
      slice_(tokens.name, tokens.count()),
      owner_(groups.name, owners),
      inner_(groups.name + "/inner", (groups.size + owners - 1) / owners),
      token_(tokens.name + "/token", 1),
      row_(tokens.name + "/row", 1),
      place_(tokens.name + "/place", 1) {
  Graph& g = indices.graph();
  int64_t here = tokens_.elements();
  for (size_t i = 0; i < tokens.dims.size(); ++i)
    slices_.emplace_back(tokens.dims[i], tokens.slices[i]);
  slices_.insert(slices_.end(), others_.begin(), others_.end());
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Dim& d = tokens_[static_cast<int>(i)];
    parts_.emplace_back(d.name + "/part", (d.size + slices_[i].size - 1) / slices_[i].size);
    here = here / d.size * parts_[i].size;
  }
  token_ = Dim(token_.name, here);
  const int64_t first = here * chunk.number / chunk.count,
                end = here * (chunk.number + 1) / chunk.count;
  first_row_ = first * choices_.size;
  row_ = Dim(row_.name, (end - first) * choices_.size);
  place_ = Dim(place_.name, row_.size);
  const double mean = static_cast<double>(row_.size) / static_cast<double>(owners);
  const double all = static_cast<double>(row_.size),
               places = std::max(kFewPlaces, std::ceil(capacity * mean));
  if (capacity > 0) place_.size = static_cast<int64_t>(std::min(places, all));
  used_ = std::min(1.0, mean / static_cast<double>(place_.size));

  like_ = iota(g, slice_).prefer(slice_.name);
  const PreferScope prefer(g, like_);
  const Tensor index = in_slices(cast(indices, DType::int32), choices_, -1);
  const Tensor none = number(g, -1), zero = number(g, 0), one = number(g, 1);
  const Tensor is_row = logical_and(less(none, index), less(index, number(g, groups.size)));
  const Tensor owner = where(is_row, floor_div(index, number(g, inner_.size)), none);
  local_ = index - owner * number(g, inner_.size) + one;

  const Tensor at_owner =
      one_hot(owner, owner_, 1, 0, DType::int32);  // [slice, others, row, owner]
  const Tensor before = cumsum(at_owner, row_.name, true);
  counts_ = reduce_sum(at_owner, row_.name);
  if (place_.size < row_.size) counts_ = within_capacity(counts_, place_.size);
  const Tensor place = reduce_sum(before * at_owner, owner_.name);
  const Tensor fits = logical_and(is_row, less(place, number(g, place_.size)));
  const Dim slot(tokens.name + "/slot", owners * place_.size);
  const Tensor slot_of = where(fits, owner * number(g, place_.size) + place, none);
  const Tensor rows = broadcast(iota(g, row_) + one, on_ranks({row_}));
  row_of_ = reshape(scatter_add(slot_of, rows, on_ranks({slot}), slot.name, OutOfRange::drop),
                    on_ranks({owner_, place_})) -
            one;
  token_of_ = floor_div(row_of_, number(g, choices_.size));
  if (first > 0) token_of_ = token_of_ + number(g, first);
  token_of_ = where(less(row_of_, zero), none, token_of_);
}

/// [slice, others, last].
Shape TokenDispatch::on_ranks(std::initializer_list<Dim> last) const {
  std::vector<Dim> dims = {slice_};
  dims.insert(dims.end(), others_.begin(), others_.end());
  dims.insert(dims.end(), last);
  return Shape(dims);
}

/// The token dims with their padding, as slices and parts of them where there are several in
/// slices, and `last`.
Shape TokenDispatch::of_slices(const Dim& last) const {
  std::vector<Dim> dims;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (slices_.size() == 1) {
      dims.emplace_back(slices_[i].name, slices_[i].size * parts_[i].size);
    } else {
      dims.insert(dims.end(), {slices_[i], parts_[i]});
    }
  }
  for (int d = static_cast<int>(slices_.size()); d < tokens_.rank(); ++d)
    dims.push_back(tokens_[d]);
  dims.push_back(last);
  return Shape(dims);
}

/// The same dims with the slices in front, if there are several.
Shape TokenDispatch::in_order(const Dim& last) const {
  const Shape shape = of_slices(last);
  return slices_.size() == 1 ? shape : with_first(shape, Shape(slices_).names());
}

/// [slice, others, token, last], or [slice, others, row] for the choices of the chunk: x [token
/// dims..., last] with its padding.
Tensor TokenDispatch::in_slices(Tensor x, const Dim& last, double fill) const {
  const PreferScope prefer(x.graph(), like_);
  std::vector<Dim> dims = tokens_.dims();
  dims.push_back(last);
  if (x.shape() != Shape(dims)) x = transpose(x, Shape(dims));
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Dim& d = tokens_[static_cast<int>(i)];
    const int64_t room = slices_[i].size * parts_[i].size;
    if (room > d.size) x = pad(x, d.name, 0, room - d.size, fill);
  }
  if (slices_.size() > 1) x = transpose(reshape(x, of_slices(last)), in_order(last));
  if (last.name != choices_.name) return reshape(x, on_ranks({token_, last}));
  const Dim all(row_.name, token_.size * choices_.size);
  x = reshape(x, on_ranks({all}));
  return all == row_ ? x : slice(x, all.name, first_row_, row_.size);
}

/// [slice, others, owner, place, rest of x]: elements of x [slice, others, dim, rest], at the
/// owners.
Tensor TokenDispatch::to_owners(Tensor x, Tensor indices, const Dim& dim) const {
  Tensor blocks;
  {
    const PreferScope prefer(x.graph(), like_);
    blocks = gather(x, indices, dim.name, OutOfRange::zero);
  }
  return ragged(blocks, counts_, place_.name, used_).prefer(owner_.name);
}

Tensor TokenDispatch::tokens_to_owners(Tensor x) const {
  Dim rest("rest", 1);
  for (const Dim& d : x.shape()) {
    if (!tokens_.has(d.name)) rest = d;
  }
  return to_owners(in_slices(x, rest, 0), token_of_, token_);
}

Tensor TokenDispatch::choices_to_owners(Tensor x) const {
  return to_owners(in_slices(x, choices_, 0), row_of_, row_);
}

Tensor TokenDispatch::indices_at_owners() const {
  const Tensor local = to_owners(local_, row_of_, row_);
  const PreferScope prefer(local.graph(), local);
  return local - number(local.graph(), 1);
}

Tensor TokenDispatch::to_tokens(Tensor y) const {
  return ragged(y, counts_, place_.name, used_).prefer(slice_.name);
}

Tensor TokenDispatch::combined(Tensor rows) const {
  const PreferScope prefer(rows.graph(), like_);
  const Dim rest = rows.shape()[rows.shape().rank() - 1];
  return scatter_add(token_of_, rows, on_ranks({token_, rest}), token_.name, OutOfRange::drop);
}

Tensor TokenDispatch::by_tokens(Tensor sums, const Shape& to) const {
  const PreferScope prefer(sums.graph(), like_);
  const Dim rest = sums.shape()[sums.shape().rank() - 1];
  sums = reshape(sums, in_order(rest));
  if (slices_.size() > 1) {
    std::vector<Dim> dims;
    for (size_t i = 0; i < slices_.size(); ++i)
      dims.emplace_back(slices_[i].name, slices_[i].size * parts_[i].size);
    for (int d = static_cast<int>(slices_.size()); d < tokens_.rank(); ++d)
      dims.push_back(tokens_[d]);
    dims.push_back(rest);
    sums = reshape(transpose(sums, of_slices(rest)), Shape(dims));
  }
  for (size_t i = 0; i < slices_.size(); ++i) {
    const Dim& d = tokens_[static_cast<int>(i)];
    if (sums.dim(d.name).size > d.size) sums = slice(sums, d.name, 0, d.size);
  }
  return sums.shape() == to ? sums : transpose(sums, to);
}

}  // namespace tessera
