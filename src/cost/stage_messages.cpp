// What a stage receives from another one is the intersection of what it needs with what that one
// has, as in runtime/exchange.cpp.
#include "cost/stage_messages.h"

#include <algorithm>

#include "program/renumbering.h"

namespace tessera {

StageMessages::StageMessages(const Mesh& mesh, int axis) : mesh_(mesh), axis_(axis) {
  for (const MeshAxis& a : mesh.axes()) sizes_.push_back(a.size);
  const int stages = sizes_[static_cast<size_t>(axis)];
  coordinates_.assign(static_cast<size_t>(stages), std::vector<int>(sizes_.size(), 0));
  for (int s = 0; s < stages; ++s)
    coordinates_[static_cast<size_t>(s)][static_cast<size_t>(axis)] = s;
}

bool StageMessages::are_sent_in(const Step& step) const {
  return is_collective(step, CollectiveKind::exchange) && step.axes == std::vector<int>{axis_} &&
         !is_renumbering(step);
}

StageMessages::Exchange& StageMessages::exchange_of(const Step& step) {
  const auto [at, is_new] = exchanges_.try_emplace(&step);
  Exchange& exchange = at->second;
  if (!is_new) return exchange;
  std::tie(exchange.from, exchange.to) = slicings_of(step);
  exchange.is_fixed =
      std::none_of(exchange.to.intervals.begin(), exchange.to.intervals.end(),
                   [](const Interval& interval) { return interval.begin.depends_on_scalars(); });
  for (const std::vector<int>& at_stage : coordinates_)
    exchange.holders.push_back(pieces_of(exchange.from, sizes_, at_stage));
  return exchange;
}

void StageMessages::plan(const Step& step, const int64_t* scalars, Exchange& exchange) const {
  const size_t stages = coordinates_.size();
  exchange.is_known = true;
  exchange.bytes.assign(stages * stages, 0);
  const bool is_split = std::any_of(
      exchange.from.axes.begin(), exchange.from.axes.end(),
      [&](const auto& axes) { return std::find(axes.begin(), axes.end(), axis_) != axes.end(); });
  if (!is_split) return;  // every stage has all of it
  for (size_t to = 0; to < stages; ++to) {
    const std::vector<Piece> needed = pieces_of(exchange.to, sizes_, coordinates_[to], scalars);
    for (size_t from = 0; from < stages; ++from) {
      if (from == to) continue;
      int64_t elements = 0;
      for (const Piece& have : exchange.holders[from]) {
        for (const Piece& need : needed) elements += intersect(have.box, need.box).elements();
      }
      exchange.bytes[from * stages + to] =
          static_cast<double>(elements * size_of(counted_operand(step).dtype));
    }
  }
}

std::vector<StageMessage> StageMessages::of(std::span<const Step> bucket, const int64_t* scalars) {
  const size_t stages = coordinates_.size();
  std::vector<double> bytes(stages * stages, 0);
  for (const Step& step : bucket) {
    Exchange& exchange = exchange_of(step);
    if (!exchange.is_fixed || !exchange.is_known) plan(step, scalars, exchange);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] += exchange.bytes[i];
  }
  std::vector<StageMessage> messages;
  for (size_t distance = 1; distance < stages; ++distance) {
    for (size_t from = 0; from < stages; ++from) {
      const size_t to = (from + distance) % stages;
      if (const double sent = bytes[from * stages + to]; sent > 0)
        messages.push_back({static_cast<int>(from), static_cast<int>(to), sent});
    }
  }
  return messages;
}

}  // namespace tessera
