// The iterations of such a loop are independent of each other but for sums, so they may run part by
// part. A part keeps the numbers of the values that it computes: a later part reads the same value
// as a slice of its stack.
//
// A turn is a forward or a backward of a microbatch on a stage (cost/pipeline_turns.h). The other
// parts take no turns of their own: all stages run them together, at the start of the turn behind
// the layers that they read.
//
// No stage waits for all others there. In a turn some stages run forward and others backward, which
// takes longer, so what is ready on one stage may be late for another one that could go on. Nobody
// waits for what follows the last layers. So these are two parts. In the first one what the layers
// made is on its way to all stages; the second one takes it so many turns later that the slowest
// stage has sent it, also if forward takes no time. With P stages, these are P / 2 turns.
//
// Where turns are at fixed distances, a stage takes what arrives in the turn in which it arrives.
// Chunks of interleaved stages do not: what arrives waits in one of several places. Tables say who
// sends in a turn, to which place, and which place a stage takes. It is awaited in the turn in
// which it is taken, or P / 2 turns after it was sent. A stage sends before it awaits anything.
#include "lower/flow/pipeline_microbatches.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/fail.h"
#include "cost/pipeline_turns.h"
#include "ir/loop.h"

namespace tessera {

namespace {

/// Stages that hand nothing on take no turns.
bool has_stages(const FlowNode& node) {
  return node.loop && node.loop->stage_axis >= 0 && !node.loop->carries.empty();
}
/// True for a node that is computed again wherever it is read: a constant, an index.
bool is_source(const FlowNode& node) { return node.in.empty() && !node.loop; }

/// Adds the values that a node or its iterations read.
void add_read(const FlowNode& node, std::set<int>& read) {
  read.insert(node.in.begin(), node.in.end());
  if (!node.loop) return;
  const FlowLoop& loop = *node.loop;
  for (const FlowLoop::Carry& c : loop.carries) read.insert({c.init, c.next});
  for (const FlowLoop::Slice& s : loop.slices) read.insert(s.whole);
  read.insert(loop.stacked.begin(), loop.stacked.end());
  read.insert(loop.sums.begin(), loop.sums.end());
  read.insert(loop.sum_inits.begin(), loop.sum_inits.end());
  if (loop.condition >= 0) read.insert(loop.condition);
  for (const FlowNode& inner : loop.body) add_read(inner, read);
}

class MicrobatchPipeline {
 public:
  MicrobatchPipeline(const Graph& graph, PipelineSchedule schedule, Flow& flow,
                     const FlowNode& node)
      : flow_(flow),
        node_(node),
        loop_(*node.loop),
        over_(loops_of(graph)[static_cast<size_t>(loop_.number)].over),
        schedule_(schedule),
        is_1f1b_(schedule == PipelineSchedule::one_forward_one_backward) {}

  std::vector<FlowNode> run() {
    divide();
    set_turns();
    if (is_interleaved_) add_arrivals();
    place_results();
    for (Part& part : parts_) find_read(part);
    for (Part& part : parts_) move_to_all(part);
    for (size_t p = 0; p < parts_.size(); ++p) connect(p);
    return nodes();
  }

 private:
  using Results = std::vector<std::pair<int, int>>;  ///< (value of an iteration, result)
  struct Part {
    FlowLoop loop;
    Results stacks, sums;
    std::set<int> read = {};
    std::vector<std::vector<int64_t>> turns = {};  ///< by stage and microbatch
    bool sends = false;    ///< only sends to all stages what the last layers made
    bool is_late = false;  ///< takes what the part before sends

    int64_t first_turn() const { return std::min(turns.front()[0], turns.back()[0]); }
    int64_t last_turn() const { return std::max(turns.front()[0], turns.back()[0]); }

    const FlowLoop* layers() const {
      return !loop.body.empty() && has_stages(loop.body.back()) ? loop.body.back().loop.get()
                                                                : nullptr;
    }
    FlowLoop* layers() { return const_cast<FlowLoop*>(std::as_const(*this).layers()); }
    bool is_forward() const { return !layers()->reverse; }
  };

