#include "plan/choice/move_prices.h"

#include <algorithm>

#include "lower/layout/memo_key.h"

namespace tessera {

MovePrices::MovePrices(const Costs& costs)
    : costs_(costs), rule_layouts_(Graph(), costs.mesh(), Layout()), resharder_(rule_layouts_) {}

std::vector<TensorLayout> MovePrices::layouts_of(const Shape& shape) const {
  const std::vector<MeshAxis>& axes = costs_.mesh().axes();
  std::vector<TensorLayout> all(1);
  all[0].dims.resize(static_cast<size_t>(shape.rank()));
  for (size_t a = 0; a < axes.size(); ++a) {
    if (axes[a].size == 1) continue;
    for (size_t i = 0, before = all.size(); i < before; ++i) {
      for (int d = 0; d < shape.rank(); ++d) {
        int64_t slices = axes[a].size;
        for (const int axis : all[i].dims[static_cast<size_t>(d)])
          slices *= axes[static_cast<size_t>(axis)].size;
        if (slices > shape[d].size) continue;
        TensorLayout split = all[i];
        split.dims[static_cast<size_t>(d)].push_back(static_cast<int>(a));
        all.push_back(std::move(split));
      }
    }
  }
  return all;
}

MovePrices::Kind& MovePrices::kind_of(const Shape& shape, DType dtype) {
  MemoKey key;
  key.add(dtype);
  for (const Dim& dim : shape) key.add(dim.size).add(dim.is_bounded);
  const auto [it, is_new] = kinds_.try_emplace(key.text(), Kind{shape, dtype, {}});
  if (is_new) {
    for (const TensorLayout& layout : layouts_of(shape))
      it->second.between.push_back(number_of(layout));
  }
  return it->second;
}

int MovePrices::number_of(const TensorLayout& layout) {
  const auto [it, is_new] =
      numbers_.try_emplace(MemoKey().add(layout).text(), static_cast<int>(layouts_.size()));
  if (is_new) layouts_.push_back(layout);
  return it->second;
}

namespace {

uint64_t pair_of(int from, int to) {
  return static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to);
}

}  // namespace

double MovePrices::straight(Kind& kind, int from, int to) {
  const auto [it, is_new] = kind.straight.try_emplace(pair_of(from, to), 0);
  if (is_new && from != to) {
    it->second = price(kind.shape, kind.dtype, layouts_[static_cast<size_t>(from)],
                       layouts_[static_cast<size_t>(to)]);
  }
  return it->second;
}

double MovePrices::least(Kind& kind, int from, int to) {
  if (const auto it = kind.least.find(pair_of(from, to)); it != kind.least.end()) return it->second;
  double least = straight(kind, from, to);
  for (const int by : kind.between) {
    if (least <= 0) break;
    const double first = straight(kind, from, by);
    if (first < least) least = std::min(least, first + straight(kind, by, to));
  }
  kind.least.emplace(pair_of(from, to), least);
  return least;
}

std::vector<double> MovePrices::seconds(const Shape& shape, DType dtype,
                                        const std::vector<TensorLayout>& from,
                                        const std::vector<TensorLayout>& to) {
  Kind& kind = kind_of(shape, dtype);
  std::vector<int> ends;
  for (const TensorLayout& layout : to) ends.push_back(number_of(layout));
  std::vector<double> seconds;
  for (const TensorLayout& layout : from) {
    const int begin = number_of(layout);
    for (const int end : ends) seconds.push_back(least(kind, begin, end));
  }
  return seconds;
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
