#include "plan/choice/move_prices.h"

#include <algorithm>

#include "lower/layout/memo_key.h"

namespace tessera {

MovePrices::MovePrices(const Costs& costs)
    : costs_(costs), rule_layouts_(Graph(), costs.mesh(), Layout()), resharder_(rule_layouts_) {}

double MovePrices::seconds(const Shape& shape, DType dtype, const TensorLayout& from,
                           const TensorLayout& to) {
  if (from.dims == to.dims && from.partial == to.partial) return 0;
  const MemoKey key = MemoKey().add(shape).add(dtype).add(from).add(to);
  auto it = known_.find(key.text());
  if (it == known_.end()) it = known_.emplace(key.text(), price(shape, dtype, from, to)).first;
  return it->second;
}

double MovePrices::price(const Shape& shape, DType dtype, const TensorLayout& from,
                         const TensorLayout& to) {
  TensorLayout goal = to;
  goal.partial.clear();
  for (const int axis : to.partial) {
    const auto& own = from.partial;
    if (std::find(own.begin(), own.end(), axis) != own.end()) goal.partial.push_back(axis);
  }
  if (!to.partial.empty() && !from.partial.empty() && from.combiner != to.combiner) return kNever;
  std::vector<Dim> dims;
  for (int d = 0; d < shape.rank(); ++d) {
    std::vector<int> axes = from.dims[static_cast<size_t>(d)];
    for (const int axis : to.dims[static_cast<size_t>(d)]) {
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
    }
    int64_t slices = 1;
    for (const int axis : axes) slices *= costs_.mesh().axes()[static_cast<size_t>(axis)].size;
    dims.emplace_back(shape[d].name, (shape[d].size + slices - 1) / slices * slices);
  }
  const Shape padded(dims);
  double seconds = 0;
  TensorLayout at = from;
  for (const Move& move : resharder_.path(padded, dtype, from, goal).moves) {
    if (move.kind != FlowKind::slice) {
      const double bytes = static_cast<double>(rule_layouts_.local_elements(padded, at)) *
                           static_cast<double>(size_of(dtype));
      const double gathered =
          static_cast<double>(rule_layouts_.local_elements(padded, move.after)) *
          static_cast<double>(size_of(dtype));
      const bool is_exchange = move.kind == FlowKind::exchange;
      seconds += costs_.collective(collective_of(move.kind),
                                   is_exchange ? static_cast<double>(move.bytes)
                                   : move.kind == FlowKind::all_gather ? gathered
                                                                       : bytes,
                                   move.axes);
    }
    at = move.after;
  }
  return seconds;
}

}  // namespace tessera