  /// One part for each loop over layers, one for what stands before, between and behind them.
  void divide() {
    parts_.resize(1);
    for (const FlowNode& node : loop_.body) {
      if (has_stages(node)) parts_.emplace_back();
      if (is_source(node)) {
        for (int v : node.out) sources_[v] = &node;
      } else {
        for (int v : node.out) part_of_[v] = parts_.size() - 1;
        parts_.back().loop.body.push_back(node);
      }
      if (!has_stages(node)) continue;
      divide_layers(parts_.back().loop.body.back());
      parts_.emplace_back();
    }
    for (const FlowLoop::Dealt& dealt : loop_.dealt) {
      size_t& last = part_of_[dealt.value];
      for (int v : dealt.of_chunk) last = std::max(last, part_of_.at(v));
    }
    if (is_1f1b_ && passes_ > 1) add_sender();
    for (Part& part : parts_) {
      part.loop.number = loop_.number;
      part.loop.name = loop_.name;
      part.loop.iterations = loop_.iterations;
      part.loop.reverse = loop_.reverse;
    }
  }

  /// Lets a part of its own send what the last part takes.
  void add_sender() {
    const size_t last = parts_.size() - 1;
    for (auto& [value, part] : part_of_) {
      const bool is_sent = std::any_of(to_all_.begin(), to_all_.end(),
                                       [&](const FlowNode& move) { return move.out[1] == value; });
      if (part == last && !is_sent) ++part;
    }
    parts_.insert(parts_.end() - 1, Part{});
    parts_[last].sends = true;
    parts_.back().is_late = true;
  }

  /// Only the last stage has what layers make. The next part moves it to all stages, and counts as
  /// the part that makes it. What a chunk makes goes to the next chunk only.
  void divide_layers(FlowNode& node) {
    node.loop = std::make_shared<FlowLoop>(*node.loop);
    FlowLoop& layers = *node.loop;
    axis_ = layers.stage_axis;
    ++passes_;
    stages_ = flow_.values[static_cast<size_t>(layers.to_all[0].out[0])].shape[0].size;
    is_interleaved_ = is_interleaved_ || layers.chunk >= 0;
    TESSERA_REQUIRE(
        is_1f1b_ || layers.chunk < 0,
        "layout rule '{}': {} chunks of layers a stage need pipeline_schedule=1f1b, which "
        "interleaves them; gpipe has one chunk a stage: write the rule without '*{}' ({})",
        layers.stage_rule, layers.chunks, layers.chunks, node.origin.source);
    for (size_t i = 0; i < layers.carries.size(); ++i) {
      const FlowValue carry = flow_.values[static_cast<size_t>(node.out[i])];
      layers.arrivals.push_back(flow_.add_value(carry));
      const int last = flow_.add_value(carry);
      part_of_[last] = parts_.size() - 1;
      part_of_[node.out[i]] = parts_.size();
      FlowNode move = layers.to_all[i];
      move.in.push_back(last);
      move.out.push_back(std::exchange(node.out[i], last));
      to_all_.push_back(std::move(move));
    }
  }

  void set_turns() {
    PipelinePasses passes{{}, is_interleaved_};
    for (const Part& part : parts_) {
      if (part.layers() != nullptr) passes.is_forward.push_back(part.is_forward());
    }
    // Two microbatches show the distance between their turns.
    const PipelineTurns turns =
        pipeline_turns(schedule_, passes, stages_,
                       is_interleaved_ ? loop_.iterations : std::max<int64_t>(2, loop_.iterations));
    const int64_t later = parts_.back().is_late ? stages_ / 2 : 0;
    size_t pass = 0;
    for (Part& part : parts_) {
      if (part.layers() != nullptr) {
        part.turns = turns.of[pass++];
      } else if (is_1f1b_) {
        std::vector<int64_t> together = turns_between(turns, passes, pass);
        for (int64_t& turn : together) turn += part.is_late ? later : 0;
        part.turns.assign(static_cast<size_t>(stages_), together);
      } else {
        continue;
      }
      is_interleaved_ ? set_table(part, turns.count + later) : set_distances(part);
      part.loop.turns.sends = part.sends ? kToAll : 0;
      part.loop.turns.takes = part.is_late ? kToAll : 0;
    }
  }

