#include "kernels/cpu/ordered_places.h"

#include <algorithm>

#include "kernels/common/nest.h"
#include "program/sum_order.h"

namespace tessera::cpu {

namespace {

/// Adds the runs of a box of terms, in row-major order.
void add_runs(const SumRange& box, const std::vector<int64_t>& begins, const SumOrder& order,
              const std::vector<std::vector<int64_t>>& strides, OrderedPlace& place) {
  const size_t dims = box.of.size();
  std::vector<int64_t> index;
  for (const auto& [begin, end] : box.of) index.push_back(begin);
  while (true) {
    OrderedRun run;
    run.count = box.of.back().second - box.of.back().first;
    for (size_t x = 0; x < strides.size(); ++x) {
      for (size_t d = 0; d < dims; ++d) {
        const auto dim = static_cast<size_t>(order.along[d].dim);
        run.at[x] += (index[d] - begins[d]) * strides[x][dim];
      }
    }
    place.runs.push_back(run);
    size_t d = dims - 1;
    while (d > 0 && ++index[d - 1] == box.of[d - 1].second) {
      index[d - 1] = box.of[d - 1].first;
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace

OrderedPlaces ordered_places(const KernelArgs& args,
                             const std::vector<std::vector<int64_t>>& strides) {
  const SumOrder& order = args.step->order;
  std::vector<int64_t> slices, begins;
  for (size_t d = 0; d < order.along.size(); ++d) {
    const SumOrder::Along& a = order.along[d];
    slices.push_back(kernels::eval(args, static_cast<int>(order.expr) + static_cast<int>(d)));
    begins.push_back(a.slices == 1 ? 0 : slices.back() * a.slice);
  }
  OrderedPlaces result;
  for (const SumRange& subtree : subtrees_of(order, slices)) {
    OrderedPlace& place = result.places.emplace_back();
    for (const SumRange& leaf : leaves_of(order, subtree)) {
      place.numbers.push_back(leaf.leaf);
      add_runs(leaf, begins, order, strides, place);
      place.ends.push_back(static_cast<int64_t>(place.runs.size()));
    }
    place.joins = joins_of(place.numbers);
    result.depth = std::max(result.depth, depth_of(place.joins));
  }
  TESSERA_CHECK(static_cast<int64_t>(result.places.size()) <= order.places,
                "{} subtrees for {} places", result.places.size(), order.places);
  const auto inner = static_cast<size_t>(order.along.back().dim);
  for (size_t x = 0; x < strides.size(); ++x) result.strides[x] = strides[x][inner];
  return result;
}

}  // namespace tessera::cpu
