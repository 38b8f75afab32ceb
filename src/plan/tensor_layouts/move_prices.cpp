#include "plan/tensor_layouts/move_prices.h"

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

void MovePrices::set_weights(const ByPhase<StepWeights>& weights) {
  has_weights_ = true;
  weights_ = weights;
  for (auto& [key, kind] : kinds_) kind.known = {};
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

double MovePrices::straight(Kind& kind, int from, int to, Slot slot) {
  const uint64_t pair = pair_of(from, to);
  const auto [known, is_new] = kind.known[slot].straight.try_emplace(pair, 0);
  if (!is_new || from == to) return known->second;
  auto move = kind.moves.find(pair);
  if (move == kind.moves.end()) {
    move = kind.moves
               .emplace(pair, price(kind.shape, kind.dtype, layouts_[static_cast<size_t>(from)],
                                    layouts_[static_cast<size_t>(to)]))
               .first;
  }
  const MoveTimes& times = move->second;
  known->second = has_weights_ && times.seconds < kNever
                      ? weights_[static_cast<size_t>(slot.phase)].of(times.least, {}, slot.link)
                      : times.seconds;
  return known->second;
}

double MovePrices::least(Kind& kind, int from, int to, Slot slot) {
  Kind::Known& known = kind.known[slot];
  if (const auto it = known.least.find(pair_of(from, to)); it != known.least.end())
    return it->second;
  double least = straight(kind, from, to, slot);
  for (const int by : kind.between) {
    if (least <= 0) break;
    const double first = straight(kind, from, by, slot);
    if (first >= least) continue;
    const double both = first + straight(kind, by, to, slot);
    if (both < least) least = both, known.by[pair_of(from, to)] = by;
  }
  known.least.emplace(pair_of(from, to), least);
  return least;
}

std::vector<double> MovePrices::seconds(const Shape& shape, DType dtype,
                                        const std::vector<TensorLayout>& from,
                                        const std::vector<TensorLayout>& to, Phase phase,
                                        int link) {
  Kind& kind = kind_of(shape, dtype);
  std::vector<int> ends;
  for (const TensorLayout& layout : to) ends.push_back(number_of(layout));
  std::vector<double> seconds;
  for (const TensorLayout& layout : from) {
    const int begin = number_of(layout);
    for (const int end : ends) seconds.push_back(least(kind, begin, end, {phase, link}));
  }
  return seconds;
}

LeastTimes MovePrices::least(const Shape& shape, DType dtype, const TensorLayout& from,
                             const TensorLayout& to, Phase phase, int link) {
  Kind& kind = kind_of(shape, dtype);
  const int begin = number_of(from), end = number_of(to);
  const Slot slot{phase, link};
  least(kind, begin, end, slot);
  LeastTimes sum;
  const auto add = [&](int a, int b) {
    const auto move = kind.moves.find(pair_of(a, b));
    if (move == kind.moves.end()) return;  // equal layouts
    sum.chain += move->second.least.chain;
    for (const auto& [lane, seconds] : move->second.least.sent) sum.add(lane, seconds);
  };
  const Kind::Known& known = kind.known[slot];
  const auto by = known.by.find(pair_of(begin, end));
  if (by == known.by.end()) {
    add(begin, end);
  } else {
    add(begin, by->second);
    add(by->second, end);
  }
  return sum;
}

MovePrices::MoveTimes MovePrices::price(const Shape& shape, DType dtype, const TensorLayout& from,
                                        const TensorLayout& to) {
  TensorLayout goal = to;
  goal.partial.clear();
  for (const int axis : to.partial) {
    const auto& own = from.partial;
    if (std::find(own.begin(), own.end(), axis) != own.end()) goal.partial.push_back(axis);
  }
  if (!to.partial.empty() && !from.partial.empty() && from.combiner != to.combiner) return {kNever};
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
  MoveTimes times;
  TensorLayout at = from;
  for (const Move& move : resharder_.path(padded, dtype, from, goal).moves) {
    if (move.kind != FlowKind::slice) {
      const double bytes = static_cast<double>(rule_layouts_.local_elements(padded, at)) *
                           static_cast<double>(size_of(dtype));
      const double gathered =
          static_cast<double>(rule_layouts_.local_elements(padded, move.after)) *
          static_cast<double>(size_of(dtype));
      const bool is_exchange = move.kind == FlowKind::exchange;
      const double counted = is_exchange                         ? static_cast<double>(move.bytes)
                             : move.kind == FlowKind::all_gather ? gathered
                                                                 : bytes;
      const CollectiveKind collective = collective_of(move.kind);
      const double seconds = costs_.collective(collective, counted, move.axes);
      times.seconds += seconds;
      times.least.chain += seconds;
      times.least.add(move.axes, sent_alone(costs_, collective, counted, move.axes));
    }
    at = move.after;
  }
  return times;
}

}  // namespace tessera