  /// The turns of what all stages run together before a pass.
  std::vector<int64_t> turns_between(const PipelineTurns& turns, const PipelinePasses& passes,
                                     size_t pass) const {
    if (pass == 0) return passes.is_forward[0] ? turns.of[0].front() : turns.of[0].back();
    std::vector<int64_t> after =
        passes.is_forward[pass - 1] ? turns.of[pass - 1].back() : turns.of[pass - 1].front();
    for (int64_t& turn : after) ++turn;
    return after;
  }

  static void set_distances(Part& part) {
    const auto& of = part.turns;
    part.loop.turns = {of[0][1] - of[0][0], of[0][0], of[1][0] - of[0][0]};
  }

  /// `count`: of turns in which stages run layers; what stands behind them runs in one more.
  void set_table(Part& part, int64_t count) const {
    FlowLoop::Turns& turns = part.loop.turns;
    turns.by_turn = part.layers() == nullptr;
    const int64_t columns = turns.by_turn ? 1 : stages_;
    turns.table.assign(static_cast<size_t>((count + 1) * columns), -1);
    for (int64_t s = 0; s < columns; ++s) {
      for (int64_t m = 0; m < loop_.iterations; ++m) {
        const int64_t turn = part.turns[static_cast<size_t>(s)][static_cast<size_t>(m)];
        turns.table[static_cast<size_t>(turn * columns + s)] = m;
      }
    }
  }

  size_t part_of_result(int value) const {
    const auto found = part_of_.find(value);
    return found == part_of_.end() ? parts_.size() - 1 : found->second;
  }

  void place_results() {
    size_t i = 0;
    for (int v : loop_.stacked) parts_[part_of_result(v)].stacks.emplace_back(v, node_.out[i++]);
    for (int v : loop_.sums) parts_[part_of_result(v)].sums.emplace_back(v, node_.out[i++]);
  }

  static void find_read(Part& part) {
    for (const FlowNode& node : part.loop.body) add_read(node, part.read);
    for (const auto* results : {&part.stacks, &part.sums}) {
      for (const auto& [v, result] : *results) part.read.insert(v);
    }
  }

  /// Lets a part begin with the moves of what it makes so, if any part reads it.
  void move_to_all(Part& part) {
    for (const FlowNode& move : to_all_) {
      const int value = move.out[1];
      if (&parts_[part_of_.at(value)] != &part) continue;
      if (std::none_of(parts_.begin(), parts_.end(),
                       [&](const Part& p) { return p.read.contains(value); }))
        continue;
      part.loop.begin_to_all.push_back(move);
      if (!is_1f1b_ || part.sends) part.read.insert(move.in[1]);
    }
  }

  /// Lets a part read what earlier parts made.
  void connect(size_t p) {
    Part& part = parts_[p];
    std::vector<FlowNode> sources;
    for (int v : part.read) {
      const auto source = sources_.find(v);
      const auto made = part_of_.find(v);
      if (source != sources_.end()) {
        sources.push_back(*source->second);
      } else if (made != part_of_.end() && made->second < p) {
        part.loop.slices.push_back({kept(v, made->second), value_for(part, v), 0});
      }
    }
    for (const FlowLoop::Slice& s : loop_.slices) {
      if (part.read.contains(s.value)) part.loop.slices.push_back(s);
    }
    part.loop.body.insert(part.loop.body.begin(), sources.begin(), sources.end());
  }

  /// The value as which a part reads the slice of an earlier part's value. What layers make is read
  /// while they go on with its buffer, so the sender has a name of its own for it.
  int value_for(Part& part, int value) {
    int other = value;
    for (FlowNode& move : part.loop.begin_to_all) {
      if (!part.sends || move.in[1] != value) continue;
      other = flow_.add_value(FlowValue(flow_.values[static_cast<size_t>(value)]));
      move.in[1] = other;
    }
    return other;
  }

