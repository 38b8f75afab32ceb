// At fixed distances, a stage takes what arrives in the tick in which it arrives, from the same
// neighbour in every tick of a remainder by the stride. So an exchange for each remainder will do.
//
// In other tables what arrives waits in one of several places. The shares say who sends in a tick,
// to which place, and which place a stage takes. It is awaited in the tick in which it is taken, or
// P / 2 ticks after it was sent, with P stages. A stage sends before it awaits anything.
#include "lower/flow/stage_transfers.h"

#include <algorithm>
#include <map>

#include "base/fail.h"

namespace tessera {

namespace {

FlowNode loop_like(const FlowNode& layers, std::string name) {
  FlowNode node;
  node.kind = FlowKind::loop;
  node.origin = layers.origin;
  node.loop = std::make_shared<FlowLoop>();
  node.loop->name = std::move(name);
  return node;
}

}  // namespace

PipelineShare share_of(std::vector<int64_t> table, int axis) {
  PipelineShare share;
  share.axis = axis;
  share.table = std::make_shared<const std::vector<int64_t>>(std::move(table));
  return share;
}

FlowValue with_dim_in_front(FlowValue of, const Dim& dim, const std::vector<int>& axes) {
  of.shape = Shape{dim}.united(of.shape);
  of.layout.dims.insert(of.layout.dims.begin(), axes);
  of.layout.dirty <<= 1;
  if (of.turns >= 0) ++of.turns;
  for (Interval& interval : of.intervals) ++interval.dim;
  of.node = -1;
  return of;
}

// ------------------------------------------------------------------------------ at fixed distances

std::vector<FlowNode> StageTransfers::to_next(const FlowNode& layers,
                                              const TickDistances& distances) const {
  std::vector<FlowNode> transfers;
  const int64_t stride = distances.stride,
                other = distances.first + distances.by_stage * (stages_ - 1);
  for (int64_t rest = 0; rest < stride; ++rest) {
    int64_t first = -1, last = -1;  // ticks in which a stage begins with microbatch 0
    for (int64_t tick = std::min(distances.first, other) + 1;
         tick <= std::max(distances.first, other); ++tick) {
      if (tick % stride != rest) continue;
      if (first < 0) first = tick;
      last = tick;
    }
    if (first < 0) continue;
    FlowNode transfer = loop_like(layers, layers.loop->name + ".next");
    FlowLoop& loop = *transfer.loop;
    loop.iterations = (last - first) / stride + table_.microbatches();
    std::vector<int64_t> in_ticks(static_cast<size_t>(first + stride * (loop.iterations - 1) + 1),
                                  -1);
    for (int64_t k = 0; k < loop.iterations; ++k)
      in_ticks[static_cast<size_t>(first + stride * k)] = k;
    loop.share = share_of(std::move(in_ticks));
    for (size_t i = 0; i < layers.loop->carries.size(); ++i) {
      FlowNode move = layers.loop->to_next[i];
      FlowValue to = flow_.values[static_cast<size_t>(move.out[0])];
      to.intervals[0].begin = stage_before(distances, rest);
      to.intervals[0].wraps = false;
      move.in.push_back(layers.out[i]);
      move.out = {flow_.add_value(std::move(to)), layers.loop->arrivals[i]};
      loop.begin_to_next.push_back(std::move(move));
    }
    transfers.push_back(std::move(transfer));
  }
  return transfers;
}

/// Of a stage that begins a microbatch in a tick of this remainder: the stage before. Of another
/// one, and of the first: no stage.
AffineExpr StageTransfers::stage_before(const TickDistances& distances, int64_t rest) const {
  const int64_t beyond = stages_ + 1;
  AffineExpr stage;  // the stage before, plus `beyond` times what is left of the tick
  stage.constant = beyond * (distances.first - rest) - distances.by_stage;
  stage.axis_terms = {{axis_, beyond * distances.by_stage + 1}};
  stage.modulus = beyond * distances.stride;
  return stage;
}

// ---------------------------------------------------------------------------------- in any table

/// What passes between stages in these passes, by the tick in which it arrives.
std::vector<StageTransfers::Arrival> StageTransfers::arrivals_of(
    const std::vector<StagedLayers>& chunks) const {
  const auto is_one = [&](size_t pass) {
    return std::any_of(chunks.begin(), chunks.end(),
                       [&](const StagedLayers& chunk) { return chunk.pass == pass; });
  };
  std::vector<Arrival> all;
  for (const StagedLayers& chunk : chunks) {
    for (int64_t s = 0; s < stages_; ++s) {
      const std::optional<PassStage> to = table_.target(chunk.pass, s);
      if (!to || !is_one(to->pass)) continue;
      for (int64_t m = 0; m < table_.microbatches(); ++m) {
        all.push_back({s, to->stage, table_.tick_of({chunk.pass, m}, s) + 1,
                       table_.tick_of({to->pass, m}, to->stage)});
      }
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Arrival& a, const Arrival& b) { return a.tick < b.tick; });
  return all;
}

/// Gives each arrival the first place that is free, and returns the number of places.
int64_t StageTransfers::set_places(std::vector<Arrival>& arrivals) const {
  int64_t places = 1;
  std::vector<std::vector<int64_t>> taken(static_cast<size_t>(stages_));  // last use, by place
  for (Arrival& a : arrivals) {
    std::vector<int64_t>& here = taken[static_cast<size_t>(a.to)];
    const auto free =
        std::find_if(here.begin(), here.end(), [&](int64_t tick) { return tick < a.tick; });
    a.place = free - here.begin();
    if (free == here.end()) here.push_back(0);
    here[static_cast<size_t>(a.place)] = a.taken;
    places = std::max(places, std::ssize(here));
  }
  return places;
}

void StageTransfers::add_arrivals(const std::vector<StagedLayers>& chunks) {
  std::vector<Arrival> arrivals = arrivals_of(chunks);
  const int64_t places = set_places(arrivals);
  const FlowNode& first = *chunks[0].node;
  FlowNode take = loop_like(first, first.loop->name + ".taken");
  FlowLoop& out = *take.loop;
  out.iterations = places;
  std::vector<int64_t> taken(static_cast<size_t>(table_.ticks() * stages_), -1);
  for (const Arrival& a : arrivals) taken[static_cast<size_t>(a.taken * stages_ + a.to)] = a.place;
  out.share = share_of(std::move(taken), axis_);
  for (size_t i = 0; i < first.loop->carries.size(); ++i) {
    const FlowValue carry = flow_.values[static_cast<size_t>(first.out[i])];
    const int waiting = flow_.add_value(with_dim_in_front(carry, Dim("_places", places)));
    const int next = flow_.add_value(FlowValue(carry));
    out.slices.push_back({waiting, next, 0});
    out.copies.emplace_back(next, first.out[i]);
    for (const StagedLayers& chunk : chunks) chunk.node->loop->arrivals[i] = waiting;
  }
  for (const std::vector<Sent>& lane : lanes_of(arrivals)) add_lane(lane, first);
  for (const StagedLayers& chunk : chunks) {
    FlowLoop& layers = *chunk.node->loop;
    if (layers.chunk < 0) layers.chunk = 0;
  }
  taking.push_back(std::move(take));
}

/// Deals what is sent to as few lanes as can be: in a lane no two begin or end in one tick, and
/// none overtakes another. The first lane has all that is awaited at once.
std::vector<std::vector<StageTransfers::Sent>> StageTransfers::lanes_of(
    const std::vector<Arrival>& arrivals) const {
  std::map<std::pair<int64_t, int64_t>, Sent> all;  // by tick, and by that of the wait
  for (const Arrival& a : arrivals) {
    Sent& sent = all[{a.tick, a.awaited(stages_)}];
    sent.tick = a.tick;
    sent.awaited = a.awaited(stages_);
    sent.arrivals.push_back(a);
  }
  std::vector<std::vector<Sent>> lanes(1);
  for (auto& [ticks, sent] : all) {
    const bool at_once = sent.tick == sent.awaited;
    auto lane = lanes.begin() + (at_once ? 0 : 1);
    while (!at_once && lane != lanes.end() &&
           (lane->back().tick >= sent.tick || lane->back().awaited >= sent.awaited))
      ++lane;
    if (lane == lanes.end()) lane = lanes.insert(lane, std::vector<Sent>{});
    lane->push_back(std::move(sent));
  }
  return lanes;
}

/// Adds the loop that sends what is in a lane, and the one that awaits it.
void StageTransfers::add_lane(const std::vector<Sent>& lane, const FlowNode& layers) {
  if (lane.empty()) return;
  const int id = next_id_++;
  FlowNode send = loop_like(layers, fmt::format("{}.next{}", layers.loop->name, id)),
           await = loop_like(layers, fmt::format("{}.awaited{}", layers.loop->name, id));
  FlowLoop &from = *send.loop, &to = *await.loop;
  from.iterations = to.iterations = std::ssize(lane);
  std::vector<int64_t> sent(static_cast<size_t>(table_.ticks()), -1), awaited = sent;
  from.senders.assign(lane.size() * static_cast<size_t>(stages_), stages_);
  from.places.assign(from.senders.size(), 0);
  for (size_t k = 0; k < lane.size(); ++k) {
    sent[static_cast<size_t>(lane[k].tick)] = static_cast<int64_t>(k);
    awaited[static_cast<size_t>(lane[k].awaited)] = static_cast<int64_t>(k);
    for (const Arrival& a : lane[k].arrivals) {
      const size_t at = k * static_cast<size_t>(stages_) + static_cast<size_t>(a.to);
      from.senders[at] = a.from;
      from.places[at] = a.place;
    }
  }
  from.share = share_of(std::move(sent));
  from.share->send_id = id;
  to.share = share_of(std::move(awaited));
  to.share->recv_id = id;
  const bool is_copied = lane.front().tick != lane.front().awaited;
  int64_t most = 0;  // under way at a time
  for (const Sent& one : lane) {
    most = std::max(most, std::count_if(lane.begin(), lane.end(), [&](const Sent& other) {
                      return other.tick >= one.tick && other.tick <= one.awaited;
                    }));
  }
  for (size_t i = 0; i < layers.loop->carries.size(); ++i) {
    FlowNode move = layers.loop->to_next[i];
    FlowValue arrived = flow_.values[static_cast<size_t>(move.out[0])];
    arrived.intervals[0].wraps = false;
    move.in.push_back(layers.out[i]);
    move.out = {flow_.add_value(std::move(arrived)), layers.loop->arrivals[i]};
    if (is_copied) copy_before(send, move, most);
    from.begin_to_next.push_back(std::move(move));
  }
  sending.push_back(std::move(send));
  awaiting.push_back(std::move(await));
}

/// Lets a loop send a copy: layers go on with what they have made.
void StageTransfers::copy_before(FlowNode& send, FlowNode& move, int64_t copies) {
  const int made = move.in[1];
  const FlowValue value = flow_.values[static_cast<size_t>(made)];
  const int stack = flow_.add_value(with_dim_in_front(value, Dim("_sent", copies)));
  const int copy = flow_.add_value(FlowValue(value));
  FlowLoop& loop = *send.loop;
  send.out.push_back(stack);
  loop.stacked.push_back(copy);
  loop.slices.push_back({stack, copy, 0});
  loop.copies.emplace_back(made, copy);
  move.in[1] = copy;
}

}  // namespace tessera
