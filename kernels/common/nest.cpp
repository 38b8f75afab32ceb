// Simplification of loop nests: sort, then one sweep that merges neighbours.
#include "kernels/common/nest.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace tessera::kernels {

int64_t Nest::elements() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
}

void Nest::add_dim(int64_t size, const std::vector<int64_t>& stride_of_operand) {
  sizes.push_back(size);
  for (size_t k = 0; k < strides.size(); ++k) strides[k].push_back(stride_of_operand[k]);
}

void Nest::remove_dim(int dim) {
  sizes.erase(sizes.begin() + dim);
  for (auto& s : strides) s.erase(s.begin() + dim);
}

void Nest::drop_ones() {
  for (int d = rank() - 1; d >= 0; --d) {
    if (sizes[d] == 1) remove_dim(d);
  }
}

void Nest::order_by(int operand) {
  std::vector<int> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
    for (size_t k = 0; k < strides.size(); ++k) {
      const auto& s = strides[(k + operand) % strides.size()];
      if (std::abs(s[x]) != std::abs(s[y])) return std::abs(s[x]) > std::abs(s[y]);
    }
    return false;
  });
  Nest sorted{{}, std::vector<std::vector<int64_t>>(strides.size())};
  for (int d : order) {
    sorted.sizes.push_back(sizes[d]);
    for (size_t k = 0; k < strides.size(); ++k) sorted.strides[k].push_back(strides[k][d]);
  }
  *this = std::move(sorted);
}

void Nest::merge() {
  for (int d = rank() - 2; d >= 0; --d) {
    const bool one = std::all_of(strides.begin(), strides.end(),
                                 [&](const auto& s) { return s[d] == s[d + 1] * sizes[d + 1]; });
    if (!one) continue;
    sizes[d + 1] *= sizes[d];
    remove_dim(d);
  }
  TESSERA_CHECK(rank() <= kMaxDims, "a loop nest of {} dims; at most {} are supported", rank(),
                kMaxDims);
}

Nest make_nest(const std::vector<int64_t>& sizes, std::vector<std::vector<int64_t>> strides) {
  for (const auto& s : strides) {
    TESSERA_CHECK(s.size() == sizes.size(), "a kernel got {} strides for {} dims", s.size(),
                  sizes.size());
  }
  return Nest{sizes, std::move(strides)};
}

Nest simple_nest(const std::vector<int64_t>& sizes, std::vector<std::vector<int64_t>> strides) {
  Nest nest = make_nest(sizes, std::move(strides));
  nest.drop_ones();
  nest.order_by(0);
  nest.merge();
  return nest;
}

}  // namespace tessera::kernels