  /// The stack of a value of part `p`.
  int kept(int value, size_t p) {
    if (const auto known = kept_.find(value); known != kept_.end()) return known->second;
    const auto dealt = std::find_if(loop_.dealt.begin(), loop_.dealt.end(),
                                    [&](const FlowLoop::Dealt& d) { return d.value == value; });
    const std::vector<int> made =
        dealt == loop_.dealt.end() ? std::vector<int>{value} : dealt->of_chunk;
    int64_t microbatches = 1;
    for (int v : made)
      microbatches =
          std::max(microbatches, microbatches_kept(value, v == value ? p : part_of_.at(v)));
    const int stack = flow_.add_value(stacked(value, microbatches));
    for (int v : made) parts_[v == value ? p : part_of_.at(v)].stacks.emplace_back(v, stack);
    return kept_[value] = stack;
  }

  /// True for what layers make: only the stage where they end has to keep it.
  bool is_of_last_stage(int value) const {
    return std::any_of(to_all_.begin(), to_all_.end(),
                       [&](const FlowNode& move) { return move.in[1] == value; });
  }

  /// For how many microbatches a value of part `p` is kept: on every stage, until its last reader
  /// has run.
  int64_t microbatches_kept(int value, size_t p) const {
    if (!is_1f1b_) return loop_.iterations;
    const size_t last =
        parts_[p].layers() == nullptr || parts_[p].is_forward() ? parts_[p].turns.size() - 1 : 0;
    int64_t most = 1;
    for (size_t reader = p + 1; reader < parts_.size(); ++reader) {
      if (!parts_[reader].read.contains(value)) continue;
      for (size_t s = 0; s < parts_[p].turns.size(); ++s) {
        if (is_of_last_stage(value) && s != last) continue;
        // What is sent stays until it has been taken.
        const auto &made = parts_[p].turns[s],
                   &read = parts_[reader + (parts_[reader].sends ? 1 : 0)].turns[s];
        int64_t next = 0;  // the first microbatch that is made when this one has been read
        for (int64_t m = 0; m < loop_.iterations; ++m) {
          while (next < loop_.iterations &&
                 made[static_cast<size_t>(next)] <= read[static_cast<size_t>(m)])
            ++next;
          most = std::max(most, next - m);
        }
      }
    }
    return most;
  }

  // ------------------------------------------------------------------------------- waiting
  // arrivals

  /// Adds the loops that bring the carries of chunks to where they are used next, and the one that
  /// takes them, for the chunks of the same layers.
  void add_arrivals() {
    for (size_t p = 0; p < parts_.size();) {
      const FlowLoop* layers = parts_[p].layers();
      size_t end = p + 1;
      const auto is_same = [&](const FlowLoop* other) {
        return other != nullptr && layers != nullptr && other->number == layers->number &&
               other->reverse == layers->reverse && other->chunk != layers->chunk;
      };
      std::vector<size_t> chunks{p};
      for (; end < parts_.size(); ++end) {
        if (is_same(parts_[end].layers()))
          chunks.push_back(end);
        else if (!parts_[end].loop.body.empty())
          break;
      }
      if (layers != nullptr) add_arrivals(chunks);
      p = layers != nullptr ? end : p + 1;
    }
  }

  struct Arrival {
    int64_t from, to;     ///< stages
    int64_t turn, taken;  ///< turns
    int64_t place = 0;
    /// The turn in which all stages await it: that in which it is taken, if it is not too far off.
    int64_t awaited(int64_t stages) const { return std::min(taken, turn + stages / 2); }
  };
  /// What arrives in one turn and is awaited in one: an exchange.
  struct Sent {
    int64_t turn = 0, awaited = 0;
    std::vector<Arrival> arrivals = {};
  };

