#include "kernels/cpu/ordered_spread.h"

#include <algorithm>
#include <numeric>

namespace tessera::cpu {

namespace {

int64_t rounded_up(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/// Copies the elements of an operand's [begin, end) to `at` of the first and so on, as far as the
/// copy reaches.
void clip(SpreadDim& dim, int64_t begin, int64_t end, int64_t at) {
  begin = std::max(begin, rounded_up(-at, dim.step));
  end = std::min(end, rounded_up(dim.size - at, dim.step));
  dim.begin = begin;
  dim.count = std::max<int64_t>(0, end - begin);
  dim.at = dim.count == 0 ? 0 : at + begin * dim.step;
  if (dim.count == 0) dim.begin = 0;
}

}  // namespace

SpreadDim SpreadRelation::of_in(bool sums_window) const {
  SpreadDim dim;
  dim.size = stride * (out_memory - 1) + dilation * (window_memory - 1) + 1;
  dim.row = sums_window ? stride : dilation;
  dim.term = sums_window ? dilation : stride;
  const int64_t base = stride * out_begin + dilation * window_begin - lo;
  clip(dim, std::max<int64_t>(0, -in_begin), std::min(in_memory, in_size - in_begin),
       in_begin - base);
  return dim;
}

SpreadDim SpreadRelation::of_out() const {
  SpreadDim dim;
  dim.first = dilation * (window_memory - 1);
  dim.size = in_memory + dim.first;
  dim.term = -dilation;
  dim.step = stride;
  const int64_t base = in_begin + lo - dilation * window_begin - dim.first;
  clip(dim, std::max<int64_t>(0, -out_begin), std::min(out_memory, out_size - out_begin),
       stride * out_begin - base);
  return dim;
}

Spread::Spread(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, size_t first,
               const std::vector<SpreadDim>& dims)
    : strides_(sizes.size()) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  std::vector<int64_t> copied = sizes;
  for (const size_t d : order) {  // as dense as the operand
    const bool is_spread = d >= first && d < first + dims.size();
    if (!is_spread && sizes[d] == 1) continue;
    strides_[d] = elements_;
    elements_ *= is_spread ? dims[d - first].size : sizes[d];
  }
  std::vector<int64_t> to = strides_;
  for (size_t s = 0; s < dims.size(); ++s) {
    const size_t d = first + s;
    copied[d] = dims[s].count;
    to_ += strides_[d] * dims[s].at;
    from_ += strides[d] * dims[s].begin;
    first_ += strides_[d] * dims[s].first;
    to[d] *= dims[s].step;
  }
  copy_ = StridedCopy(copied, to, strides);
}

}  // namespace tessera::cpu
