#include "ops/attention_cut.h"

#include "ops/window.h"

namespace tessera {

namespace {

Tensor whole_number(Graph& g, int64_t x) {
  return constant(g, static_cast<double>(x), DType::int32);
}

}  // namespace

std::vector<Tensor> AttentionCut::of(const Tensor& x) const {
  Tensor sliced = Sliced(x, whole_.name, slices_.size, 0).x;
  if (whole_.name != slices_.name) sliced = rename(sliced, whole_.name, slices_.name);
  if (intervals() == 1) return {sliced};
  const Tensor second = slice(sliced, inner_.name, first_, inner_.size - first_);
  return {slice(sliced, inner_.name, 0, first_), reversed(second, slices_.name)};
}

Tensor AttentionCut::whole(const std::vector<Tensor>& intervals, const Shape& shape) const {
  Tensor x = intervals[0];
  if (intervals.size() > 1) x = concat({x, reversed(intervals[1], slices_.name)}, inner_.name);
  if (whole_.name != slices_.name) x = rename(x, slices_.name, whole_.name);
  std::vector<Dim> apart, merged;
  for (const Dim& d : shape) {
    const bool is_cut = d.name == whole_.name;
    apart.push_back(is_cut ? Dim(d.name, slices_.size) : d);
    if (is_cut) apart.push_back(inner_);
    merged.push_back(is_cut ? Dim(d.name, slices_.size * inner_.size) : d);
  }
  if (x.shape() != Shape(apart)) x = transpose(x, Shape(apart));
  x = reshape(x, Shape(merged));
  if (x.dim(whole_.name).size != whole_.size) x = slice(x, whole_.name, 0, whole_.size);
  return whole_.is_bounded ? with_bound(x, whole_, Loc::current()) : x;
}

Tensor AttentionCut::start(Graph& g, size_t interval, int64_t turns) const {
  Tensor slice = iota(g, slices_);
  if (const int64_t back = turns % slices_.size; back > 0)
    slice = mod(slice + whole_number(g, slices_.size - back), whole_number(g, slices_.size));
  if (interval > 0) slice = whole_number(g, slices_.size - 1) - slice;
  const Tensor start = slice * whole_number(g, inner_.size);
  return interval > 0 ? start + whole_number(g, first_) : start;
}

}  // namespace tessera