  /// What passes between stages of these chunks, by the turn in which it arrives.
  std::vector<Arrival> arrivals_of(const std::vector<size_t>& chunks) const {
    std::vector<Arrival> all;
    for (size_t c = 0; c < chunks.size(); ++c) {
      const Part& part = parts_[chunks[c]];
      const int64_t step = part.is_forward() ? 1 : -1, last = part.is_forward() ? stages_ - 1 : 0;
      for (int64_t s = 0; s < stages_; ++s) {
        const bool wraps = s == last;
        if (wraps && c + 1 == chunks.size()) continue;
        const int64_t to = wraps ? stages_ - 1 - last : s + step;
        const Part& next = wraps ? parts_[chunks[c + 1]] : part;
        for (size_t m = 0; m < static_cast<size_t>(loop_.iterations); ++m) {
          all.push_back({s, to, part.turns[static_cast<size_t>(s)][m] + 1,
                         next.turns[static_cast<size_t>(to)][m]});
        }
      }
    }
    std::sort(all.begin(), all.end(),
              [](const Arrival& a, const Arrival& b) { return a.turn < b.turn; });
    return all;
  }

  /// Gives each arrival the first place that is free, and returns the number of places.
  int64_t set_places(std::vector<Arrival>& arrivals) const {
    int64_t places = 1;
    std::vector<std::vector<int64_t>> taken(static_cast<size_t>(stages_));  // last use, by place
    for (Arrival& a : arrivals) {
      std::vector<int64_t>& here = taken[static_cast<size_t>(a.to)];
      const auto free =
          std::find_if(here.begin(), here.end(), [&](int64_t turn) { return turn < a.turn; });
      a.place = free - here.begin();
      if (free == here.end()) here.push_back(0);
      here[static_cast<size_t>(a.place)] = a.taken;
      places = std::max(places, std::ssize(here));
    }
    return places;
  }

  void add_arrivals(const std::vector<size_t>& chunks) {
    std::vector<Arrival> arrivals = arrivals_of(chunks);
    const int64_t places = set_places(arrivals);
    const FlowNode& first = parts_[chunks[0]].loop.body.back();
    const auto entries = parts_[chunks[0]].loop.turns.table.size();
    FlowNode taking;
    taking.kind = FlowKind::loop;
    taking.origin = first.origin;
    taking.loop = std::make_shared<FlowLoop>();
    FlowLoop& out = *taking.loop;
    out.name = first.loop->name + ".taken";
    out.iterations = places;
    out.turns.table.assign(entries, -1);
    for (const Arrival& a : arrivals)
      out.turns.table[static_cast<size_t>(a.taken * stages_ + a.to)] = a.place;
    for (size_t i = 0; i < first.loop->carries.size(); ++i) {
      const FlowValue& carry = flow_.values[static_cast<size_t>(first.out[i])];
      const int waiting = flow_.add_value(in_front(carry, Dim("_places", places)));
      const int next = flow_.add_value(FlowValue(flow_.values[static_cast<size_t>(first.out[i])]));
      out.slices.push_back({waiting, next, 0});
      out.copies.emplace_back(next, first.out[i]);
      for (size_t c : chunks) parts_[c].layers()->arrivals[i] = waiting;
    }
    for (const std::vector<Sent>& lane : lanes_of(arrivals))
      add_lane(lane, first, parts_[chunks[0]].layers()->arrivals, std::ssize(out.turns.table));
    for (size_t c : chunks) {
      FlowLoop& layers = *parts_[c].layers();
      if (layers.chunk < 0) layers.chunk = 0;
    }
    taking_.push_back(std::move(taking));
  }

  /// Deals what is sent to as few lanes as can be: in a lane no two begin or end in one turn, and
  /// none overtakes another. The first lane has all that is awaited at once.
  std::vector<std::vector<Sent>> lanes_of(const std::vector<Arrival>& arrivals) const {
    std::map<std::pair<int64_t, int64_t>, Sent> all;  // by turn, and by that of the wait
    for (const Arrival& a : arrivals) {
      Sent& sent = all[{a.turn, a.awaited(stages_)}];
      sent.turn = a.turn;
      sent.awaited = a.awaited(stages_);
      sent.arrivals.push_back(a);
    }
    std::vector<std::vector<Sent>> lanes(1);
    for (auto& [turns, sent] : all) {
      const bool at_once = sent.turn == sent.awaited;
      auto lane = lanes.begin() + (at_once ? 0 : 1);
      while (!at_once && lane != lanes.end() &&
             (lane->back().turn >= sent.turn || lane->back().awaited >= sent.awaited))
        ++lane;
      if (lane == lanes.end()) lane = lanes.insert(lane, std::vector<Sent>{});
      lane->push_back(std::move(sent));
    }
    return lanes;
  }

  /// The most of a lane that is under way at a time.
  static int64_t most_under_way(const std::vector<Sent>& lane) {
    int64_t most = 0;
    for (const Sent& sent : lane) {
      most = std::max(most, std::count_if(lane.begin(), lane.end(), [&](const Sent& other) {
                        return other.turn >= sent.turn && other.turn <= sent.awaited;
                      }));
    }
    return most;
  }

  /// Adds the loop that sends what is in a lane, and the one that awaits it. `layers`: a chunk's;
  /// `waiting`: where its carries are put; `entries`: turns times stages.
  void add_lane(const std::vector<Sent>& lane, const FlowNode& layers,
                const std::vector<int>& waiting, int64_t entries) {
    if (lane.empty()) return;
    FlowNode sending, awaiting;
    sending.kind = awaiting.kind = FlowKind::loop;
    sending.origin = awaiting.origin = layers.origin;
    sending.loop = std::make_shared<FlowLoop>();
    awaiting.loop = std::make_shared<FlowLoop>();
    FlowLoop &from = *sending.loop, &to = *awaiting.loop;
    from.turns.sends = to.turns.takes = next_pair_++;
    from.name = fmt::format("{}.next{}", layers.loop->name, from.turns.sends);
    to.name = fmt::format("{}.awaited{}", layers.loop->name, from.turns.sends);
    from.iterations = to.iterations = std::ssize(lane);
    from.turns.by_turn = to.turns.by_turn = true;
    from.turns.table.assign(static_cast<size_t>(entries / stages_), -1);
    to.turns.table = from.turns.table;
    from.senders.assign(lane.size() * static_cast<size_t>(stages_), stages_);
    from.places.assign(from.senders.size(), 0);
    for (size_t k = 0; k < lane.size(); ++k) {
      from.turns.table[static_cast<size_t>(lane[k].turn)] = static_cast<int64_t>(k);
      to.turns.table[static_cast<size_t>(lane[k].awaited)] = static_cast<int64_t>(k);
      for (const Arrival& a : lane[k].arrivals) {
        const size_t at = k * static_cast<size_t>(stages_) + static_cast<size_t>(a.to);
        from.senders[at] = a.from;
        from.places[at] = a.place;
      }
    }
    const bool is_copied = lane.front().turn != lane.front().awaited;
    for (size_t i = 0; i < layers.loop->carries.size(); ++i) {
      FlowNode move = layers.loop->to_next[i];
      FlowValue arrived = flow_.values[static_cast<size_t>(move.out[0])];
      arrived.intervals[0].wraps = false;
      move.in.push_back(layers.out[i]);
      move.out = {flow_.add_value(std::move(arrived)), waiting[i]};
      if (is_copied) copy_before(sending, move, most_under_way(lane));
      from.begin_to_next.push_back(std::move(move));
    }
    sending_.push_back(std::move(sending));
    awaiting_.push_back(std::move(awaiting));
  }

  /// Lets a loop send a copy: layers go on with what they have made.
  void copy_before(FlowNode& sending, FlowNode& move, int64_t copies) {
    const int made = move.in[1];
    const FlowValue value = flow_.values[static_cast<size_t>(made)];
    const int stack = flow_.add_value(in_front(value, Dim("_sent", copies)));
    const int copy = flow_.add_value(FlowValue(value));
    FlowLoop& loop = *sending.loop;
    sending.out.push_back(stack);
    loop.stacked.push_back(copy);
    loop.slices.push_back({stack, copy, 0});
    loop.copies.emplace_back(made, copy);
    move.in[1] = copy;
  }

  // ------------------------------------------------------------------------------- what is kept

  static FlowValue in_front(FlowValue of, const Dim& dim) {
    of.shape = Shape{dim}.united(of.shape);
    of.layout.dims.insert(of.layout.dims.begin(), std::vector<int>{});
    of.layout.dirty <<= 1;
    for (Interval& interval : of.intervals) ++interval.dim;
    of.node = -1;
    return of;
  }

  FlowValue stacked(int value, int64_t microbatches) const {
    return in_front(flow_.values[static_cast<size_t>(value)], Dim(over_.name, microbatches));
  }

  // ---------------------------------------------------------------------------------------- nodes

  std::vector<FlowNode> nodes() {
    std::vector<FlowNode> all, transfers = sending_, shares;
    transfers.insert(transfers.end(), awaiting_.begin(), awaiting_.end());
    for (const Part& part : parts_) {
      if (part.loop.body.empty() && part.stacks.empty() && part.sums.empty()) continue;
      if (part.layers() != nullptr && !is_interleaved_) add_transfers(part, transfers);
      shares.push_back(node_of(part));
      if (is_1f1b_) continue;
      if (part.layers() == nullptr) {
        all.push_back(std::move(shares.back()));
      } else {
        all.push_back(pipeline_of(std::move(transfers), std::move(shares)));
      }
      transfers.clear();
      shares.clear();
    }
    // What all stages compute comes before layers, which overwrite what they have made before.
    const auto behind = std::stable_partition(shares.begin(), shares.end(), [](const FlowNode& n) {
      return n.loop->turns.table.empty() ? n.loop->turns.by_stage == 0 : n.loop->turns.by_turn;
    });
    shares.insert(behind, taking_.begin(), taking_.end());
    if (is_1f1b_) all.push_back(pipeline_of(std::move(transfers), std::move(shares)));
    return all;
  }

  /// Adds the loops that bring the carries of layers to the next stage: for each remainder of the
  /// turns by their stride one, since other stages wait for something then.
  void add_transfers(const Part& part, std::vector<FlowNode>& nodes) {
    const FlowLoop::Turns& turns = part.loop.turns;
    const FlowNode& node = part.loop.body.back();
    for (int64_t rest = 0; rest < turns.stride; ++rest) {
      int64_t first = -1, last = -1;  // turns in which a stage begins with microbatch 0
      for (int64_t turn = part.first_turn() + 1; turn <= part.last_turn(); ++turn) {
        if (turn % turns.stride != rest) continue;
        if (first < 0) first = turn;
        last = turn;
      }
      if (first < 0) continue;
      FlowNode transfer;
      transfer.kind = FlowKind::loop;
      transfer.origin = node.origin;
      transfer.loop = std::make_shared<FlowLoop>();
      FlowLoop& loop = *transfer.loop;
      loop.name = node.loop->name + ".next";
      loop.iterations = (last - first) / turns.stride + loop_.iterations;
      loop.turns = {turns.stride, first, 0};
      for (size_t i = 0; i < node.loop->carries.size(); ++i) {
        FlowNode move = node.loop->to_next[i];
        FlowValue to = flow_.values[static_cast<size_t>(move.out[0])];
        to.intervals[0].begin = stage_before(turns, rest);
        to.intervals[0].wraps = false;
        move.in.push_back(node.out[i]);
        move.out = {flow_.add_value(std::move(to)), node.loop->arrivals[i]};
        loop.begin_to_next.push_back(std::move(move));
      }
      nodes.push_back(std::move(transfer));
    }
  }

  /// Of a stage that begins a microbatch in a turn of this remainder: the stage before. Of another
  /// one, and of the first: no stage.
  IntExpr stage_before(const FlowLoop::Turns& turns, int64_t rest) const {
    const int64_t beyond = stages_ + 1;
    IntExpr stage;  // the stage before, plus `beyond` times what is left of the turn
    stage.constant = beyond * (turns.first - rest) - turns.by_stage;
    stage.axis_terms = {{axis_, beyond * turns.by_stage + 1}};
    stage.modulus = beyond * turns.stride;
    return stage;
  }

  FlowNode pipeline_of(std::vector<FlowNode> transfers, std::vector<FlowNode> shares) const {
    FlowNode node;
    node.kind = FlowKind::loop;
    node.origin = node_.origin;
    node.loop = std::make_shared<FlowLoop>();
    FlowLoop& loop = *node.loop;
    loop.name = shares.back().loop->body.back().loop->name;
    loop.pipeline_axis = axis_;
    for (const FlowNode& share : shares) {
      const FlowLoop::Turns& turns = share.loop->turns;
      node.in.insert(node.in.end(), share.in.begin(), share.in.end());
      node.out.insert(node.out.end(), share.out.begin(), share.out.end());
      if (!turns.table.empty()) {
        loop.iterations = std::ssize(turns.table) / (turns.by_turn ? 1 : stages_);
        continue;
      }
      const int64_t last = turns.first + std::max<int64_t>(0, turns.by_stage) * (stages_ - 1);
      loop.iterations = std::max(loop.iterations, last + turns.stride * (loop_.iterations - 1) + 1);
    }
    loop.body = std::move(transfers);
    std::move(shares.begin(), shares.end(), std::back_inserter(loop.body));
    return node;
  }

  FlowNode node_of(const Part& part) const {
    FlowNode node;
    node.kind = FlowKind::loop;
    node.origin = node_.origin;
    node.loop = std::make_shared<FlowLoop>(part.loop);
    for (const FlowLoop::Slice& s : part.loop.slices) node.in.push_back(s.whole);
    for (const auto& [v, result] : part.stacks) {
      node.loop->stacked.push_back(v);
      node.out.push_back(result);
    }
    for (const auto& [v, result] : part.sums) {
      node.loop->sums.push_back(v);
      node.out.push_back(result);
    }
    return node;
  }

  Flow& flow_;
  const FlowNode& node_;
  const FlowLoop& loop_;
  const Dim over_;
  const PipelineSchedule schedule_;
  const bool is_1f1b_;  ///< one forward, one backward
  bool is_interleaved_ = false;
  int axis_ = -1;
  int64_t stages_ = 1;
  int64_t passes_ = 0;  ///< of layers
  std::vector<Part> parts_;
  std::map<int, size_t> part_of_;                      ///< by value: the part that computes it
  std::map<int, const FlowNode*> sources_;             ///< by value
  std::vector<FlowNode> to_all_;                       ///< of what layers make
  std::map<int, int> kept_;                            ///< by value: its stack
  std::vector<FlowNode> sending_, awaiting_, taking_;  ///< of chunks
  static constexpr int kToAll = 1;                     ///< FlowLoop::Turns::sends of Part::sends
  int next_pair_ = kToAll + 1;                         ///< of what chunks send
};

}  // namespace

bool is_pipeline(const FlowNode& node) {
  if (!node.loop || !node.loop->carries.empty() || node.loop->condition >= 0) return false;
  return std::any_of(node.loop->body.begin(), node.loop->body.end(), has_stages);
}

void pipeline_microbatches(const Graph& graph, PipelineSchedule schedule, Flow& flow) {
  for (FlowFunction& f : flow.functions) {
    std::vector<FlowNode> nodes;
    for (FlowNode& node : f.nodes) {
      if (!is_pipeline(node)) {
        nodes.push_back(std::move(node));
        continue;
      }
      for (FlowNode& part : MicrobatchPipeline(graph, schedule, flow, node).run())
        nodes.push_back(std::move(part));
    }
    f.nodes = std::move(nodes);
  }
}

}  // namespace tessera
